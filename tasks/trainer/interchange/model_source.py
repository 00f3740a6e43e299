"""The files of a model to import, from a local folder, an object store, a web server, or the Hugging Face hub.

`identify` states what a source is now, without its weights. `model_files` makes the files available as a local folder:

a folder, or file://…       as it is; a checkpoint of torchtitan or nanochat (`foreign`) is converted first, to a
                            folder below the cache, which is removed after the import.
hf://owner/name[@revision]  a snapshot in the hub's cache (`HF_HOME`), filled by `huggingface_hub`; the revision is
                            resolved to a commit first. Every file has the size and hash that the hub states for it. The
                            token is that of `huggingface_hub`: `HF_TOKEN`, or the one of `hf auth login`.
s3://… and other fsspec     copies below the cache (`tasks.core.cache`), which are removed after the import. A download
URLs, https://…             that was cut off is continued, if the file is the same and its server reads ranges.

Only files that an import reads are fetched, and `config.json` first, so that a model that Sluice cannot compute is
refused before its weights are downloaded. Whole files are renamed to their names, so a killed import leaves none that
is incomplete.
"""

import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fsspec

from tasks.core import cache
from tasks.core.clients.hub import hub_errors, stated_content, verify
from tasks.core.config import sha256_of_json
from tasks.core.digest import sha256_of_file
from tasks.core.errors import InputError, SluiceError, TransientError
from tasks.core.remote import connect, protocol_of, translate
from tasks.trainer.interchange.address import HUB, HubModel, check_address, hub_model
from tasks.trainer.interchange.foreign import convert, foreign_files
from tasks.trainer.interchange.huggingface import CONFIG, TOKENIZER, TOKENIZER_CONFIG
from tasks.trainer.interchange.model_folder import (
    SOURCE_FILES,
    STATED,
    indexed_files,
    read_files,
    read_model,
)
from tasks.trainer.interchange.weights import INDEX, WEIGHTS

log = logging.getLogger("sluice.import")
_WEB = ("http", "https")
_RANGE = 32 << 20
"""Bytes of a request."""
_VERSIONS = ("ETag", "etag", "LastModified", "Last-Modified", "mtime", "updated")
"""Fields by which file systems state the version of a file."""
_REMEDY = "name a complete Hugging Face model folder"

Fetch = Callable[[str], bool]
"""Fetches a file by its name in the folder; returns whether it exists."""


@dataclass(frozen=True)
class ModelFiles:
    """A local folder with the files of a model.

    Attributes:
        folder: of the files.
        address: of the original folder; that of the hub ends with the commit.
        name: of a model of the hub, "" of others.
        revision: commit of a model of the hub.
        sha256: digests that were verified, by name of the file.
        converted: folder of the files that those of `folder` were converted from; None: they are as they were.
    """

    folder: Path
    address: str
    name: str = ""
    revision: str = ""
    sha256: Mapping[str, str] = field(default_factory=dict)
    converted: Path | None = None

    def read(self) -> dict[str, Path]:
        """Returns the paths of the files that the import reads, by their names."""
        names = foreign_files(self.converted) if self.converted else read_files(self.folder)
        return {name: (self.converted or self.folder) / name for name in names}


@dataclass(frozen=True)
class SourceIdentity:
    """What a source is at one time.

    Attributes:
        address: of the source; that of the hub ends with the commit.
        content: changes with every file that an import reads: the commit; the names and digests of a folder's files; or
            the names, sizes and versions (ETag, or time of the last change) that the server of a URL states.
    """

    address: str
    content: str

    @property
    def label(self) -> str:
        """The last name in the address, as part of a version: "smollm2-135m"."""
        name = self.address.partition("://")[2] or self.address
        last = name.partition("@")[0].rstrip("/").rpartition("/")[2].lower()
        return re.sub(r"[^a-z0-9]+", "-", last).strip("-") or "model"


def identify(source: str) -> SourceIdentity:
    """Returns what a source is now. A model of the hub with a commit needs no request; other sources do.

    Raises:
        InputError: the source lacks a file, or is not a source.
        StoreError, TransientError: its store, server or hub does not answer or refuses.
    """
    check_address(source)
    protocol = protocol_of(source)
    if protocol == HUB:
        model = hub_model(source)
        commit = model.revision if model.is_pinned else str(_hub_info(source, model).sha)
        return SourceIdentity(f"hf://{model.name}@{commit}", commit)
    if protocol == "file":
        folder = _local_folder(source)
        digests = {name: _digest(folder / name) for name in foreign_files(folder) or read_files(folder)}
        return SourceIdentity(str(folder), sha256_of_json(digests))
    url = source.rstrip("/")
    return SourceIdentity(url, sha256_of_json([url, _listing(url)]))


def _local_folder(source: str) -> Path:
    return Path(source.partition("://")[2] if "://" in source else source).expanduser().absolute()


def _digest(path: Path) -> str:
    try:
        return sha256_of_file(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})", _REMEDY) from None


def _listing(url: str) -> dict[str, list[Any]]:
    """Returns size and version of the files of a URL that an import reads, by name; raises InputError without one."""
    file_system, root = _connect(url)
    stated: dict[str, list[Any]] = {}

    def find(name: str) -> bool:
        with _store_errors(f"{url}/{name}"):
            info = _info(file_system, f"{root}/{name}", url, name)
        if info is not None:
            stated[name] = [info.get("size"), _version(info)]
        return info is not None

    if not find(CONFIG):
        raise InputError(f"{url} has no {CONFIG}", _REMEDY)
    for name in sorted({TOKENIZER, *SOURCE_FILES, *STATED} - {CONFIG}):
        find(name)
    if not find(WEIGHTS) and find(INDEX):
        with _store_errors(f"{url}/{INDEX}"):
            weights = json.loads(file_system.cat_file(f"{root}/{INDEX}")).get("weight_map", {}).values()
        for name in sorted(set(map(str, weights))):
            find(name)
    return stated


@contextmanager
def model_files(source: str) -> Iterator[ModelFiles]:
    """Yields the files of a source; copies of a URL are removed after a clean exit.

    Raises:
        InputError: the source lacks a file, is not a source, or has a model that Sluice cannot compute.
        StoreError, TransientError: its store, server or hub does not answer or refuses.
    """
    check_address(source)
    protocol = protocol_of(source)
    if protocol == HUB:
        yield _from_hub(source)
    elif protocol == "file":
        path = _local_folder(source)
        if not foreign_files(path):
            yield ModelFiles(path, str(path))
            return
        (cache.folder() / "models").mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=cache.folder() / "models") as made:
            convert(path, Path(made))
            yield ModelFiles(Path(made), str(path), converted=path)
    else:
        with _url_copies(source) as files:
            yield files


def _fetch_model(folder: Path, fetch: Fetch, address: str) -> None:
    """Fetches the files that an import reads; raises InputError if one is missing or the model is not supported."""

    def require(name: str) -> None:
        if not fetch(name):
            raise InputError(f"{address} has no {name}", _REMEDY)

    require(CONFIG)
    read_model(folder)
    for name in (TOKENIZER, TOKENIZER_CONFIG):
        require(name)
    for name in sorted({*SOURCE_FILES, *STATED} - {CONFIG, TOKENIZER_CONFIG}):
        fetch(name)
    if not fetch(WEIGHTS):
        require(INDEX)
        for name in indexed_files(folder):
            require(name)


def _hub_info(source: str, model: HubModel) -> Any:
    """Returns what the hub states about a model: its commit, and its files with their hashes."""
    from huggingface_hub import HfApi

    with hub_errors(source, "model"):
        api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
        return api.model_info(model.name, revision=model.revision or None, files_metadata=True)


def _from_hub(source: str) -> ModelFiles:
    """Returns the snapshot of a model of the hub."""
    from huggingface_hub import hf_hub_download

    model = hub_model(source)
    name, endpoint = model.name, os.environ.get("HF_ENDPOINT") or None
    info = _hub_info(source, model)
    commit = str(info.sha)
    address, stated = f"hf://{name}@{commit}", {file.rfilename: file for file in info.siblings or ()}
    verified: dict[str, str] = {}
    if CONFIG not in stated:
        raise InputError(f"{address} has no {CONFIG}", _REMEDY)
    with hub_errors(source, "model"):
        folder = Path(hf_hub_download(name, CONFIG, revision=commit, endpoint=endpoint)).parent

    def fetch(file: str) -> bool:
        if file not in stated:
            return False
        with hub_errors(source, "model"):
            path = Path(hf_hub_download(name, file, revision=commit, endpoint=endpoint))
        verified[file] = verify(path, *stated_content(stated[file]), f"{address}/{file}")
        return True

    _fetch_model(folder, fetch, address)
    return ModelFiles(folder, address, name, commit, verified)


@contextmanager
def _url_copies(url: str) -> Iterator[ModelFiles]:
    """Yields copies of the files of a URL, which are removed after a clean exit; one process at a time has them."""
    url = url.rstrip("/")
    file_system, root = _connect(url)
    folder = cache.folder() / "models" / hashlib.sha256(url.encode()).hexdigest()[:24]
    folder.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder.mkdir(exist_ok=True)
        _fetch_model(folder, partial(_copy, file_system, root, folder, url), url)
        yield ModelFiles(folder, url)
        shutil.rmtree(folder, ignore_errors=True)


def _connect(url: str) -> tuple[Any, str]:
    """Returns the file system of a URL, and the path of its folder there."""
    if protocol_of(url) in _WEB:
        return fsspec.filesystem(protocol_of(url)), url
    return connect(url)


def _copy(file_system: Any, root: str, folder: Path, url: str, name: str) -> bool:
    """Copies a file unless its copy is complete; returns whether the file exists."""
    path, where = f"{root}/{name}", f"{url}/{name}"
    copy, begun, marker = folder / name, folder / f".{name}.part", folder / f".{name}.version"
    with _store_errors(where):
        info = _info(file_system, path, url, name)
        if info is None:
            return False
        size, version = info.get("size"), _version(info)
        state = json.dumps([size, version])
        is_same = bool(version) and marker.is_file() and marker.read_text() == state
        if is_same and copy.is_file():
            return True
        if not is_same:
            begun.unlink(missing_ok=True)
            marker.write_text(state)
        if size is None or (protocol_of(url) in _WEB and (size <= _RANGE or not _reads_ranges(file_system, path))):
            begun.unlink(missing_ok=True)
            file_system.get_file(path, str(begun))
        else:
            _append_rest(file_system, path, begun, size)
    arrived = begun.stat().st_size
    if size is not None and arrived != size:
        begun.unlink()
        raise TransientError(f"{arrived:,} of {size:,} bytes of {where} arrived")
    os.replace(begun, copy)
    return True


def _info(file_system: Any, path: str, url: str, name: str) -> dict[str, Any] | None:
    """Returns what the server of a URL states about a file; None if there is none."""
    try:
        info: dict[str, Any] = file_system.info(path)
        return info
    except FileNotFoundError as error:
        if error.__cause__ is not None and name == CONFIG:  # a web server that does not answer
            raise InputError(f"{url} has no {name}, or does not answer ({error.__cause__})", _REMEDY) from None
        return None


def _version(info: Mapping[str, Any]) -> str:
    """Returns the version of a file; "" if its server states none."""
    return next((str(info[key]) for key in _VERSIONS if info.get(key)), "")


def _reads_ranges(file_system: Any, path: str) -> bool:
    """Returns whether a web server answers requests for a part of a file with only this part."""
    try:
        with file_system.open(path, block_size=2) as file:
            file.seek(1)
            return bool(file.read(1))
    except ValueError:  # it sends more
        return False


def _append_rest(file_system: Any, path: str, begun: Path, size: int) -> None:
    """Appends the bytes of a file that a copy does not have."""
    with begun.open("ab") as file:
        first = file.tell()
        if first:
            log.info("%s: continued after %s of %s bytes", path, f"{first:,}", f"{size:,}")
        while first < size:
            data = file_system.cat_file(path, start=first, end=min(first + _RANGE, size))
            if not data:
                break
            file.write(data)
            first += len(data)


@contextmanager
def _store_errors(where: str) -> Iterator[None]:
    """Raises errors of the client of a store or server as errors with a remedy."""
    try:
        yield
    except SluiceError:
        raise
    except Exception as error:  # each file system raises its own
        known = translate(error, where)
        detail = " ".join(str(error).split())[:300]
        raise (known or TransientError(f"{where} cannot be read ({type(error).__name__}: {detail})")) from None

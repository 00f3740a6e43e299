"""Files of the Hugging Face hub: the commit of a revision, the files of a commit, and verified copies of them.

    hf://datasets/owner/name[@revision]/data/*.parquet     files of a dataset
    hf://owner/name[@revision]/model.bin                   a file of a model

Reads the hub of `HF_ENDPOINT`, or huggingface.co. The token is that of `HF_TOKEN`; it is sent to the hub and is in no
message and no record. Requests that the hub answers with 429 or 5xx, and those that are cut off, are repeated with
growing pauses, at least as long as it asks for.

A copy is in the cache of this machine (`tasks.core.cache`) under the hash of its content, so that a file which two
commits share is fetched once. It gets its name when its size and its hash are those that the hub states.
"""

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote

from tasks.core.cache import cached_copy
from tasks.core.digest import sha256_of, sha256_of_file
from tasks.core.errors import InputError, SluiceError, TransientError, without_login

HUB = "hf://"
DATASETS = f"{HUB}datasets/"
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Pauses before a request is repeated."""
_LONGEST_PAUSE_S = 300.0
_ADDRESS = re.compile(r"hf://(?P<kind>datasets/)?(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^@\s/]+))?/(?P<path>\S.*)")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TOKEN = "set HF_TOKEN to a token that may read it"
_QUERY = re.compile(r"\?[^\s'\"]+")

T = TypeVar("T")


class HubPath(NamedTuple):
    """A file of a dataset or of a model, or a pattern of files of a dataset.

    Attributes:
        name: owner/name.
        revision: branch, tag or commit; "" for the default branch.
        path: below the root of the repository.
        kind: "dataset" or "model".
    """

    name: str
    revision: str
    path: str
    kind: str = "dataset"

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit, whose files cannot change."""
        return bool(_COMMIT.fullmatch(self.revision))

    def __str__(self) -> str:
        revision = f"@{quote(self.revision, safe='')}" if self.revision else ""
        return f"{self.root}{revision}/{self.path}"

    @property
    def root(self) -> str:
        """Address of the repository, without a revision."""
        return f"{DATASETS if self.kind == 'dataset' else HUB}{self.name}"


class HubFile(NamedTuple):
    """A file of a commit: its path in the repository, its size, and the hash that the hub states for its content.

    `digest` is "sha256:…", or for a file that is in git itself "git:…", the name of its blob.
    """

    path: str
    bytes: int
    digest: str


def is_hub(address: str) -> bool:
    """Returns whether a path or pattern is an address on the hub."""
    return address.startswith(HUB)


def parse(address: str) -> HubPath:
    """Returns the parts of an address; raises InputError if it is not one of a file or pattern in a dataset.

    >>> parse("hf://datasets/ink/tales@v1/data/*.parquet")
    HubPath(name='ink/tales', revision='v1', path='data/*.parquet', kind='dataset')
    >>> parse("hf://datasets/ink/tales@refs%2Fconvert%2Fparquet/default/train/0000.parquet").revision
    'refs/convert/parquet'
    """
    if (path := _parts(address)) and path.kind == "dataset":
        return path
    remedy = "write hf://datasets/owner/name@revision/data/*.parquet, with %2F for a / in the revision"
    raise InputError(f"{without_login(address)} does not name files of a dataset of the hub", remedy)


def parse_model(address: str) -> HubPath:
    """Returns the parts of an address; raises InputError if it is not one of a file of a model.

    >>> parse_model("hf://ink/pot@v1/model.bin")
    HubPath(name='ink/pot', revision='v1', path='model.bin', kind='model')
    """
    if (path := _parts(address)) and path.kind == "model" and not path.path.endswith("/"):
        return path
    remedy = "write hf://owner/name@revision/model.bin, with %2F for a / in the revision"
    raise InputError(f"{without_login(address)} does not name a file of a model of the hub", remedy)


def parse_any(address: str) -> HubPath:
    """Returns the parts of an address of a dataset or model; raises InputError if it is neither."""
    return parse(address) if address.startswith(DATASETS) else parse_model(address)


def _parts(address: str) -> HubPath | None:
    match = _ADDRESS.fullmatch(address)
    if match is None or match["name"].startswith("datasets/"):
        return None
    kind = "dataset" if match["kind"] else "model"
    return HubPath(match["name"], unquote(match["revision"] or ""), match["path"], kind)


def commit_of(path: HubPath) -> str:
    """Returns the commit of a revision as of now; that of a commit without a request.

    Raises:
        InputError: the repository or the revision does not exist, or may not be read.
        TransientError: the hub does not answer.
    """
    if path.is_pinned:
        return path.revision
    api = _api()
    with hub_errors(f"{path.root}@{path.revision or 'main'}", path.kind):
        info = _asked(
            lambda: api.repo_info(path.name, revision=path.revision or None, repo_type=path.kind, expand=["sha"])
        )
    return str(info.sha)


def license_of(path: HubPath) -> str:
    """Returns the license that the card of a dataset states at a commit, as the hub names it; "" if it states none.

    Raises:
        InputError, TransientError: see `commit_of`.
    """
    api = _api()
    with hub_errors(str(path), "dataset"):
        info = _asked(lambda: api.dataset_info(path.name, revision=path.revision, expand=["cardData"]))
    stated = (info.card_data or {}).get("license") or ""
    return stated if isinstance(stated, str) else ", ".join(map(str, stated))


def files_below(path: HubPath, folder: str) -> list[HubFile]:
    """Returns all files below a folder ("": the root) of a dataset at a commit, sorted by path; [] if there is none.

    Raises:
        InputError, TransientError: see `commit_of`.
    """
    from huggingface_hub.errors import EntryNotFoundError
    from huggingface_hub.hf_api import RepoFile

    api, found = _api(), list[Any]()
    with hub_errors(str(path), "dataset"), contextlib.suppress(EntryNotFoundError):
        found += api.list_repo_tree(
            path.name, folder or None, recursive=True, revision=path.revision, repo_type="dataset"
        )
    return sorted(HubFile(one.path, *stated_content(one)) for one in found if isinstance(one, RepoFile))


def model_file(path: HubPath) -> HubFile:
    """Returns what the hub states about a file of a model at a commit.

    Raises:
        InputError, TransientError: see `commit_of`; InputError, too, if the model has no such file.
    """
    api = _api()
    with hub_errors(str(path), path.kind):
        info = _asked(lambda: api.model_info(path.name, revision=path.revision, files_metadata=True))
    stated = {one.rfilename: one for one in info.siblings or ()}
    if path.path not in stated:
        suffix = os.path.splitext(path.path)[1]
        similar = [name for name in sorted(stated) if name.endswith(suffix)][:5]
        raise InputError(f"{path}: the model has no such file", f"it has: {', '.join(similar or sorted(stated)[:5])}")
    return HubFile(path.path, *stated_content(stated[path.path]))


def local_copy(path: HubPath, size: int, digest: str) -> str:
    """Returns the path of a verified copy of a file on this machine, which is made unless it exists.

    Args:
        path: the file, at a commit.
        size: in bytes.
        digest: see `HubFile`.

    Raises:
        InputError: the repository is gated or private, and the token may not read it.
        TransientError: the hub does not answer, or what arrived is not the file.
    """
    return cached_copy(sha256_of(f"hub|{digest}".encode())[:40], size, lambda aside: _fetch(path, size, digest, aside))


def _fetch(path: HubPath, size: int, digest: str, aside: str) -> None:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get

    endpoint = os.environ.get("HF_ENDPOINT") or None
    url = hf_hub_url(path.name, path.path, repo_type=path.kind, revision=path.revision, endpoint=endpoint)
    headers = {"Authorization": f"Bearer {token}"} if (token := _token()) else {}

    def get() -> None:
        # What an earlier attempt has left is the beginning of the same content: the name of the copy is its hash.
        with open(aside, "ab") as file:
            http_get(url, file, resume_size=file.tell(), headers=headers, expected_size=size)

    with hub_errors(str(path), path.kind):
        _asked(get)
        verify(Path(aside), size, digest, str(path))


def verify(file: Path, size: int, digest: str, address: str) -> str:
    """Returns the sha256 of a file that arrived; removes it if its size or hash is not what the hub states.

    Raises:
        TransientError: they differ.
    """
    arrived, sha256 = file.stat().st_size, sha256_of_file(file)
    kind, _, expected = digest.partition(":")
    found = sha256 if kind == "sha256" else _blob_name(file, arrived)
    if (arrived, found) == (size, expected):
        return sha256
    file.resolve().unlink(missing_ok=True)
    file.unlink(missing_ok=True)
    stated = f"not the {size:,} bytes and {expected[:16]} that the hub states"
    raise TransientError(f"{address} arrived with {arrived:,} bytes and the hash {found[:16]}, {stated}")


def _blob_name(file: Path, size: int) -> str:
    """Returns the name that git gives to the content of a file: the hash of a header and the content."""
    name = hashlib.sha1(b"blob %d\0" % size)
    with file.open("rb") as content:
        while block := content.read(1 << 20):
            name.update(block)
    return name.hexdigest()


def stated_content(stated: Any) -> tuple[int, str]:
    """Returns size and digest (see `HubFile`) of a file from what the client reports about it."""
    if stated.lfs is not None:
        return int(stated.lfs.size), f"sha256:{stated.lfs.sha256}"
    return int(stated.size), f"git:{stated.blob_id}"


def _api() -> Any:
    from huggingface_hub import HfApi

    return HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, token=_token())


def _token() -> str | bool:
    # False, and not None: a token that `hf auth login` has left on this machine is not on the workers.
    return os.environ.get("HF_TOKEN") or False


def _asked(request: Callable[[], T]) -> T:
    """Returns the answer of the hub, asked again after each of `PAUSES_S` if it was not one."""
    for pause in PAUSES_S:
        try:
            return request()
        except SluiceError:
            raise
        except Exception as error:
            if 0 < (status := _status(error)) < 500 and status != 429:
                raise
            time.sleep(max(pause, min(_retry_after_s(error), _LONGEST_PAUSE_S)))
    return request()


def _status(error: Exception) -> int:
    """Returns the HTTP status that an error reports; 0 for a failed connection, 400 for a name that is refused."""
    from huggingface_hub.errors import HFValidationError

    if isinstance(error, HFValidationError):
        return 400
    return int(getattr(getattr(error, "response", None), "status_code", 0))


def _retry_after_s(error: Exception) -> float:
    stated = str(getattr(getattr(error, "response", None), "headers", {}).get("Retry-After", ""))
    return float(stated) if stated.isdecimal() else 0.0


@contextlib.contextmanager
def hub_errors(source: str, kind: str) -> Iterator[None]:
    """Raises errors of the hub and of its client as errors with a remedy.

    Args:
        source: the address that is read, for messages.
        kind: "model" or "dataset".
    """
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError:
        raise InputError(f"access to {source} is gated", f"accept its terms on the hub, and {_TOKEN}") from None
    except errors.RevisionNotFoundError:
        raise InputError(f"{source}: the {kind} has no such revision", "name a branch, a tag or a commit") from None
    except errors.RepositoryNotFoundError:
        cause = f"the hub has no {kind} {source}, or it is private"
        raise InputError(cause, f"correct the name, or {_TOKEN}") from None
    except errors.HFValidationError as error:
        raise InputError(f"{source} is not a {kind} of the hub ({error})", "correct the name") from None
    except SluiceError:
        raise
    except Exception as error:  # of the HTTP client, which differs between versions
        # The query of a redirect has a signature, which is a credential for some minutes.
        detail = _QUERY.sub("?…", " ".join(str(error).split()))[:300]
        if _status(error) in (401, 403):
            raise InputError(f"the hub refuses access to {source} ({detail})", _TOKEN) from None
        raise TransientError(f"the hub did not answer for {source} ({type(error).__name__}: {detail})") from None

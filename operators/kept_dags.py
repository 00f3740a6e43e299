"""The DAGs of recipes as a DAG file made them last, so that the dag-processor makes only what has changed.

The dag-processor parses every DAG file in a new process, every 30 seconds. To read and check a recipe and to make a DAG
takes 5 to 20 times as long as to read the finished DAG from a file. So there is a file per recipe and DAG file, with
the DAG (pickled) behind a line that says what it was made from: the contents of the recipe, of the recipe that it
extends and of modules of extensions, which environment variables that these name are set, the code, the installed
packages and Airflow's settings. A DAG made from anything else, or damaged, is not used. Only what the dag-processor
shows comes from here: a task makes its DAG from the recipe, and so does every parse where the folder cannot be written.

The folder is below the system's temporary folder and may be deleted at any time. As its files are code to pickle, it
belongs to the user of this process, who alone may read and write it; a folder of anybody else is not used.
"""

import contextlib
import hashlib
import json
import os
import pickle
import re
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from airflow.configuration import conf
from airflow.sdk import DAG

from tasks.core import extensions
from tasks.core.digest import sha256_of
from tasks.run.recipe import source_files

UNUSED_S = 7 * 86_400
"""Age in seconds at which a file is removed: its recipe may be gone. One that is still needed is written again."""

_PACKAGES = ("site-packages", "dist-packages")
_SETTINGS = (
    *(("core", f"max_active_{of}_per_dag") for of in ("tasks", "runs")),
    *(("core", f"default_task_{of}") for of in ("retries", "retry_delay", "weight_rule", "execution_timeout")),
    ("core", "max_task_retry_delay"),
    *(("scheduler", name) for name in ("catchup_by_default", "create_cron_data_intervals")),
    *(("operators", f"default_{of}") for of in ("owner", "queue", "deferrable")),
    *(("email", f"default_email_on_{event}") for event in ("failure", "retry")),
)
"""Settings of Airflow that a DAG takes its defaults from."""

_VARIABLE = re.compile(rb"\$\{([A-Za-z_][A-Za-z0-9_]*)")


def _code() -> str:
    """Returns the digest of names, sizes and times of all modules, and of the times of folders of packages."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256(sys.version.encode())
    for path in (path for path in sys.path if Path(path).name in _PACKAGES and os.path.isdir(path)):
        digest.update(f"{path} {os.stat(path).st_mtime_ns}\n".encode())
    for package in ("operators", "tasks"):
        for path, about in sorted(_modules(str(root / package))):
            digest.update(f"{path} {about.st_size} {about.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _modules(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".py", ".json")):
                yield entry.path, entry.stat()
            elif entry.is_dir(follow_symlinks=False) and entry.name != "__pycache__":
                yield from _modules(entry.path)


_CODE = _code()
"""Read with the import: what is changed later is not what this process runs, nor the processes forked from it."""


class KeptDags:
    """The kept DAGs of one DAG file; an instance serves one parse.

    Args:
        file: the DAG file.
        dag: its part of the pipeline: "crawl", "corpus", ...
    """

    def __init__(self, file: Path, dag: str) -> None:
        self._digests: dict[str, str] = {}
        self._folder = _own_folder()
        settings = [[*name, conf.get(*name, fallback=None)] for name in _SETTINGS]
        made_by = [_CODE, dag, str(file), self._digest(str(file)), settings]
        self._made_by = sha256_of(json.dumps(made_by).encode())
        self._key = f"{dag}\0{file}\0"

    def sources(self, recipe: Path) -> Mapping[str, str]:
        """Returns the digests of the files that a recipe has its settings from; raises RecipeError if one is not TOML.

        Call it before the recipe is read: what is changed in between is then not kept as unchanged.
        """
        return {str(path): self._digest(str(path)) for path in source_files(recipe)}

    def has(self, recipe: Path) -> bool:
        """Returns whether a DAG file has made the DAG of this recipe as it is, or found that the recipe has none."""
        return self._body(recipe) is not None

    def get(self, recipe: Path) -> DAG | None:
        """Returns the DAG of a recipe; None if the recipe has none. Raises KeyError if neither is kept."""
        body = self._body(recipe)
        if body is None:
            raise KeyError(str(recipe))
        try:
            dag: DAG | None = pickle.loads(body)
        except Exception as error:  # unpickling can raise anything
            raise KeyError(str(recipe)) from error
        return dag

    def put(self, recipe: Path, sources: Mapping[str, str], dag: DAG | None) -> None:
        """Keeps the DAG of a recipe, or that it has none, if the folder can be written and the DAG be pickled."""
        if self._folder is None:
            return
        try:
            body = pickle.dumps(dag)
        except Exception:  # of an operator of an extension; it is made again by every parse
            return
        read = {**sources, **{path: self._digest(path) for path in _extension_files()}}
        head = json.dumps({"made_by": self._made_by, "read": read, "body": sha256_of(body)})
        with contextlib.suppress(OSError):
            _write(self._path(self._folder, recipe), head.encode() + b"\n" + body)

    def _body(self, recipe: Path) -> bytes | None:
        if self._folder is None:
            return None
        try:
            head, _, body = self._path(self._folder, recipe).read_bytes().partition(b"\n")
            made: dict[str, Any] = json.loads(head)
        except (OSError, ValueError):
            return None
        current = made["made_by"] == self._made_by and made["body"] == sha256_of(body)
        return body if current and all(self._digest(path) == was for path, was in made["read"].items()) else None

    def _path(self, folder: Path, recipe: Path) -> Path:
        return folder / sha256_of(f"{self._key}{recipe.absolute()}".encode())

    def _digest(self, path: str) -> str:
        """Returns the digest of a file and of which variables in it are set, not their values; "" without a file."""
        if path not in self._digests:
            try:
                content = Path(path).read_bytes()
            except OSError:
                return ""
            names = sorted({name.decode() for name in _VARIABLE.findall(content)})
            unset = " ".join(name for name in names if not os.environ.get(name))
            self._digests[path] = sha256_of(content + b"\0" + unset.encode())
        return self._digests[path]


def remove_unused() -> None:
    """Removes files that were written long ago."""
    if (folder := _own_folder()) is None:
        return
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if time.time() - entry.stat(follow_symlinks=False).st_mtime > UNUSED_S:
                    os.unlink(entry.path)


def _extension_files() -> list[str]:
    """Returns the modules of extensions that this process has imported."""
    groups = (extensions.extensions_in(group).values() for group in (extensions.FILTERS, extensions.PARSERS))
    names = {extension.module for group in groups for several in group for extension in several}
    files = (getattr(sys.modules[name], "__file__", None) for name in sorted(names & sys.modules.keys()))
    return [file for file in files if file]


def _own_folder() -> Path | None:
    """Returns the folder of the kept DAGs; None if it cannot be made or others may write there."""
    folder = Path(tempfile.gettempdir()) / f"sluice-dags-{os.geteuid()}"
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        about = folder.lstat()
        if stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077:
            return folder
    return None


def _write(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all; only its owner can read it."""
    number, aside = tempfile.mkstemp(dir=path.parent)
    try:
        with open(number, "wb") as file:
            file.write(content)
        os.replace(aside, path)
    except BaseException:
        os.unlink(aside)
        raise

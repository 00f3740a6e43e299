"""Versions that determine the bytes of an artifact, compared between the processes of a run.

Two pyarrow versions write different Parquet bytes and two Sluice wheels different rows, so a cluster of other versions
is rejected before any work. Reads the metadata of installed packages and the sources of `tasks`.
"""

import hashlib
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tasks.core.errors import SluiceError
from tasks.core.extensions import packages

PACKAGES = ("python", "sluice", "dask", "distributed", "numpy", "pyarrow")
"""Packages whose versions must be equal; of Python the first two numbers."""

CODE = "sluice code"
"""Key of the code's own digest: a wheel built twice from one version number may still differ."""

SOURCES = (".py", ".html", ".json")
"""Suffixes of files that determine bytes: modules, templates of pages inside artifacts, weights of extract's blocks."""

DEMO = "demo"
"""Folder of `tasks` that no worker runs: the local stack determines no byte of an artifact."""

EXTENSIONS = "extensions"
"""Key of the packages that provide filters and parsers, with their versions."""

Versions = Mapping[str, str | None]


class VersionError(SluiceError):
    """Processes that must run the same code run different versions."""


def code_digest() -> str:
    """Returns 12 hex digits over the sources of the installed `tasks` package."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    sources = (path for path in root.rglob("*") if path.suffix in SOURCES and root / DEMO not in path.parents)
    for path in sorted(sources):
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def build_here() -> dict[str, str | None]:
    """Returns the versions of this process: of each package, the digest of the code, and the extensions."""
    return {**{package: _version(package) for package in PACKAGES}, **sluice_build()}


def sluice_build() -> dict[str, str]:
    """Returns the versions of Sluice itself in this process: the digest of its code, and its extensions."""
    return {CODE: code_digest(), EXTENSIONS: packages()}


@cache
def require(build: frozenset[tuple[str, str | None]], name: str) -> None:
    """Checks that this process runs `build` (the items of another's `build_here`); once per process and build.

    Raises:
        VersionError: it runs another; the message names it `name`.
    """
    check_same(dict(build), {name: build_here()}, "the Dask cluster")


def check_same(here: Versions, there: Mapping[str, Versions], cluster: str) -> None:
    """Compares the versions of this process with those of others.

    Args:
        here: package to version, of this process.
        there: the same of each other process, by a name that identifies it for a person.
        cluster: the cluster of these processes, for the message.

    Raises:
        VersionError: one differs; names the first process with both versions, and how many more differ.
    """
    differences = [
        f"{name} has {package} {_short(package, versions.get(package)) or 'not at all'}, "
        f"this task has {_short(package, here.get(package))}"
        for name, versions in there.items()
        for package in (*PACKAGES, CODE, EXTENSIONS)
        if package in versions and _short(package, versions[package]) != _short(package, here.get(package))
    ]
    if differences:
        more = f" (and {len(differences) - 1} more differences)" if differences[1:] else ""
        raise VersionError(
            f"{cluster} runs other versions: {differences[0]}{more}",
            "start its scheduler and workers from the same image or wheel as Airflow, or empty [place.dask] address",
        )


def _version(package: str) -> str | None:
    try:
        return ".".join(map(str, sys.version_info)) if package == "python" else version(package)
    except PackageNotFoundError:
        return None


def _short(package: str, full: str | None) -> str | None:
    return ".".join(full.split(".")[:2]) if package == "python" and full else full

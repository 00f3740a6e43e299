"""Versions and code that all processes of a cluster must have.

Different pyarrow versions write different Parquet bytes, and different builds of Sluice may write different rows, so a
cluster with other versions is rejected before any work.

Reads the metadata of installed packages and the sources of `tasks`.
"""

import hashlib
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tasks.core.errors import SluiceError
from tasks.core.extensions import packages

Versions = Mapping[str, str | None]
"""Versions of packages, and of the code, by name."""

Build = frozenset[tuple[str, str | None]]
"""The items of one process's `build_here`."""

PACKAGES = ("python", "sluice", "dask", "distributed", "numpy", "pyarrow")
"""Packages whose versions must be equal; for Python, major and minor version."""

CODE = "sluice code"
"""Key of the digest of the code: two wheels with the same version number may contain different code."""

SOURCES = (".py", ".html", ".json")
"""Suffixes of files that determine bytes: modules, templates of pages in artifacts, weights of extract's models."""

DEMO = "demo"
"""Folder of `tasks` that no worker runs; it does not affect the bytes of artifacts."""

EXTENSIONS = "extensions"
"""Key of the packages that provide filters and parsers, with their versions."""


class VersionError(SluiceError):
    """Processes that must run the same code run different versions."""


def check_versions(client: Any, address: str) -> None:
    """Raises VersionError unless scheduler and workers run this process's versions and code."""
    # Dask's own version report works even where our pickled code could not be loaded.
    report = client.get_versions(packages=[name for name in PACKAGES if name != "python"])
    here = {**report["client"]["packages"], **sluice_build()}
    there = {f"worker {name}": worker["packages"] for name, worker in report["workers"].items() if worker}
    cluster = f"the Dask cluster at {address}"
    check_same(here, {"the scheduler": report["scheduler"]["packages"], **there}, cluster)
    try:
        builds = client.run(sluice_build)
    except (ImportError, AttributeError):
        raise VersionError(f"{cluster} runs another build of Sluice", "start its workers from this wheel") from None
    check_same(here, {f"worker {name}": build for name, build in builds.items()}, cluster)


def build_here() -> dict[str, str | None]:
    """Returns the versions in this process: of each package, the digest of the code, and the extensions."""
    return {**{package: _version(package) for package in PACKAGES}, **sluice_build()}


def sluice_build() -> dict[str, str]:
    """Returns the digest of Sluice's code in this process, and its extensions."""
    return {CODE: code_digest(), EXTENSIONS: packages()}


def code_digest() -> str:
    """Returns 12 hex digits over the sources of the installed `tasks` package."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    sources = (path for path in root.rglob("*") if path.suffix in SOURCES and root / DEMO not in path.parents)
    for path in sorted(sources):
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@cache
def require_build(build: Build, name: str) -> None:
    """Checks that this process runs `build`, the items of another process's `build_here`; once per process and build.

    Args:
        build: the versions to compare with.
        name: name of this process, for the message.

    Raises:
        VersionError: a version differs.
    """
    check_same(dict(build), {name: build_here()}, "the Dask cluster")


def check_same(here: Versions, there: Mapping[str, Versions], cluster: str) -> None:
    """Compares the versions of this process with those of others.

    Args:
        here: versions of this process, by package.
        there: versions of each other process, by a name for the message.
        cluster: the cluster of these processes, for the message.

    Raises:
        VersionError: a version differs. The message gives the first difference and the number of further ones.
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
            "start its scheduler and workers from the same image or wheel as Airflow, or set [place.dask] address to "
            "an empty string",
        )


def _version(package: str) -> str | None:
    try:
        return ".".join(map(str, sys.version_info)) if package == "python" else version(package)
    except PackageNotFoundError:
        return None


def _short(package: str, full: str | None) -> str | None:
    return ".".join(full.split(".")[:2]) if package == "python" and full else full

"""Fixtures of the suite of stores: one parametrized `store`, and the servers behind the remote ones."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.arrow import ArrowFSWrapper
from pyarrow.fs import LocalFileSystem

from tasks.core.store import Store
from tests.s3_server import Faults, FaultyServer
from tests.stores.ceph import Ceph, why_no_ceph
from tests.stores.servers import Azure, Google, Hadoop, why_no_azure

needs_adlfs = pytest.mark.oracle("adlfs")
ON_EMULATORS = [
    "s3",
    "webhdfs",
    pytest.param("abfs", marks=needs_adlfs),
    pytest.param("gs", marks=pytest.mark.oracle("gcsfs")),
]
ON_SERVERS = [*ON_EMULATORS, pytest.param("ceph", marks=pytest.mark.soak)]


class NameNode(ArrowFSWrapper):
    """A fake HDFS in a folder: Arrow's file system with a rename that refuses existing files."""

    protocol = "hdfs"

    def __init__(self, **_: object) -> None:
        super().__init__(LocalFileSystem())

    def mv(self, path1: str, path2: str, **_: object) -> None:
        os.link(self._strip_protocol(path1), self._strip_protocol(path2))
        os.unlink(self._strip_protocol(path1))


@pytest.fixture(scope="session")
def ceph_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ceph]:
    """The S3 gateway of Ceph, one for all tests."""
    if why_no_ceph():
        pytest.skip(why_no_ceph())
    with Ceph(tmp_path_factory.mktemp("ceph")) as server:
        yield server


@pytest.fixture(scope="session")
def azure_server() -> Iterator[Azure]:
    """Azurite, one for all tests."""
    if why_no_azure():
        pytest.skip(why_no_azure())
    with Azure() as server:
        yield server


@pytest.fixture(scope="session")
def google_server() -> Iterator[Google]:
    """The emulator of GCS, one for all tests."""
    with Google() as server:
        yield server


@pytest.fixture(scope="session")
def hadoop() -> Iterator[Hadoop]:
    """A stub of WebHDFS, one for all tests."""
    with Hadoop() as server:
        yield server


@dataclass(frozen=True)
class Place:
    """A prefix of a bucket for one test, and its server."""

    root: str
    server: FaultyServer

    @property
    def faults(self) -> Faults:
        return self.server.faults

    def store(self) -> Store:
        return Store(self.root)


SERVERS = {
    "s3": ("s3", "s3_server"),
    "ceph": ("s3", "ceph_server"),
    "webhdfs": ("webhdfs", "hadoop"),
    "abfs": ("abfs", "azure_server"),
    "gs": ("gs", "google_server"),
}
"""Protocol and fixture of each server."""


def place_on(name: str, request: pytest.FixtureRequest) -> Iterator[Place]:
    """Yields a place on a server, whose environment is set and whose faults end with the test."""
    protocol, fixture = SERVERS[name]
    server = request.getfixturevalue(fixture)
    folder = request.getfixturevalue("tmp_path")
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in server.environment.items():
            patch.setenv(variable, value)
        patch.setenv("SLUICE_CACHE", str(folder / "cache"))
        host = server.url.partition("//")[2] + "/" if protocol == "webhdfs" else ""
        yield Place(f"{protocol}://{host}sluice/{folder.name}", server)
    server.faults.calm()


@pytest.fixture(params=ON_SERVERS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A place on each server."""
    yield from place_on(request.param, request)


@pytest.fixture(params=["folder", "memory", "hdfs", *ON_SERVERS])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store of each kind."""
    if request.param == "folder":
        yield Store(str(tmp_path / "folder"))
    elif request.param == "memory":
        yield Store(f"memory://sluice/{tmp_path.name}")
    elif request.param == "hdfs":
        held = fsspec.registry.get("hdfs")
        fsspec.register_implementation("hdfs", NameNode, clobber=True)
        (tmp_path / "hdfs").mkdir()
        yield Store(f"hdfs://{tmp_path}/hdfs")
        if held:
            fsspec.register_implementation("hdfs", held, clobber=True)
    else:
        for place in place_on(request.param, request):
            yield place.store()

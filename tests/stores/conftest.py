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
from tests.stores.servers import Azure, Google, Hadoop, why_no_azure

needs_adlfs = pytest.mark.oracle("adlfs")
ON_SERVERS = [
    "s3",
    "webhdfs",
    pytest.param("abfs", marks=needs_adlfs),
    pytest.param("gs", marks=pytest.mark.oracle("gcsfs")),
]


class NameNode(ArrowFSWrapper):
    """A fake HDFS in a folder: Arrow's file system with a rename that refuses existing files."""

    protocol = "hdfs"

    def __init__(self, **_: object) -> None:
        super().__init__(LocalFileSystem())

    def mv(self, path1: str, path2: str, **_: object) -> None:
        os.link(self._strip_protocol(path1), self._strip_protocol(path2))
        os.unlink(self._strip_protocol(path1))


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


def place_on(protocol: str, request: pytest.FixtureRequest) -> Iterator[Place]:
    """Yields a place on the server of a protocol, whose environment is set and whose faults end with the test."""
    names = {"s3": "s3_server", "webhdfs": "hadoop", "abfs": "azure_server", "gs": "google_server"}
    server = request.getfixturevalue(names[protocol])
    folder = request.getfixturevalue("tmp_path")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
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

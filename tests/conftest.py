"""Fixtures of all tests: the shared real data, and a function that runs one stage like the runner."""

import gc
import importlib
import importlib.util
import os
import pickle
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import settings

from tasks.core.artifact import Artifact, ArtifactId, InputRef, fingerprint
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.engine import Engine, open_engine
from tasks.core.stage import Inputs, Output
from tasks.core.store import Store
from tests.times import record

if TYPE_CHECKING:
    from tests.s3_server import S3Server

SHARED_DATA = Path(os.environ.get("SLUICE_SHARED_DATA", Path(__file__).parents[1].parent / "shared" / "data"))

# `make test` draws the same examples every time for reproducibility; `make soak` draws more and new ones.
settings.register_profile("ci", max_examples=50, deadline=None, database=None, derandomize=True)
settings.register_profile("soak", max_examples=2_000, deadline=None, database=None)
settings.load_profile("ci")


def pytest_configure(config: pytest.Config) -> None:
    """Records durations if the variable of `tests.times` is set; collects doctests only from modules with examples.

    There is no garbage collection during the collection of tests, which makes none.
    """
    gc.disable()
    record(config)
    config.pluginmanager.register(DoctestsWhereThereAreSome(), "sluice-doctests")


class DoctestsWhereThereAreSome:
    """Skips modules without doctests, which every collecting process would import and search."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(
        self, file_path: Path, parent: pytest.Collector
    ) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
        """Returns the collectors of a file, without that of doctests if there are none."""
        found = yield
        if file_path.suffix != ".py" or b">>> " in file_path.read_bytes():
            return found
        return [collector for collector in found if not isinstance(collector, DoctestModule)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Reruns failed tests of real time once; skips comparisons with a package that is not installed."""
    for item in items:
        if item.get_closest_marker("real_time"):
            item.add_marker(pytest.mark.flaky(reruns=1))
        for marker in item.iter_markers("oracle"):
            (package,) = marker.args
            if importlib.util.find_spec(package) is None:
                item.add_marker(pytest.mark.skip(f"{package} is not installed: `make oracles` does that"))


def pytest_collection_finish() -> None:
    """Exempts what the collection has made, millions of objects that stay to the end, from garbage collection."""
    gc.freeze()
    gc.enable()


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Names binary parameters by their argument: gzip contains the time, and xdist workers must agree on test ids."""
    binary = isinstance(val, bytes) and not (val.isascii() and val.decode("ascii").isprintable())
    return argname if binary else None


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    """Restores the handler of SIGTERM after a test, and removes a limit of CPU seconds.

    An Airflow task that runs in this process leaves a handler that does not end the process. Workers that a later test
    forks would inherit it, and a pool waits forever for a worker that its SIGTERM does not end. A parser that runs in
    this process instead of a child leaves its limit, which would end the process during a later test.
    """
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    if signal.getsignal(signal.SIGTERM) is not before:
        signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real test data next to a developer's checkout; skips if it is absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"the real test data is not here: {SHARED_DATA} (set SLUICE_SHARED_DATA to its folder)")
    return SHARED_DATA


@pytest.fixture(scope="session", autouse=True)
def without_fsync() -> Iterator[None]:
    """Does not wait for the disk in this process: only a crash of the machine, which no test has, needs the flush."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session")
def s3_server() -> "Iterator[S3Server]":
    """An S3 server on loopback, one for all tests."""
    from tests.s3_server import S3Server  # imported here: it takes half a second

    with S3Server() as server:
        yield server


@pytest.fixture
def s3(s3_server: "S3Server", monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> "Iterator[S3Server]":
    """The S3 server, with its environment set, no faults, and a separate cache for the test."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path / "cache"))
    yield s3_server
    s3_server.faults.calm()


@pytest.fixture(scope="session")
def separate_s3_server() -> "Iterator[dict[str, str]]":
    """The environment of an S3 server in a process of its own, one for all tests."""
    from tests.s3_server import separate_server

    with separate_server() as environment:
        yield environment


@pytest.fixture
def separate_s3(separate_s3_server: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """URL of a folder in a bucket of this server, whose environment is set, with a separate cache for the test."""
    for name, value in separate_s3_server.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path / "cache"))
    return f"s3://sluice/{tmp_path.name}"


SCATTERED = -1
"""Number of workers for which `run_stage_in` uses `Scattered`."""


class Scattered(Engine):
    """Does in this process what workers do: the last item comes first, and each gets copies of function and item."""

    name = "scattered"

    def map(self, fn: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        held = [(index, pickle.dumps((fn, item))) for index, item in enumerate(items)]
        for index, data in reversed(held):
            copied, item = pickle.loads(data)
            yield index, copied(item)


def engine_of(workers: int) -> AbstractContextManager[Engine]:
    """Opens the engine for a number of workers, or `Scattered`."""
    return nullcontext(Scattered()) if workers == SCATTERED else open_engine(workers=workers)


def run_stage_in(
    folder: Path | str,
    module: str,
    config: Config,
    inputs: dict[str, Artifact | list[Artifact]] | None = None,
    *,
    member: str = "",
    workers: int = 0,
    kind: str = "",
    version: str = "dev",
    max_bad_share: float = 0.01,
    place: Config | None = None,
) -> Artifact:
    """Runs one stage module into the store `folder` and returns the committed artifact `test/<kind>@<version>`."""
    stage = importlib.import_module(module)
    held = Inputs(inputs or {})
    refs = [
        InputRef(role=role, address=str(one.address), fingerprint=one.record.fingerprint, content=one.record.content)
        for role in sorted(held)
        for one in held.many(role)
    ]
    print_ = fingerprint(module, stage.VERSION, member, config, refs)
    name = f"test/{kind or module.replace('.', '-')}" + (f"/{member}" if member else "")
    store = Store(str(folder))
    existing = Artifact.find(store, ArtifactId(name, version))
    if existing:
        return existing
    output = Output(store, ArtifactId(name, version), print_, member=member, max_bad_share=max_bad_share, place=place)
    with engine_of(workers) as engine:
        report = stage.run(config, held, output, engine)
    return commit(output, module, stage.VERSION, config, refs, report)


def file_refs(stage: ModuleType, config: Config) -> list[InputRef]:
    """Returns the references to the files outside the store that a stage reads; it reads no dataset and no table."""
    from tasks.run.outside import external_refs

    return list(external_refs(stage.HOOKS, config, Store("/no/store"), ArtifactId("test/stage", "dev")))


@pytest.fixture
def run_stage(tmp_path: Path) -> Callable[..., Artifact]:
    """`run_stage_in` with the test's folder as the store."""

    def run(module: str, config: Config, inputs: dict | None = None, **options: object) -> Artifact:
        return run_stage_in(tmp_path, module, config, inputs, **options)  # type: ignore[arg-type]

    return run

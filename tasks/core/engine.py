"""Executors for the parts of a stage: this process, processes on this machine, or a Dask cluster.

All of them give the same results. Only this module imports Dask. Processes on this machine are Dask workers, too
(`SubprocessCluster`, about 4 s to start), because plain multiprocessing cannot start children in an Airflow task.

A cluster may grow, shrink, or lose workers or its scheduler while a stage runs. Items without a result run again, which
is safe because each part is committed once, whichever worker makes it. Different pyarrow versions write different
Parquet bytes, and different builds of Sluice may write different rows, so a cluster with other versions is rejected
before any work.

Reads the metadata of installed packages and the sources of `tasks`. Writes only to the log.
"""

import contextlib
import hashlib
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from typing import Any

from tasks.core.errors import SluiceError, TransientError
from tasks.core.extensions import packages
from tasks.core.open_files import raise_limit

log = logging.getLogger("sluice.engine")

Workers = Mapping[str, Mapping[str, Any]]
"""Workers by address, as Dask's scheduler describes them."""

Versions = Mapping[str, str | None]
"""Versions of packages, and of the code, by name."""

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

_CONNECT_S = 30
"""Seconds to wait for a scheduler to respond, at the start and after it was lost."""

_DASHBOARD_S = 3
_WORKERS_S = 50
"""Seconds to wait for the first worker, and longest time that a stage continues without any worker."""

_CHECK_EVERY_S = 5.0
_POLL_S = 0.02
_MAX_LOSSES = 3


class Engine:
    """Runs a function over items in sequence, in this process."""

    name = "one process"

    def map(self, fn: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yields (index of the item, result) as results arrive, in any order; raises the exceptions of `fn`."""
        for index, item in enumerate(items):
            yield index, fn(item)


class Processes(Engine):
    """Runs a function over items in processes on this machine.

    The processes start with the first item, so a stage without parts, such as training, starts none.

    Args:
        workers: number of processes.
        started: exit stack that ends the processes.
    """

    def __init__(self, workers: int, started: contextlib.ExitStack) -> None:
        self.name = f"{workers} processes"
        self._workers = workers
        self._started = started
        self._engine: Engine | None = None

    def map(self, fn: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """See `DaskEngine.map`."""
        if items and self._engine is None:
            self._engine = self._started.enter_context(_processes(self._workers))
        if self._engine is not None:
            yield from self._engine.map(fn, items)


class _SchedulerLostError(Exception):
    """The scheduler, or its state for our tasks, is lost."""


class DaskEngine(Engine):
    """Runs a function over items on the workers of a Dask cluster.

    Args:
        client: a connected `dask.distributed.Client`.
        name: name of the cluster in the log and in errors.
    """

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self.name = name
        self._build = frozenset(build_here().items())
        self._monitor = WorkerMonitor(name)
        self._monitor.begin(client.scheduler_info()["workers"])
        self._checked = time.monotonic()

    def map(self, fn: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """See `Engine.map`. Items that were running on a lost worker or scheduler run again.

        Raises:
            TransientError: the same item repeatedly killed its workers, there is no worker, or the scheduler was lost
                and did not return within half a minute.
        """
        pending = dict(enumerate(items))
        for losses in count(1):
            try:
                for index, result in self._round(fn, pending):
                    del pending[index]
                    yield index, result
                return
            except _SchedulerLostError as loss:
                if losses > _MAX_LOSSES:
                    raise self._lost_for_good(loss) from None
                log.warning("%s was lost (%s); waiting for it with %d parts left", self.name, loss, len(pending))
                self._wait_for_scheduler(loss)

    def end(self) -> None:
        """Logs a summary of the workers: losses, pauses, memory."""
        self._monitor.end()

    def _round(self, fn: Callable[[Any], Any], pending: Mapping[int, Any]) -> Iterator[tuple[int, Any]]:
        """Submits all pending items once and yields their results; raises _SchedulerLostError."""
        from dask.distributed import as_completed
        from distributed.client import ClosedClientError, FutureCancelledError
        from distributed.comm import CommClosedError

        futures = {}
        try:
            futures = dict(zip(self._submit(fn, list(pending.values())), pending, strict=True))
            completed = as_completed(futures, loop=self._client.loop)
            while not completed.is_empty():
                if completed.has_ready():
                    future = next(completed)
                    result = self._result(future)
                    # The future is released here, so that it is not computed again when its worker dies later.
                    yield futures.pop(future), result
                    del future, result
                else:
                    time.sleep(_POLL_S)
                self._check_workers()
        except (FutureCancelledError, CommClosedError, ClosedClientError) as error:
            raise _SchedulerLostError(" ".join(str(error).split())) from error
        finally:
            with contextlib.suppress(Exception):
                self._client.cancel(list(futures), reason="the stage has ended")

    def _submit(self, fn: Callable[[Any], Any], items: list[Any]) -> list[Any]:
        from distributed.protocol import pickle

        # `fn` may contain whole artifact records. As the result of a task, it is sent to each worker once instead of
        # with each item. Unlike scattered data, a task's result is computed again when its worker dies.
        shared = self._client.submit(pickle.loads, pickle.dumps(fn), pure=False)
        return list(self._client.map(_call, items, fn=shared, build=self._build, pure=False))

    def _result(self, future: Any) -> Any:
        """Returns the result of a completed item.

        It is lost if its worker dies before it is fetched. Dask then computes it again, for which it waits as long as
        there is no worker.
        """
        from distributed import KilledWorker

        try:
            while True:
                try:
                    return future.result(timeout=_WORKERS_S)
                except TimeoutError:
                    if future.status == "error":  # raised by the item
                        raise
                    self._check_workers()
        except KilledWorker as error:
            raise TransientError(
                f"workers of {self.name} died repeatedly while they made the same part ({error})",
                "give them more memory, or make parts smaller",
            ) from error

    def _check_workers(self) -> None:
        if time.monotonic() - self._checked < _CHECK_EVERY_S:
            return
        self._checked = time.monotonic()
        if self._client.status == "running":
            self._monitor.update(self._client.scheduler_info()["workers"])
        if self._monitor.seconds_without_workers() > _WORKERS_S:
            raise TransientError(
                f"{self.name} has had no worker for {_WORKERS_S} s", "start workers; completed parts are kept"
            )

    def _wait_for_scheduler(self, loss: _SchedulerLostError) -> None:
        # Dask's client tries to reconnect until its connection timeout, then closes.
        deadline = time.monotonic() + _CONNECT_S + 5
        while self._client.status != "running":
            if self._client.status in ("closing", "closed") or time.monotonic() > deadline:
                raise self._lost_for_good(loss)
            time.sleep(_POLL_S)
        log.info("%s is back", self.name)

    def _lost_for_good(self, loss: _SchedulerLostError) -> TransientError:
        return TransientError(
            f"{self.name} was lost and did not come back ({loss})",
            "start its scheduler again; the retry continues at the first missing part",
        )


@contextlib.contextmanager
def open_engine(address: str = "", workers: int = 0) -> Iterator[Engine]:
    """Opens the engine that a place configures, and closes it.

    Args:
        address: address of a Dask scheduler ("tcp://host:8786"); "" for none.
        workers: number of processes on this machine, if there is no address; below 2, items run in this process.

    Raises:
        TransientError: no scheduler responds at the address, or it has no worker.
        VersionError: the cluster runs other code.
    """
    if address:
        yield from _cluster(address)
    elif workers > 1:
        with contextlib.ExitStack() as started:
            yield Processes(workers, started)
    else:
        yield Engine()


def _call(item: Any, fn: Callable[[Any], Any], build: frozenset[tuple[str, str | None]]) -> Any:
    from distributed import get_worker

    # Checked here, too: a worker may have joined after the cluster was checked, and its bytes would be committed.
    require_build(build, f"worker {get_worker().name}")
    raise_limit()  # here, because a worker of a cluster is started by others
    return fn(item)


def dashboard_of(address: str) -> str:
    """Returns the URL of a scheduler's status page; raises TransientError if no scheduler responds."""
    with _connect(address, timeout=_DASHBOARD_S) as client:
        has_bokeh = client.get_versions(packages=["bokeh"])["scheduler"]["packages"]["bokeh"]
        return str(client.dashboard_link).removesuffix("/status") + status_path(bool(has_bokeh))


def status_path(has_bokeh: bool) -> str:
    """Returns the path of the most informative status page; without bokeh, a page with a table but no plots."""
    return "/status" if has_bokeh else "/info/main/workers.html"


def _cluster(address: str) -> Iterator[Engine]:
    with _connect(address, _CONNECT_S) as client:
        try:
            client.wait_for_workers(1, timeout=_WORKERS_S)
        except TimeoutError:
            raise TransientError(
                f"no worker connected to the Dask scheduler at {address} within {_WORKERS_S} s",
                f"start some: dask worker {address}",
            ) from None
        _check_versions(client, address)
        engine = DaskEngine(client, f"Dask at {address}")
        yield engine
        engine.end()


@contextlib.contextmanager
def _connect(address: str, timeout: float) -> Iterator[Any]:
    from dask.distributed import Client

    try:
        client = Client(address, timeout=timeout)
    except (OSError, TimeoutError, ValueError) as error:
        raise TransientError(
            f"no Dask scheduler responds at {address} ({error})",
            "start one, or set [place.dask] address to an empty string to run without",
        ) from None
    with client:
        yield client


def _check_versions(client: Any, address: str) -> None:
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


@contextlib.contextmanager
def _processes(workers: int) -> Iterator[Engine]:
    from dask.distributed import Client
    from distributed import SubprocessCluster

    with (
        SubprocessCluster(
            n_workers=workers,
            worker_kwargs={"nthreads": 1},
            scheduler_kwargs={"dashboard": False},
            silence_logs=logging.ERROR,
        ) as cluster,
        Client(cluster) as client,
    ):
        engine = DaskEngine(client, f"{workers} processes")
        yield engine
        engine.end()


class VersionError(SluiceError):
    """Processes that must run the same code run different versions."""


def build_here() -> dict[str, str | None]:
    """Returns the versions in this process: of each package, the digest of the code, and the extensions."""
    return {**{package: _version(package) for package in PACKAGES}, **sluice_build()}


def sluice_build() -> dict[str, str]:
    """Returns the digest of Sluice's code in this process, and its extensions."""
    return {CODE: code_digest(), EXTENSIONS: packages()}


def code_digest() -> str:
    """Returns 12 hex digits over the sources of the installed `tasks` package."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    sources = (path for path in root.rglob("*") if path.suffix in SOURCES and root / DEMO not in path.parents)
    for path in sorted(sources):
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@cache
def require_build(build: frozenset[tuple[str, str | None]], name: str) -> None:
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


class WorkerMonitor:
    """Monitors the workers of one cluster and logs changes.

    Args:
        name: name of the cluster in the log.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.lost = 0
        self.pauses = 0
        self.spilled = 0
        self.peak = 0
        self._names: dict[str, str] = {}
        self._spilling: set[str] = set()
        self._paused: set[str] = set()
        self._empty_since: float | None = None

    def begin(self, workers: Workers) -> None:
        """Logs the workers at the start. Processes on this machine join a little later."""
        if workers:
            log.info("%s: %s", self.name, workers_text(workers))
        self._names = {address: str(worker["name"]) for address, worker in workers.items()}

    def update(self, workers: Workers) -> None:
        """Compares the current workers with those of the last update and logs the differences."""
        names = {address: str(worker["name"]) for address, worker in workers.items()}
        if lost := self._names.keys() - names.keys():
            self.lost += len(lost)
            lost_names = ", ".join(sorted(self._names[address] for address in lost))
            log.warning("%s: worker %s is gone; its parts run again elsewhere", self.name, lost_names)
        if names.keys() != self._names.keys():
            log.info("%s: %s", self.name, workers_text(workers))
        self._names = names
        self._empty_since = None if names else self._empty_since or time.monotonic()
        for address, worker in workers.items():
            self._update_memory(address, worker)

    def seconds_without_workers(self) -> float:
        """Returns the number of seconds since the cluster lost its last worker; 0.0 if it has workers."""
        return time.monotonic() - self._empty_since if self._empty_since is not None else 0.0

    def end(self) -> None:
        """Logs a summary if workers were lost, paused or spilled to disk."""
        if self.lost or self.pauses or self.spilled:
            log.info(
                "%s: at most %s in one worker, %s spilled to disk, %d pauses for memory, %d workers gone",
                self.name,
                memory_text(self.peak),
                memory_text(self.spilled),
                self.pauses,
                self.lost,
            )

    def _update_memory(self, address: str, worker: Mapping[str, Any]) -> None:
        metrics = worker.get("metrics") or {}
        memory = int(metrics.get("memory") or 0)
        disk = int((metrics.get("spilled_bytes") or {}).get("disk") or 0)
        self.peak, self.spilled = max(self.peak, memory), max(self.spilled, disk)
        if worker.get("status") != "paused":
            self._paused.discard(address)
        elif address not in self._paused:
            self._paused.add(address)
            self.pauses += 1
            log.warning(
                "%s: worker %s has paused at %s of %s; give workers more memory or make parts smaller",
                self.name,
                worker["name"],
                memory_text(memory),
                memory_text(int(worker.get("memory_limit") or 0)),
            )
        if not disk:
            self._spilling.discard(address)
        elif address not in self._spilling:
            self._spilling.add(address)
            log.info("%s: worker %s spills to disk (%s so far)", self.name, worker["name"], memory_text(disk))


def workers_text(workers: Workers) -> str:
    """Formats workers as "2 workers, 2 threads, 8.0 GiB of memory (4.0 GiB each)"."""
    if not workers:
        return "no worker"
    limits = [int(worker.get("memory_limit") or 0) for worker in workers.values()]
    threads = sum(int(worker["nthreads"]) for worker in workers.values())
    low, high = min(limits), max(limits)
    each = memory_text(low) if low == high else f"{memory_text(low)} to {memory_text(high)}"
    memory = f"{memory_text(sum(limits))} of memory ({each} each)" if low else "no memory limit"
    return f"{len(workers)} worker{'s' * (len(workers) > 1)}, {threads} thread{'s' * (threads > 1)}, {memory}"


def memory_text(size: int) -> str:
    """Formats a number of bytes.

    >>> memory_text(0), memory_text(3 << 20), memory_text(5 << 29)
    ('0 MiB', '3 MiB', '2.5 GiB')
    """
    return f"{size / 2**30:.1f} GiB" if size >= 1 << 30 else f"{size / 2**20:.0f} MiB"

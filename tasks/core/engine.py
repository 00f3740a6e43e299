"""Executors for the parts of a stage: this process, processes on this machine, or a Dask cluster.

All of them give the same results. Only this module imports Dask. Processes on this machine are Dask workers, too
(`SubprocessCluster`, about 4 s to start), because plain multiprocessing cannot start children in an Airflow task.

A cluster may grow, shrink, or lose workers or its scheduler while a stage runs. Items without a result run again, which
is safe because each part is committed once, whichever worker makes it. A cluster that runs other versions is rejected
before any work (`tasks.core.workers.versions`).

The cluster has a window of items at a time, in groups if they are small (`tasks.core.workers.window`). So the memory of
this process does not depend on the number of items.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any
from uuid import uuid4

from tasks.core.errors import TransientError
from tasks.core.open_files import raise_limit
from tasks.core.workers.monitor import WorkerMonitor, Workers
from tasks.core.workers.versions import Build, build_here, check_versions, require_build
from tasks.core.workers.window import Done, Window, work

log = logging.getLogger("sluice.engine")

_CONNECT_S = 30
"""Seconds to wait for a scheduler to respond, at the start and after it was lost."""

_DASHBOARD_S = 3
_WORKERS_S = 50
"""Seconds to wait for the first worker, and longest time that a stage continues without any worker."""

_CHECK_EVERY_S = 5.0
_POLL_S = 0.1
_MAX_LOSSES = 3
_CLOSED = ("closing", "closed")
_CHANGES = ("add-worker", "remove-worker")


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
        workers = self._workers() or {}
        self._monitor.begin(workers)
        self._threads = _threads(workers)
        self._checked = time.monotonic()

    def map(self, fn: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """See `Engine.map`. Items that were running on a lost worker or scheduler run again.

        Raises:
            TransientError: the same item repeatedly killed its workers, there was no worker for 50 s, or the scheduler
                was lost and did not return within half a minute, or was lost more than three times.
            VersionError: a worker that has joined runs other code.
        """
        window = Window(len(items))
        for losses in count(1):
            try:
                yield from self._round(fn, items, window)
                return
            except _SchedulerLostError as loss:
                if losses > _MAX_LOSSES:
                    raise self._lost_for_good(f"was lost {losses} times", loss) from None
                log.warning("%s was lost (%s); waiting for it with %d parts left", self.name, loss, window.waiting)
                self._wait_for_scheduler(loss)

    def end(self) -> None:
        """Logs a summary of the workers: losses, pauses, memory."""
        self._monitor.end()

    def _round(self, fn: Callable[[Any], Any], items: Sequence[Any], window: Window) -> Iterator[tuple[int, Any]]:
        """Yields the results of the items that have none yet; raises _SchedulerLostError."""
        from distributed.client import ClosedClientError
        from distributed.comm import CommClosedError

        running: dict[Any, list[int]] = {}
        unsent: list[list[int]] = []
        arrived: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
        try:
            self._checked = -_CHECK_EVERY_S  # workers may have joined before the subscription
            self._monitor.idle()
            self._client.subscribe_topic("all", partial(_put_change, arrived))
            send = self._sender(fn, arrived)
            while running or window.waiting:
                unsent = list(window.groups(sum(map(len, running.values())), self._threads))
                running.update(zip(send([[items[index] for index in group] for group in unsent]), unsent, strict=True))
                unsent = []
                for future, outcome in _take(arrived):
                    if future is None:
                        self._follow(outcome, running, window)
                    # A group whose worker was lost is no longer awaited.
                    elif group := running.get(future):
                        results = self._results(future, outcome, group, window)
                        # Dask does not compute it again when its worker dies later.
                        del running[future]
                        future.release()
                        yield from zip(group, results, strict=False)
                future = outcome = None
                self._check_workers()
        except (CommClosedError, ClosedClientError) as error:
            raise _SchedulerLostError(" ".join(str(error).split())) from error
        finally:
            for group in [*running.values(), *unsent]:
                window.again(group)
            with contextlib.suppress(Exception):
                # `unsubscribe_topic` leaves the handler in the client, and with it the queue.
                self._client.subscribe_topic("all", _ignore)
                self._client.unsubscribe_topic("all")
            for future in running:
                future.release()  # it is in the traceback of its cancellation, too, until garbage collection

    def _sender(
        self, fn: Callable[[Any], Any], arrived: SimpleQueue[tuple[Any, Any]]
    ) -> Callable[[list[list[Any]]], list[Any]]:
        """Returns a function that starts groups of items; their futures arrive with their outcomes."""
        from distributed.protocol import pickle

        # `fn` may contain whole artifact records. As the result of a task, it is sent to each worker once instead of
        # with each group. Unlike scattered data, a task's result is computed again when its worker dies.
        shared = self._client.submit(pickle.loads, pickle.dumps(fn), pure=False)
        # Tasks of one family, so that Dask keeps those that no worker is free for in the scheduler (worker-saturation):
        # a worker that joins finds work, and a lost one takes few with it.
        family, numbers = f"parts-{uuid4().hex}", count()

        def send(groups: list[list[Any]]) -> list[Any]:
            if not groups:
                return []
            keys = [(family, next(numbers)) for _ in groups]
            payloads = list(map(pickle.dumps, groups))
            futures = self._client.map(_call, payloads, fn=shared, build=self._build, key=keys)
            for future in futures:
                self._client.loop.add_callback(self._await, future, arrived)
            return list(futures)

        return send

    async def _await(self, future: Any, arrived: SimpleQueue[tuple[Any, Any]]) -> None:
        """Fetches the outcome of a task in the client's thread, where Dask bundles what is fetched at the same time.

        If a worker dies before its results are fetched, Dask computes them again, and waits as long as there is no
        worker. The thread of the stage does not wait with it.
        """
        try:
            arrived.put((future, await self._client.gather(future, asynchronous=True)))
        except (Exception, asyncio.CancelledError) as error:
            arrived.put((future, error))

    def _results(self, future: Any, outcome: Any, group: list[int], window: Window) -> list[Any]:
        """Returns the results of a group, and puts its other items back into the window."""
        from distributed import KilledWorker

        if isinstance(outcome, Done):
            window.measured(outcome)
            window.again(group[len(outcome.results) :])
            return outcome.results
        # No item has raised it.
        if isinstance(outcome, OSError | CancelledError | asyncio.CancelledError) and future.status != "error":
            raise _SchedulerLostError(" ".join(str(outcome).split()))
        if not isinstance(outcome, KilledWorker):
            raise outcome
        if len(group) > 1:
            window.alone(group)
            return []
        raise TransientError(
            f"workers of {self.name} died repeatedly while they made the same part ({outcome})",
            "give them more memory, or make parts smaller",
        ) from outcome

    def _follow(self, event: Any, running: dict[Any, list[int]], window: Window) -> None:
        """Takes account of a worker that has joined or left."""
        self._checked = -_CHECK_EVERY_S
        if event["action"] == "add-worker":
            return
        if event["expected"]:
            self._monitor.expect_removal(event["worker"])
            return
        # One item may have killed the worker. Dask would try the whole group again.
        lost = [future for future in running if future.key in event["processing-tasks"] and len(running[future]) > 1]
        for future in lost:
            window.alone(running.pop(future))
            future.release()

    def _check_workers(self) -> None:
        if time.monotonic() - self._checked < _CHECK_EVERY_S:
            return
        self._checked = time.monotonic()
        if self._client.status in _CLOSED:
            raise _SchedulerLostError("its client has closed")
        if self._client.status == "running" and (workers := self._workers()) is not None:
            self._monitor.update(workers)
            self._threads = _threads(workers)
        if self._monitor.seconds_without_workers() > _WORKERS_S:
            raise TransientError(
                f"{self.name} has had no worker for {_WORKERS_S} s", "start workers; completed parts are kept"
            )

    def _workers(self) -> Workers | None:
        """Returns the workers of the cluster; None if they are unknown, because the scheduler does not respond."""
        # `scheduler_info` returns an attribute that the client overwrites every 2 s, without any workers.
        try:
            workers: Workers = self._client.sync(self._client.scheduler.identity, n_workers=-1)["workers"]
        except (OSError, RuntimeError, AttributeError):  # the last two if the client has just closed
            return None
        return workers

    def _wait_for_scheduler(self, loss: _SchedulerLostError) -> None:
        # Dask's client tries to reconnect until its connection timeout, then closes.
        deadline = time.monotonic() + _CONNECT_S + 5
        while self._client.status != "running":
            if self._client.status in _CLOSED or time.monotonic() > deadline:
                raise self._lost_for_good("was lost and did not come back", loss)
            time.sleep(_POLL_S)
        log.info("%s is back", self.name)

    def _lost_for_good(self, what: str, loss: _SchedulerLostError) -> TransientError:
        return TransientError(
            f"{self.name} {what} ({loss})",
            "start its scheduler again; the retry continues at the first missing part",
        )


@contextlib.contextmanager
def open_engine(address: str = "", workers: int = 0) -> Iterator[Engine]:
    """Opens the engine that a place configures, and closes it.

    Args:
        address: address of a Dask scheduler ("tcp://host:8786"); "" for none.
        workers: number of processes on this machine, if there is no address; below 2, items run in this process.

    Raises:
        TransientError: no scheduler responds at the address, it has no worker, or one of them is lost before any work.
        VersionError: the cluster runs other code.
    """
    if address:
        yield from _cluster(address)
    elif workers > 1:
        with contextlib.ExitStack() as started:
            yield Processes(workers, started)
    else:
        yield Engine()


def _call(payload: bytes, fn: Callable[[Any], Any], build: Build) -> Done:
    """Runs a group of items on a worker."""
    from distributed import get_worker
    from distributed.protocol import pickle

    # Checked here, too: a worker may have joined after the cluster was checked, and its bytes would be committed.
    require_build(build, f"worker {get_worker().name}")
    raise_limit()  # here, because a worker of a cluster is started by others
    return work(fn, pickle.loads(payload))


def _put_change(arrived: SimpleQueue[tuple[Any, Any]], event: tuple[float, Any]) -> None:
    """Puts an event into the queue if a worker has joined or left; the topic has those of all clients."""
    if isinstance(event[1], dict) and event[1].get("action") in _CHANGES:
        arrived.put((None, event[1]))


def _ignore(event: tuple[float, Any]) -> None:
    """Handles the events that arrive after a map."""


def _take(arrived: SimpleQueue[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """Yields what has arrived; waits for the first for a moment."""
    with contextlib.suppress(Empty):
        yield arrived.get(timeout=_POLL_S)
        while True:
            yield arrived.get_nowait()


def _threads(workers: Workers) -> int:
    return max(1, sum(int(worker["nthreads"]) for worker in workers.values()))


def dashboard_of(address: str) -> str:
    """Returns the URL of a scheduler's status page; raises TransientError if no scheduler responds."""
    with _connect(address, timeout=_DASHBOARD_S) as client, _responds(address):
        has_bokeh = client.get_versions(packages=["bokeh"])["scheduler"]["packages"]["bokeh"]
        return str(client.dashboard_link).removesuffix("/status") + status_path(bool(has_bokeh))


def status_path(has_bokeh: bool) -> str:
    """Returns the path of the most informative status page; without bokeh, a page with a table but no plots."""
    return "/status" if has_bokeh else "/info/main/workers.html"


def _cluster(address: str) -> Iterator[Engine]:
    with _connect(address, _CONNECT_S) as client:
        with _responds(address):
            try:
                client.wait_for_workers(1, timeout=_WORKERS_S)
            except TimeoutError:
                raise TransientError(
                    f"no worker connected to the Dask scheduler at {address} within {_WORKERS_S} s",
                    f"start some: dask worker {address}",
                ) from None
            check_versions(client, address)
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


@contextlib.contextmanager
def _responds(address: str) -> Iterator[None]:
    """Raises TransientError if a scheduler, or one of its workers, is lost before any work."""
    try:
        yield
    except OSError as error:  # includes Dask's CommClosedError
        raise TransientError(
            f"the Dask cluster at {address} was lost before any work ({error})",
            "see the logs of its scheduler and workers, and try again",
        ) from error


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

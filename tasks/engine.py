"""Where the parts of a stage run: in this process, in processes of this machine, or on a Dask cluster.

Used by the runner, which opens an engine for a stage, and by `Output.map_parts`, which maps over it. What is computed
is the same everywhere; only this module imports Dask. Processes of this machine are Dask workers too
(`SubprocessCluster`, about 4 s to start): plain multiprocessing cannot start children inside an Airflow task.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tasks.errors import TransientError

log = logging.getLogger("sluice.engine")

_CONNECT_S = 20


class Engine:
    """Runs a function over items, one after the other, in this process."""

    name = "in-process"
    workers = 1

    def map(self, fn: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yields (index of the item, result) as results arrive, in any order; raises what `fn` raises."""
        for index, item in enumerate(items):
            yield index, fn(item)


class DaskEngine(Engine):
    """Runs a function over items on the workers of a Dask cluster."""

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self.name = name
        self.workers = max(1, sum(client.nthreads().values()))

    def map(self, fn: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """See `Engine.map`. A lost worker's items run again elsewhere.

        Raises:
            TransientError: workers kept dying under the same item, or the cluster was lost.
        """
        from dask.distributed import as_completed
        from distributed import KilledWorker
        from distributed.client import FutureCancelledError
        from distributed.comm import CommClosedError

        futures = {self._client.submit(fn, item, pure=False): index for index, item in enumerate(items)}
        try:
            for future in as_completed(futures):
                try:
                    yield futures[future], future.result()
                except KilledWorker as error:
                    raise TransientError(
                        f"Dask workers kept dying under one part ({error})", "give them more memory"
                    ) from error
                except (FutureCancelledError, CommClosedError) as error:
                    raise TransientError(f"the Dask cluster {self.name} was lost ({error})") from error
        finally:
            with contextlib.suppress(Exception):
                self._client.cancel(list(futures), reason="the stage has ended")


@contextlib.contextmanager
def open_engine(address: str = "", workers: int = 0) -> Iterator[Engine]:
    """Opens the engine that a place asks for, and closes it.

    Args:
        address: a Dask scheduler ("tcp://host:8786"); empty for none.
        workers: without an address, processes on this machine; below 2 the work runs in this process.

    Raises:
        TransientError: no scheduler answers at the address.
    """
    if address:
        yield from _cluster(address)
    elif workers > 1:
        yield from _processes(workers)
    else:
        yield Engine()


def _cluster(address: str) -> Iterator[Engine]:
    from dask.distributed import Client

    try:
        client = Client(address, timeout=_CONNECT_S)
    except (OSError, TimeoutError, ValueError) as error:
        raise TransientError(
            f"no Dask scheduler answers at {address} ({error})",
            "start one, or empty [place.dask] address to work without",
        ) from None
    with client:
        client.wait_for_workers(1, timeout=_CONNECT_S)
        yield DaskEngine(client, f"Dask at {address}")


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
        yield DaskEngine(client, f"{workers} processes")

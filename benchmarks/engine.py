"""Small parts on Dask: parts per second and memory of the client, in a window and all at once.

    python -m benchmarks.engine [--rounds 1]

Two workers of one thread on this machine call `abs` with 1,000, 4,000 and 16,000 numbers. `DaskEngine` sends a window
of groups. The baseline submits one task per number, all at once, and fetches each result by itself. Each run is a
process of its own with its own cluster; the two take turns. Memory is the growth of the client's RSS while results
arrive, at its largest. Exponents are those of a power law in the number of parts: 0 is constant, 1 linear. Writes
`engine.json`.
"""

import json
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil

from benchmarks.harness import in_turn, keep, last_line, parser
from tasks.core.engine import DaskEngine, open_engine

SIZES = (1_000, 4_000, 16_000)
ONE_RUN = "import sys\nfrom benchmarks.engine import measure\nmeasure(sys.argv[1], int(sys.argv[2]))"


def all_at_once(client: Any, count: int) -> Iterator[int]:
    """Yields the results of one task per number."""
    from dask.distributed import as_completed

    futures = client.map(abs, range(count), pure=False)
    waiting = dict.fromkeys(futures)
    completed = as_completed(futures)
    del futures
    for future in completed:
        del waiting[future]
        yield future.result()


def engine_of(pool: Any) -> DaskEngine:
    """Returns the engine of a pool of processes after its first work, so that its workers have joined and imported."""
    for _ in range(2):
        assert len(list(pool.map(abs, range(100)))) == 100
        time.sleep(2)
    engine: DaskEngine = pool._engine
    return engine


def measure(arm: str, count: int) -> None:
    """Prints seconds, CPU seconds and bytes of memory of one run as a line of JSON."""
    with open_engine(workers=2) as pool:
        engine = engine_of(pool)
        if arm == "all at once":
            results = all_at_once(engine._client, count)
        else:
            results = (result for _, result in engine.map(abs, range(count)))
        client = psutil.Process()
        others = client.children(recursive=True)
        memory = Peak(client)
        cpu = [_cpu(client), sum(map(_cpu, others))]
        begin = time.monotonic()
        assert sum(results) == count * (count - 1) // 2
        seconds = time.monotonic() - begin
        cpu = [_cpu(client) - cpu[0], sum(map(_cpu, others)) - cpu[1]]
        print(json.dumps({"s": seconds, "client_cpu_s": cpu[0], "other_cpu_s": cpu[1], "bytes": memory.growth()}))


class Peak:
    """Samples the RSS of a process every 10 ms."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._before = self._most = process.memory_info().rss
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def growth(self) -> int:
        """Ends the sampling; returns the bytes by which the process has grown at its largest."""
        self._ended.set()
        self._thread.join()
        return int(self._most - self._before)

    def _sample(self) -> None:
        while not self._ended.wait(0.01):
            self._most = max(self._most, self._process.memory_info().rss)


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def exponent(values: list[float]) -> float:
    """Returns the exponent of the power law through the values of `SIZES`."""
    return round(float(np.polyfit(np.log(SIZES), np.log(np.maximum(values, 1e-9)), 1)[0]), 2)


def summary(runs: list[list[dict[str, float]]]) -> dict[str, Any]:
    """Returns the figures of one arm from its runs, by size and round: the fastest, with the least memory."""
    seconds = [min(run["s"] for run in rounds) for rounds in runs]
    sizes = {
        f"{count:,}": {
            "parts_per_s": round(count / least),
            "client_cpu_ms_per_part": round(1e3 * min(run["client_cpu_s"] for run in rounds) / count, 3),
            "scheduler_and_workers_cpu_ms_per_part": round(1e3 * min(run["other_cpu_s"] for run in rounds) / count, 3),
            "client_kb": round(min(run["bytes"] for run in rounds) / 1e3),
            "client_bytes_per_part": round(min(run["bytes"] for run in rounds) / count),
        }
        for count, least, rounds in zip(SIZES, seconds, runs, strict=True)
    }
    memory = [min(run["bytes"] for run in rounds) for rounds in runs]
    return {**sizes, "exponent_of_time": exponent(seconds), "exponent_of_memory": exponent(memory)}


def main() -> None:
    """Runs the benchmark."""
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=1)
    rounds = options.parse_args().rounds
    found: dict[str, list[list[dict[str, float]]]] = {"all at once": [], "window": []}
    for count in SIZES:
        runs = {
            arm: lambda arm=arm, count=count: json.loads(last_line(sys.executable, ONE_RUN, arm, str(count)))
            for arm in found
        }
        for arm, several in in_turn(runs, rounds).items():
            found[arm].append(several)
            print(f"{count:,} {arm}: {several}", flush=True)
    keep("engine", {"rounds": rounds, **{arm: summary(runs) for arm, runs in found.items()}})


if __name__ == "__main__":
    main()

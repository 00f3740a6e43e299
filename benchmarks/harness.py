"""Common parts of benchmarks: results, texts, environments of peers, rounds in turn, and the cost of a process.

`keep` writes `benchmarks/results/<name>.json`; SLUICE_RESULTS names another folder for trial runs.
"""

import argparse
import io
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psutil
import pyarrow as pa

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "benchmarks" / "results"
RESULTS = Path(os.environ.get("SLUICE_RESULTS") or KEPT)
STATE = ROOT / ".sluice" / "benchmarks"
"""What is kept from run to run: environments of peers, made-up webs, downloaded packages."""
ONE_THREAD = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ARROW_NUM_THREADS", "RAYON_NUM_THREADS"), "1"),
    "TOKENIZERS_PARALLELISM": "false",
}
"""Environment variables that keep libraries at one thread."""
_HEAD = ("benchmark", "date", "machine")
_T = TypeVar("_T")


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Returns the parser of a benchmark; `--help` shows the docstring of its module."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def keep(name: str, figures: Mapping[str, Any]) -> None:
    """Writes the figures, with date and machine before them, as the result of that name, and prints them."""
    target = RESULTS / f"{name}.json"
    store(name, figures, target)
    print(target.read_text())


def store(name: str, figures: Mapping[str, Any], target: Path) -> None:
    """Writes the figures, with date and machine before them, to `target`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    result = {"benchmark": name, "date": datetime.now(UTC).date().isoformat(), "machine": machine(), **figures}
    target.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def last(name: str) -> dict[str, Any]:
    """Returns the figures of the last result, without date and machine; empty if there is no result."""
    paths = [folder / f"{name}.json" for folder in (RESULTS, KEPT)]
    result: dict[str, Any] = next((json.loads(path.read_text()) for path in paths if path.exists()), {})
    return {key: value for key, value in result.items() if key not in _HEAD}


def machine() -> dict[str, Any]:
    """Returns processor, number of cores and version of Python."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = names[0] if names else platform.processor()
    return {"cpu": processor, "cores": os.cpu_count(), "python": platform.python_version()}


def json_lines(path: Path | str) -> Iterator[dict[str, Any]]:
    """Yields the objects of a file of JSON lines, plain or compressed."""
    with pa.input_stream(str(path), compression="detect") as file:
        yield from map(json.loads, io.TextIOWrapper(file, encoding="utf-8", newline="\n"))


def texts_of(path: Path | str) -> list[str]:
    """Returns the field `text` of every line of a file of JSON lines."""
    return [row["text"] for row in json_lines(path)]


def python_sources() -> list[str]:
    """Returns up to 1,000 source files of this Python's standard library: a corpus available on every machine."""
    paths = sorted(Path(os.__file__).parent.glob("**/*.py"))[:1000]
    return [path.read_text("utf-8", "replace") for path in paths if "site-packages" not in path.parts]


def peer_python(name: str, packages: Sequence[str]) -> str:
    """Returns the Python of the environment `name`, which is recreated unless it has exactly these packages."""
    folder = STATE / name
    python, made = folder / "bin" / "python", folder / "peers.json"
    if not made.exists() or json.loads(made.read_text()) != list(packages):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True)
        made.write_text(json.dumps(list(packages)))
    return str(python)


def in_turn(runs: Mapping[str, Callable[[], _T]], rounds: int) -> dict[str, list[_T]]:
    """Runs each contender once per round, so that load affects all alike; returns their results."""
    found: dict[str, list[_T]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            found[name].append(run())
    return found


def least(runs: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Returns the minimum result of each contender over the rounds, taken in turn."""
    return {name: min(values) for name, values in in_turn(runs, rounds).items()}


def spent(work: Callable[[], object]) -> float:
    """Returns the CPU seconds of one call in this process."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def last_line(python: str, program: str, *arguments: str) -> str:
    """Runs a program, given as text, in a separate process on one thread; returns the last line of its output."""
    done = subprocess.run(
        [python, "-c", program, *arguments],
        cwd=ROOT,
        env={**os.environ, **ONE_THREAD},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout.splitlines()[-1]


class Cost(NamedTuple):
    """Cost of a command, including its children: CPU seconds (user and system) and peak memory in bytes."""

    cpu_s: float
    peak_bytes: int
    output: str


def cost(command: Sequence[str]) -> Cost:
    """Runs a command to its end, on one thread.

    Raises:
        RuntimeError: it failed; with the end of its standard error.
    """
    # Bytecode is cached between runs, as for an installed program.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**environment, **ONE_THREAD}, stdout=subprocess.PIPE, stderr=errors
        )
        assert process.stdout is not None
        output = process.stdout.read().decode()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            raise RuntimeError(f"{' '.join(command)[:200]}\n{errors.read().decode('utf-8', 'replace')[-3000:]}")
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, output)


class Watch:
    """Samples CPU time and memory of a process and its descendants every 50 ms, until it ends.

    Attributes:
        largest, total: bytes of RSS, including pages of mapped files: of the largest process, of all at one time.
        largest_own, total_own: the same without shared pages.
    """

    def __init__(self, pid: int) -> None:
        self.largest = self.total = self.largest_own = self.total_own = 0
        self._cpu: dict[int, float] = {}
        self._process = psutil.Process(pid)
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all sampled processes."""
        return sum(self._cpu.values())

    def _watch(self) -> None:
        while self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE:
            rss, own = [], []
            try:
                several = [self._process, *self._process.children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            for one in several:
                try:
                    memory, times = one.memory_info(), one.cpu_times()
                except psutil.NoSuchProcess:
                    continue
                rss.append(memory.rss)
                own.append(memory.rss - memory.shared)
                self._cpu[one.pid] = times.user + times.system
            self.largest, self.total = max([self.largest, *rss]), max(self.total, sum(rss))
            self.largest_own, self.total_own = max([self.largest_own, *own]), max(self.total_own, sum(own))
            time.sleep(0.05)

    def join(self) -> None:
        """Waits for the end of the process."""
        self._thread.join()


def watched(command: Sequence[str]) -> Watch:
    """Runs a command to its end; returns its cost, including children.

    Raises:
        RuntimeError: it failed.
    """
    child = subprocess.Popen(command, cwd=ROOT)
    watch = Watch(child.pid)
    if child.wait():
        raise RuntimeError(f"{' '.join(command)[:200]}: exit code {child.returncode}")
    watch.join()
    return watch

"""The last result of a benchmark, with date and machine: `benchmarks/results/<name>.json`."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def keep(name: str, figures: Mapping[str, Any]) -> None:
    """Writes the figures with date and machine before them, and prints them."""
    target = ROOT / "benchmarks" / "results" / f"{name}.json"
    store(name, figures, target)
    print(target.read_text())


def store(name: str, figures: Mapping[str, Any], target: Path) -> None:
    """Writes the figures with date and machine before them to `target`."""
    target.parent.mkdir(exist_ok=True)
    result = {"benchmark": name, "date": datetime.now(UTC).date().isoformat(), "machine": machine(), **figures}
    target.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def machine() -> dict[str, Any]:
    """Returns processor, number of cores and version of Python."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = names[0] if names else platform.processor()
    return {"cpu": processor, "cores": os.cpu_count(), "python": platform.python_version()}


def peer_python(folder: Path, packages: Sequence[str]) -> str:
    """Makes an environment with the peers' packages, unless it is there; returns its Python."""
    python, made = folder / "bin" / "python", folder / "peers.json"
    if not made.exists() or json.loads(made.read_text()) != list(packages):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True)
        made.write_text(json.dumps(list(packages)))
    return str(python)


def one_thread() -> dict[str, str]:
    """Returns the environment variables that keep libraries at one thread."""
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ARROW_NUM_THREADS", "RAYON_NUM_THREADS")
    return {**dict.fromkeys(threads, "1"), "TOKENIZERS_PARALLELISM": "false"}


def cpu_seconds(python: str, program: str, argument: str) -> float:
    """Runs one contender in a process of its own, on one thread; returns the CPU seconds that it prints last."""
    done = subprocess.run(
        [python, "-c", program, argument],
        cwd=ROOT,
        env={**os.environ, **one_thread()},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return float(done.stdout.split()[-1])

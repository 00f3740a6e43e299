"""Ranks as new processes, in which memory is measured. Not a test module.

A forked rank inherits the freed heap of its parent. malloc serves tensors from it before it maps memory of their own,
and does not return it when they are freed, so that the peak is as large as what the parent has ever held.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.tasks.trainer.gangs import free_port

LIMIT_S = 3600
"""After which a rank hangs; on a busy machine the largest ones need many minutes."""


def largest_growth(module: str, ranks: int, job: dict[str, Any], folder: Path) -> int:
    """Runs `python -m module job.json result.json` as each rank, with one thread; returns the largest result."""
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    # Freed tensors are returned to the system, so that the peak is that of living ones.
    shared = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(ranks)}
    shared |= {"LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    results = [folder / f"{rank}.json" for rank in range(ranks)]
    command = [sys.executable, "-W", "ignore", "-m", module, str(path)]
    started = [
        subprocess.Popen([*command, str(result)], env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank, result in enumerate(results)
    ]
    try:
        assert [process.wait(timeout=LIMIT_S) for process in started] == [0] * ranks
    finally:
        for process in started:
            process.kill()
    return max(int(result.read_text()) for result in results)

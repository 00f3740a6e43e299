"""CPU seconds of a command, its children included."""

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PEER = str(Path(__file__).with_name("peer_datatrove.py"))


def cpu_seconds(command: Sequence[str]) -> tuple[float, str]:
    """Runs a command on one thread; returns its CPU seconds, children included, and what it printed."""
    single = {"ARROW_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **single}, stdout=subprocess.PIPE, stderr=errors
        )
        assert process.stdout is not None
        said = process.stdout.read().decode()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            raise RuntimeError(errors.read().decode("utf-8", "replace")[-3000:])
    return used.ru_utime + used.ru_stime, said

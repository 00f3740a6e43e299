"""Starts and restarts the ranks of one node: `python -m tasks.trainer.launch.agent --spec spec.json --nproc 2`.

Wraps torchrun, which returns 1 for every failure, with exit codes that distinguish failures: 0 done; 2 the run cannot
work as configured; 137 a rank was killed (usually out of memory) more often than restarts are allowed; 143 stopped
after a checkpoint, by SIGTERM or by a preemption notice (see `preemption`). Several nodes are configured by torchrun's
variables (see `gang`) and run without torchrun (see `gang_agent`).

A single rank needs no rendezvous and is supervised without torchrun, which avoids importing torch a second time (1.5 of
the 4 CPU-seconds of an empty run).
"""

import argparse
import logging
import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

from tasks.core.errors import InputError
from tasks.trainer.config import TrainSpec
from tasks.trainer.launch import preemption
from tasks.trainer.launch.gang import Gang
from tasks.trainer.launch.launcher import end_with_parent
from tasks.trainer.logs import METRICS, PREEMPTION, Faults, last_step

MAX_RESTARTS = 5
"""Maximum number of restarts of all ranks after a crash; after that the agent returns the exit code."""
FINAL = (0, 2, 143)
"""Exit codes of a rank that do not lead to a restart."""

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # without it, torchrun logs a long warning; ranks set their own number
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "100",  # seconds to save after SIGTERM; below the grace period of the pod
    # By default all restarts share one store (torch 2.13, dynamic_rendezvous.py), in which ranks find the addresses of
    # the previous attempt. Connections are then refused, which uses up a restart, or ranks wait for each other forever.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    # Keep freed memory. Otherwise glibc maps and unmaps large buffers; zeroing their pages took a tenth of a step.
    "MALLOC_MMAP_THRESHOLD_": str(2**31 - 1),
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
    "MALLOC_TOP_PAD_": str(2**26),
}


def main() -> int:
    """Runs all ranks of this node until they end; returns the exit code."""
    end_with_parent()
    # torchrun installs its handlers when it starts the ranks; until then, SIGTERM would be ignored by PID 1.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    parser = argparse.ArgumentParser(prog="python -m tasks.trainer.launch.agent")
    parser.add_argument("--spec", type=Path, required=True, help="JSON file of a TrainSpec")
    parser.add_argument("--nproc", type=int, default=1, help="ranks on this node")
    arguments = parser.parse_args()
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        spec = TrainSpec.read(arguments.spec)
    except InputError as error:
        print(error, file=sys.stderr, flush=True)
        return error.exit_code
    out = Path(spec.out)
    if spec.place.preemption:
        preemption.watch(spec.place.preemption, partial(_handle_preemption, out))
    if gang := Gang.from_environment():
        from tasks.trainer.launch.gang_agent import run_gang

        prefix = f"[node {gang.node}]"
        logging.basicConfig(level=logging.INFO, format=f"{prefix} %(levelname)s %(message)s", stream=sys.stderr)
        return run_gang(arguments.spec, out, arguments.nproc, gang, MAX_RESTARTS, FINAL)
    return run_alone(arguments.spec) if arguments.nproc == 1 else run_ranks(arguments.spec, arguments.nproc)


def _handle_preemption(out: Path, message: str) -> None:
    """Records a preemption notice in the run's folder and sends SIGTERM to this process."""
    try:
        remedy = "nothing: the run saves and ends, and resumes on another machine"
        Faults(out).report(PREEMPTION, last_step(out / METRICS), message, remedy)
    finally:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def run_alone(spec: Path) -> int:
    """Runs one rank and restarts it after a crash; returns its exit code like a shell."""
    code = 1
    stops: list[int] = []
    for _ in range(1 + MAX_RESTARTS):
        rank = subprocess.Popen([sys.executable, "-m", "tasks.trainer", "--spec", str(spec)])
        signal.signal(signal.SIGTERM, partial(_forward_signal, rank, stops))
        code = rank.wait()
        if code in FINAL or stops:
            break
        print(f"the rank ended with {code}; it resumes from its newest checkpoint", file=sys.stderr, flush=True)
    return 128 - code if code < 0 else code


def _forward_signal(rank: "subprocess.Popen[bytes]", stops: list[int], number: int, frame: object) -> None:
    stops.append(number)
    rank.send_signal(number)


def run_ranks(spec: Path, nproc: int) -> int:
    """Runs torchrun in this process; returns the exit code of the first rank that failed, like a shell."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    arguments = [
        "--standalone",
        f"--nproc-per-node={nproc}",
        f"--max-restarts={MAX_RESTARTS}",
        "--monitor-interval=0.1",
    ]
    try:
        run.main([*arguments, "-m", "tasks.trainer", "--spec", str(spec)])
    except ChildFailedError as error:
        code = int(error.get_first_failure()[1].exitcode)
        return 128 - code if code < 0 else code
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Starts and restarts the ranks of one node: `python -m tasks.trainer.launch.agent --spec spec.json --nproc 2`.

Wraps torchrun, which returns 1 for every failure, with exit codes that tell failures apart: 0 is done, 2 a run that
cannot work as configured, 137 a rank that was killed (usually out of memory) more often than it may be restarted, 143
stopped after a checkpoint, by SIGTERM or by the notice of a preemption (see `preemption`). Several nodes are described
by torchrun's variables (see `gang`) and run without torchrun (see `gang_agent`).

A single rank needs no rendezvous: it is supervised here without torchrun, which saves importing torch a second time
(1.5 CPU-seconds of the 4 that an empty run takes).
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

from tasks.trainer.config import TrainSpec
from tasks.trainer.launch import preemption
from tasks.trainer.launch.gang import Gang
from tasks.trainer.launch.launcher import end_with_parent
from tasks.trainer.logs import METRICS, PREEMPTION, Faults, last_step
from tasks.trainer.place import preemption_here

MAX_RESTARTS = 5
"""How many crashes are followed by a restart of all ranks; after that the agent returns the exit code."""
FINAL = (0, 2, 143)
"""Exit codes of a rank after which nothing is restarted."""

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # otherwise torchrun logs a long warning; ranks set their own number
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "100",  # seconds to save in after SIGTERM; below the grace of the pod
    # By default all restarts share one store (torch 2.13, dynamic_rendezvous.py), where ranks find the addresses of the
    # previous attempt: connections are refused, which uses up a restart, or the ranks wait for one another for ever.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    # Keep freed memory: glibc maps and unmaps large buffers otherwise, and clearing their pages took a tenth of a step.
    "MALLOC_MMAP_THRESHOLD_": str(2**31 - 1),
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
    "MALLOC_TOP_PAD_": str(2**26),
}


def main() -> int:
    """Runs all ranks of this node to the end; returns the exit code."""
    end_with_parent()
    # torchrun installs its handlers when it starts the ranks; before that, as PID 1, SIGTERM would be ignored.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    parser = argparse.ArgumentParser(prog="python -m tasks.trainer.launch.agent")
    parser.add_argument("--spec", type=Path, required=True, help="JSON file of a TrainSpec")
    parser.add_argument("--nproc", type=int, default=1, help="ranks on this node")
    arguments = parser.parse_args()
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if notice := preemption_here():
        preemption.watch(notice, partial(_preempted, arguments.spec))
    if gang := Gang.from_environment():
        from tasks.trainer.launch.gang_agent import run_gang

        where = f"[node {gang.node}]"
        logging.basicConfig(level=logging.INFO, format=f"{where} %(levelname)s %(message)s", stream=sys.stderr)
        return run_gang(arguments.spec, arguments.nproc, gang, MAX_RESTARTS, FINAL)
    return run_alone(arguments.spec) if arguments.nproc == 1 else run_ranks(arguments.spec, arguments.nproc)


def _preempted(spec: Path, what: str) -> None:
    """Records the notice of a preemption and does what SIGTERM does, by SIGTERM."""
    out = Path(TrainSpec.model_validate_json(spec.read_bytes()).out)
    try:
        do = "nothing: the run saves and ends, and resumes on another machine"
        Faults(out).report(PREEMPTION, last_step(out / METRICS), what, do)
    finally:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def run_alone(spec: Path) -> int:
    """Runs one rank and restarts it after a crash; returns its exit code as a shell would."""
    code = 1
    stops: list[int] = []
    for _ in range(1 + MAX_RESTARTS):
        rank = subprocess.Popen([sys.executable, "-m", "tasks.trainer", "--spec", str(spec)])
        signal.signal(signal.SIGTERM, partial(_pass_on, rank, stops))
        code = rank.wait()
        if code in FINAL or stops:
            break
        print(f"the rank ended with {code}; it resumes from its newest checkpoint", file=sys.stderr, flush=True)
    return 128 - code if code < 0 else code


def _pass_on(rank: "subprocess.Popen[bytes]", stops: list[int], number: int, frame: object) -> None:
    stops.append(number)
    rank.send_signal(number)


def run_ranks(spec: Path, nproc: int) -> int:
    """Runs torchrun in this process; returns the exit code of the first rank that failed, as a shell would."""
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

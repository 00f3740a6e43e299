"""Starts and restarts the ranks of one node: `python -m tasks.train.agent --spec spec.json --nproc 2`.

The command a stage runs on a laptop and a pod runs on a GPU node. It is torchrun with the exit codes put right: torchrun
itself ends with 1 whatever happened. Here 0 is done, 2 a run that cannot work as configured, 137 a rank that was killed
(out of memory, usually) more often than it may be restarted, 143 stopped on request after a checkpoint. Several nodes
are described the way torchrun reads them, by PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

from tasks.train import leash

MAX_RESTARTS = 5
"""Rendezvous after a kill burns two at times, so one kill needs more than one."""

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # torchrun would say so at length; ranks set their own number
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "100",  # seconds to save in after SIGTERM; below the grace of the pod
    # Keep freed memory: glibc maps and unmaps every large buffer otherwise, and clearing its pages took a fifth of a step.
    "MALLOC_MMAP_THRESHOLD_": str(2**31 - 1),
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
    "MALLOC_TOP_PAD_": str(2**26),
}


def main() -> int:
    """Runs all ranks of this node to the end; returns the exit code."""
    leash.hold()
    # torchrun installs its handlers when it starts the ranks; before that, as PID 1, we would not hear SIGTERM.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    parser = argparse.ArgumentParser(prog="python -m tasks.train.agent")
    parser.add_argument("--spec", type=Path, required=True, help="JSON file of a TrainSpec")
    parser.add_argument("--nproc", type=int, default=1, help="ranks on this node")
    arguments = parser.parse_args()
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    return run_ranks(arguments.spec, arguments.nproc)


def run_ranks(spec: Path, nproc: int) -> int:
    """Runs torchrun in this process; returns the exit code that says what happened."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    nodes = [] if os.environ.get("PET_NNODES", "1") not in ("1", "1:1") else ["--standalone"]
    arguments = [*nodes, f"--nproc-per-node={nproc}", f"--max-restarts={MAX_RESTARTS}", "--monitor-interval=0.1"]
    try:
        run.main([*arguments, "-m", "tasks.train", "--spec", str(spec)])
    except ChildFailedError as error:
        code = int(error.get_first_failure()[1].exitcode)
        return 128 - code if code < 0 else code
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""One rank of a training run: `python -m tasks.trainer --spec spec.json`, started by `tasks.trainer.launch.agent`.

Exit codes: 0 done; 2 the run cannot work as configured, do not restart; 143 stopped on request after a checkpoint;
anything else a crash, restart and resume. The cause of a failure is written to `failure-<rank>.json` in the run's
folder.
"""

import argparse
import logging
import os
import sys
import traceback
from pathlib import Path

from tasks.core.errors import InputError, SluiceError
from tasks.core.open_files import raise_limit
from tasks.trainer.config import TrainSpec
from tasks.trainer.launch import failure, flight_recorder
from tasks.trainer.launch.launcher import end_with_parent
from tasks.trainer.process import configure_torch, set_allocator

CONFIGURATION_ERROR, STOPPED = 2, 143


def main() -> int:
    """Runs this rank and returns its exit code."""
    end_with_parent()
    raise_limit()
    parser = argparse.ArgumentParser(prog="python -m tasks.trainer")
    parser.add_argument("--spec", type=Path, required=True, help="JSON file of a TrainSpec")
    rank = int(os.environ.get("RANK", "0"))
    logging.basicConfig(level=logging.INFO, format=f"[rank {rank}] %(levelname)s %(message)s", stream=sys.stderr)
    try:
        spec = TrainSpec.read(parser.parse_args().spec)
    except InputError as error:
        logging.error("%s", error)
        return CONFIGURATION_ERROR
    out = Path(spec.out)
    out.mkdir(parents=True, exist_ok=True)
    if failure.launch_id() and any(f.permanent and f.launch == failure.launch_id() for f in failure.recorded(out)):
        return CONFIGURATION_ERROR
    return _train(spec, out, rank)


def _train(spec: TrainSpec, out: Path, rank: int) -> int:
    set_allocator()
    flight_recorder.enable(out)
    # Importing torch takes more than a second; a rank with an invalid configuration exits without it.
    from tasks.trainer.loop import Trainer, TrainingStopped
    from tasks.trainer.parallel.ranks import Ranks

    try:
        ranks = Ranks.from_environment(spec.place.timeouts)
        configure_torch(spec.run.threads, ranks.device)
        with ranks:
            Trainer(spec, ranks).train()
    except TrainingStopped as stopped:
        logging.info("%s", stopped)
        return STOPPED
    except Exception as error:
        if not isinstance(error, SluiceError):
            traceback.print_exc()
        flight_recorder.write_own(rank)
        recorded = failure.record(out, rank, error)
        logging.error("%s", recorded.cause)
        return CONFIGURATION_ERROR if recorded.permanent else 1
    return 0


if __name__ == "__main__":
    code = main()
    if code not in (0, STOPPED):
        # The checkpoint thread may be waiting for ranks that have exited, and a normal exit would wait for the thread.
        logging.shutdown()
        os._exit(code)
    sys.exit(code)

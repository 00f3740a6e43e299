"""The agent of two ranks, of which one kills itself before step 30 of the first attempt. Not a test module."""

import os
import signal
import sys
from typing import Any

STEP = 30


def main() -> int:
    """Runs the agent, or if torchrun has started this process, a rank."""
    return _rank() if "RANK" in os.environ else _agent()


def _agent() -> int:
    from torch.distributed import run

    from tasks.trainer.launch import agent

    start = run.main
    here = "tests.tasks.trainer.launch.killed_rank"
    run.main = lambda arguments: start([here if one == "tasks.trainer" else one for one in arguments])
    return agent.main()


def _rank() -> int:
    from tasks.trainer import __main__ as trainer
    from tasks.trainer.checkpoints import checkpoint
    from tasks.trainer.loop import Trainer
    from tests.waiting import until

    step = Trainer._train_step

    def killed(self: Trainer, *arguments: Any) -> bool:
        if self.step == STEP:
            until(lambda: checkpoint.steps_at(self.disk.root), 300)  # it is written in the background
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, *arguments)

    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        Trainer._train_step = killed  # type: ignore[method-assign]
    return trainer.main()


if __name__ == "__main__":
    sys.exit(main())

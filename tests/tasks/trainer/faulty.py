"""Ranks with faults: `python -m tests.tasks.trainer.faulty <spec.json> <faults.json>` is one rank of a run.

Faults by name: `poison` tokens that are not a number to the model; `damage` a step in
which the weights become so; `weight`, `gradient` and
`contribution` {rank, step}: a bit that flips there once, in the weights after the step, in the summed gradient or in
what the rank adds to it.
"""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from tasks.core.config import canonical_json
from tasks.trainer import failure
from tasks.trainer.config import TrainSpec
from tasks.trainer.loop import Trainer
from tasks.trainer.ranks import Ranks
from tests.tasks.trainer.gangs import free_port


def poison(trainer: Trainer, poisonous: list[int]) -> None:
    """Makes what the model reads not a number wherever it reads one of some tokens."""
    tokens = torch.tensor(poisonous)

    def spoil(module: object, inputs: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
        return output.masked_fill(torch.isin(inputs[0], tokens)[..., None], float("nan"))

    trainer.replica.model.embedding.register_forward_hook(spoil)


def damage(trainer: Trainer, step: int) -> None:
    """Makes the weights not a number in a step, as a batch does that no bound refuses."""
    take = trainer.replica.optimizer.step

    def spoilt(lr: float) -> None:
        take(lr)
        if trainer.step == step:
            with torch.no_grad():
                trainer.replica.model.norm.weight.fill_(float("nan"))

    trainer.replica.optimizer.step = spoilt


def ranks_of(spec: TrainSpec, ranks: int, **faults: Any) -> list[int]:
    """Runs all ranks once; returns their exit codes."""
    out = Path(spec.out)
    (out / "given.json").write_text(canonical_json(spec))
    (out / "faults.json").write_text(json.dumps(faults))
    shared = {**os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-W", "ignore", "-m", "tests.tasks.trainer.faulty"]
    with (out / "log").open("a") as log:
        started = [
            subprocess.Popen(
                [*command, str(out / "given.json"), str(out / "faults.json")],
                env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)},
                stderr=log,
            )
            for rank in range(ranks)
        ]
        return [process.wait(120) for process in started]


def main() -> int:
    """Runs one rank."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    torch.set_num_threads(1)
    spec = TrainSpec.model_validate_json(Path(sys.argv[1]).read_bytes())
    faults = json.loads(Path(sys.argv[2]).read_text())
    try:
        with Ranks.from_environment() as ranks:
            trainer = Trainer(spec, ranks)
            if "poison" in faults:
                poison(trainer, faults["poison"])
            if "damage" in faults:
                damage(trainer, faults["damage"])
            trainer.train()
    except Exception as error:
        logging.error("%s", failure.record(Path(spec.out), int(os.environ["RANK"]), error).cause)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Nodes of a gang as forked ranks, each with its own scratch folder. Not a test module."""

import os
import shutil
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch

from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.config import CopySpec, TrainSpec
from tasks.trainer.loop import Trainer, TrainingStopped
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.place import Layout
from tests.corpora import Made
from tests.tasks.trainer.forks import forked
from tests.tasks.trainer.gangs import free_port
from tests.tasks.trainer.small_run import small_spec

STOPPED = 143


def specs(
    made: Made, folder: Path, nodes: int, layout: Layout | None, copies: Sequence[CopySpec] = (), **settings: object
) -> list[TrainSpec]:
    """Returns the spec of every node, each with the folder `<folder>/<node>/run`."""
    changes = {"layout": layout, "copies": tuple(copies)}
    return [
        small_spec(made, folder / str(node) / "run", **settings).model_copy(update=changes) for node in range(nodes)
    ]


def train(nodes: Sequence[TrainSpec], ranks_per_node: int = 1, until: int = 0) -> list[int]:
    """Trains with all ranks of all nodes; with `until`, stops after that step. Returns the exit codes of the ranks."""

    world, port = ranks_per_node * len(nodes), free_port()
    arguments = [
        (spec, node * ranks_per_node + local, local, ranks_per_node, world, port, until)
        for node, spec in enumerate(nodes)
        for local in range(ranks_per_node)
    ]
    return forked(_rank, arguments, 300)


def _rank(spec: TrainSpec, rank: int, local: int, per_node: int, world: int, port: int, until: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(world)}
    torch.set_num_threads(1)
    code = 0
    try:
        with Ranks(rank, world, local, per_node) as ranks:
            trainer = Trainer(spec, ranks)
            if until:
                _stop_before(trainer, until)
            trainer.train()
    except TrainingStopped:
        code = STOPPED
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)


def _stop_before(trainer: Trainer, step: int) -> None:
    """Makes the run save and end after `step` steps, like SIGTERM."""
    take = trainer.replica.optimizer.step

    def stopping(lr: float) -> None:
        take(lr)
        trainer.replica.stop_requested = trainer.step + 2 == step

    trainer.replica.optimizer.step = stopping


def merged(nodes: Sequence[TrainSpec], step: int, folder: Path) -> Path:
    """Returns the whole checkpoint of a step, from the files of all nodes."""
    together = folder / checkpoint.name_of(step)
    for spec in nodes:
        here = Path(spec.out) / "checkpoints" / checkpoint.name_of(step)
        if here.exists():
            shutil.copytree(here, together, dirs_exist_ok=True)
    return together if checkpoint.is_whole(together) else checkpoint.merge(together, folder / "whole")

"""Nodes of a gang as forked processes, each with its own scratch folder. Not a test module."""

import importlib
import os
import shutil
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from tasks.core.errors import TransientError
from tasks.core.stage import Output
from tasks.run.recipe import Recipe
from tasks.run.runner import join_stage, run_stage
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.config import CopySpec, TrainSpec
from tasks.trainer.launch import supervised
from tasks.trainer.launch.gang import ADDRESS, NODE, NODES, Gang
from tasks.trainer.launch.launcher import OnMetrics
from tasks.trainer.logs import METRICS, MetricsTail
from tasks.trainer.loop import Trainer, TrainingStopped
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.place import Layout, TrainPlace
from tests.corpora import Made
from tests.tasks.trainer.forks import forked
from tests.tasks.trainer.gangs import free_port
from tests.tasks.trainer.small_run import small_spec

STOPPED = 143


def specs(
    made: Made, folder: Path, nodes: int, layout: Layout | None, copies: Sequence[CopySpec] = (), **settings: object
) -> list[TrainSpec]:
    """Returns the spec of every node, each with the folder `<folder>/<node>/run`."""
    changes = {"place": TrainPlace(layout=layout), "copies": tuple(copies)}
    return [
        small_spec(made, folder / str(node) / "run", **settings).model_copy(update=changes) for node in range(nodes)
    ]


def train(nodes: Sequence[TrainSpec], ranks_per_node: int = 1, until: int = 0) -> list[int]:
    """Trains with all ranks of all nodes; with `until`, stops after that step. Returns the exit codes of the ranks."""
    importlib.import_module("tasks.trainer.parallel.sharded")  # before the fork: it takes 1.5 s

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

    def stop(done: int) -> None:
        trainer.replica.stop_requested = done + 2 == step

    _call_after_step(trainer, stop)


def merged(nodes: Sequence[TrainSpec], step: int, folder: Path) -> Path:
    """Returns the whole checkpoint of a step, from the files of all nodes."""
    together = folder / checkpoint.name_of(step)
    for spec in nodes:
        here = Path(spec.out) / "checkpoints" / checkpoint.name_of(step)
        if here.exists():
            shutil.copytree(here, together, dirs_exist_ok=True)
    return together if checkpoint.is_whole(together) else checkpoint.merge(together, folder / "whole")


@dataclass(frozen=True)
class StageNode:
    """A node that runs a stage that trains, and one rank in the same process.

    `scratch` is the folder of its disk. `kill_when` is called after every step; the node is killed when it is true.
    """

    recipe: Recipe
    scratch: Path
    kill_when: Callable[[int], bool] = lambda step: False
    stage: str = "train"


def run_stages(nodes: Sequence[StageNode]) -> list[int]:
    """Runs the stage on all nodes, with one rank each; returns the exit codes."""
    importlib.import_module("tasks.trainer.parallel.sharded")
    port = free_port()
    return forked(_stage, [(node, number, len(nodes), port) for number, node in enumerate(nodes)], 300)


def _stage(here: StageNode, number: int, nodes: int, port: int) -> None:
    place = {} if nodes == 1 else {NODES: str(nodes), NODE: str(number), ADDRESS: "127.0.0.1"}
    os.environ |= {**place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "MLFLOW_TRACKING_URI": ""}
    os.environ |= {"RANK": str(number), "WORLD_SIZE": str(nodes)}
    torch.set_num_threads(1)
    scratch = here.scratch / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    Output.scratch = property(lambda output: str(scratch))  # type: ignore[assignment,method-assign]
    supervised.train_local = partial(_train, here)  # type: ignore[assignment]
    code = 0
    try:
        if number:
            join_stage(here.recipe, here.stage)
        else:
            run_stage(here.recipe, here.stage)
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)


def _train(
    here: StageNode,
    spec: TrainSpec,
    on_metrics: OnMetrics,
    gang: Gang | None = None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Trains like `train_local` with one rank in this process; a thread calls the functions of the stage."""
    Path(spec.out).mkdir(parents=True, exist_ok=True)
    tail, ended = MetricsTail(Path(spec.out) / METRICS), threading.Event()

    def follow() -> None:
        running = True
        while running:
            running = not ended.wait(0.1)
            check()
            for values in tail.new_lines():
                on_metrics(int(values["step"]), {k: v for k, v in values.items() if k != "step" and v is not None})

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        with Ranks(gang.node if gang else 0, gang.nodes if gang else 1, 0, 1) as ranks:
            trainer = Trainer(spec, ranks)
            _call_after_step(trainer, lambda step: os.kill(os.getpid(), signal.SIGKILL) if here.kill_when(step) else 0)
            trainer.train()
    except Exception as error:
        raise TransientError(str(error)) from error
    finally:
        ended.set()
        thread.join()


def _call_after_step(trainer: Trainer, function: Callable[[int], object]) -> None:
    take = trainer.replica.optimizer.step

    def then(lr: float) -> None:
        take(lr)
        function(trainer.step)

    trainer.replica.optimizer.step = then

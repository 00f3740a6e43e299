"""Figures of layers and profiles: a training is the same with and without, and the figures are those of any layout."""

import math
import os
from pathlib import Path
from typing import Any

import pytest

from tasks.trainer.logs import LAYERS, METRICS, read_metrics
from tasks.trainer.loop import Trainer
from tasks.trainer.monitoring.step_trace import figures_of, read_trace, traces
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.place import Layout, TrainPlace, Watch
from tests.corpora import Made
from tests.tasks.trainer.forks import forked
from tests.tasks.trainer.gangs import free_port
from tests.tasks.trainer.small_run import digests, small_config, small_spec

LOOKED_AT = Watch(profile_every=4, profiles_kept=2, layers_every=3)
UNTIED = small_config().model.model_copy(update={"tie_embeddings": False})


def train(made: Made, out: Path, watch: Watch, layout: Layout | None = None, **settings: Any) -> None:
    spec = small_spec(made, out, **settings)
    place = TrainPlace(watch=watch, layout=layout)
    Trainer(spec.model_copy(update={"place": place}), Ranks.from_environment()).train()


def rank(number: int, port: int, *arguments: Any) -> None:
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {**shared, "RANK": str(number), "LOCAL_RANK": str(number)}
    made, out, layout = arguments
    with Ranks.from_environment():
        train(made, out, Watch(profile_every=0, layers_every=3), layout, model=UNTIED, steps=3, milestones=1)
    os._exit(0)


@pytest.fixture(scope="module")
def looked_at(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "looked-at"
    train(made, out, LOOKED_AT)
    return out


def test_checkpoints_and_losses_are_those_of_a_run_without_figures(made: Made, looked_at: Path, tmp_path: Path) -> None:
    train(made, tmp_path, Watch(profile_every=0, layers_every=0))
    assert digests(tmp_path) == digests(looked_at)
    assert not read_metrics(tmp_path / LAYERS)
    assert not traces(tmp_path)


def test_the_newest_traces_are_kept_and_have_the_step(looked_at: Path) -> None:
    assert list(traces(looked_at)) == [5, 9], "1 was the first"
    found = figures_of(read_trace(traces(looked_at)[9]))
    assert 0 < found.computing < 1
    assert found.communication == 0
    assert any(one.name == "aten::mm" for one in found.operations)


def test_the_norms_of_the_layers_add_up_to_the_norm_of_the_step(looked_at: Path) -> None:
    lines = read_metrics(looked_at / LAYERS)
    norms = {line["step"]: line["grad_norm"] for line in read_metrics(looked_at / METRICS)}
    assert [line["step"] for line in lines] == [2, 5, 8, 11]
    for line in lines:
        assert list(line["layers"]) == ["embedding", "0", "1", "norm"], "the head is the embedding"
        total = math.sqrt(sum(layer["grad"] ** 2 for layer in line["layers"].values()))
        assert total == pytest.approx(norms[line["step"]], rel=1e-4), "before clipping"
        for layer in line["layers"].values():
            assert layer["ratio"] == pytest.approx(layer["update"] / layer["weight"], rel=1e-4)


@pytest.mark.parametrize(
    "layout", [None, Layout(shard=2), Layout(shard=2, zero=1), Layout(tensor=2), Layout(pipeline=2)]
)
def test_two_ranks_have_the_figures_of_one(made: Made, tmp_path: Path, layout: Layout | None) -> None:
    train(made, tmp_path / "one", Watch(layers_every=3), model=UNTIED, steps=3, milestones=1)
    port = free_port()
    assert forked(rank, [(number, port, made, tmp_path / "two", layout) for number in range(2)]) == [0, 0]
    (one,), (two,) = (read_metrics(tmp_path / name / LAYERS) for name in ("one", "two"))
    if layout is None:
        assert one == two, "to the last digit"
    for name, figures in one["layers"].items():
        # The microbatch whose activations are measured is another one on ranks that have other microbatches.
        same = figures.keys() if layout is None or layout.shard == 1 else ("grad", "weight", "update", "ratio")
        for figure in same:
            # A rank compares inner values with the root mean square of its own part.
            close = pytest.approx(figures[figure], rel=0.1 if figure == "inner_zeros" else 2e-3)
            assert two["layers"][name][figure] == close, (name, figure)

"""Plan and launch are one: what the plan accepts is built and trained, what it refuses is refused for its reasons.

Shapes, layouts and places are random. Ranks are those of fake process groups, with fake tensors.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.fake_ranks import counted, fake_group, planned
from tasks.core.errors import InputError, RecipeError, SluiceError
from tasks.trainer.config import ArtifactSpec, TrainConfig, TrainSpec
from tasks.trainer.launch import launcher
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.shape import ModelShape
from tasks.trainer.parallel import fp8, replicated
from tasks.trainer.parallel.fit import chunks_of_rank
from tasks.trainer.parallel.mesh import Mesh
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.parallel.replicated import Replicated
from tasks.trainer.parallel.sharded import Sharded, shards_of
from tasks.trainer.parallel.start import Start, default_layout
from tasks.trainer.place import Layout, TrainPlace
from tasks.trainer.planning.config import PlanConfig
from tasks.trainer.planning.estimate import planned_start
from tasks.trainer.tuning.memory import Workload

CASES = 200
NOTHING = ArtifactSpec(store="", artifact="", content="")


@dataclass(frozen=True)
class Case:
    """A run and its place."""

    run: TrainConfig
    vocab_size: int
    seq_len: int
    layout: Layout | None
    nodes: int
    nproc: int
    gpu: str

    @property
    def plan(self) -> PlanConfig:
        return PlanConfig(gpu=self.gpu, peak_flops=1e12, memory_gb=80)

    def start(self) -> Start:
        load = Workload(self.run, ModelShape.of(self.run.model, self.vocab_size), self.seq_len)
        return planned_start(self.plan, load, self.layout, self.nodes, self.nproc)


def cases(seed: int) -> Iterator[Case]:
    draw = random.Random(seed)
    while True:
        heads = draw.choice((2, 4, 6, 8))
        model = ModelConfig(
            layers=draw.randint(1, 5),
            dim=heads * draw.choice((8, 16, 24)),
            heads=heads,
            kv_heads=draw.choice([n for n in (1, 2, 4, heads) if heads % n == 0]),
            ffn_multiple=draw.choice((2.0, 8 / 3)),
            tie_embeddings=draw.random() < 0.3,
            qk_norm=draw.random() < 0.2,
        )
        sizes = {"batch_size": draw.choice((4, 6, 8, 16)), "microbatch": draw.choice((1, 2))}
        precision = draw.choice(("bf16", "bf16", "fp32", "fp8"))
        run = TrainConfig.model_validate({"model": model, "precision": precision, **sizes})
        degrees = {name: draw.choice((1, 1, 2, 4)) for name in ("replicate", "shard", "tensor", "pipeline")}
        layout = Layout(
            **degrees,
            context=draw.choice((1, 1, 2)),
            zero=draw.choice((1, 2, 3)),
            recompute=draw.choice(("none", "selective", "full")),
            schedule=draw.choice(("1f1b", "interleaved")),
            compile=draw.random() < 0.1,
        )
        nodes = draw.choice((1, 1, 2))
        has_layout, is_exact = draw.random() < 0.8, draw.random() < 0.9
        nproc = max(1, layout.ranks // nodes) if has_layout and is_exact else draw.choice((1, 2, 3, 8))
        yield Case(
            run=run,
            vocab_size=draw.choice((64, 96, 101)),
            seq_len=draw.choice((16, 24, 32, 64)),
            layout=layout if has_layout else None,
            nodes=nodes,
            nproc=nproc,
            gpu=draw.choice(("H100", "H100", "A100", "CPU")),
        )


def drawn(seed: int, count: int) -> list[Case]:
    found = cases(seed)
    return [next(found) for _ in range(count)]


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the device that the launcher finds, and that a rank computes with."""

    def use(case: Case) -> None:
        plan = SimpleNamespace(format=SimpleNamespace(vocab_size=case.vocab_size), seq_len=case.seq_len)
        monkeypatch.setattr(launcher, "open_plan", lambda spec: plan)
        monkeypatch.setattr(launcher, "device_of_ranks", lambda: case.plan.device)
        monkeypatch.setattr(fp8, "device_of", lambda device: case.plan.device)

    return use


def launched(case: Case) -> int:
    """Returns the ranks of a node that the launcher starts."""
    place = TrainPlace(nproc=case.nproc, layout=case.layout)
    spec = TrainSpec(run=case.run, weights={}, shards=NOTHING, plan=NOTHING, out="", place=place)
    return launcher._ranks_for(spec, case.nodes)


def start_of_a_rank(case: Case, start: Start) -> str:
    """Returns why the last rank refuses to start; "" if it goes on to join the others."""
    per_node, gpu = start.ranks_per_node, case.plan.device.is_gpu
    ranks = Ranks(case.nodes * per_node - 1, case.nodes * per_node, per_node - 1, per_node)
    layout = default_layout(case.layout, ranks.nodes, ranks.local_world, gpu=gpu)
    try:
        if layout:
            Sharded(case.run, layout, case.vocab_size, case.seq_len, ranks)
        else:
            Replicated(case.run, case.vocab_size, ranks)
    except Joined:
        pass
    except SluiceError as error:
        return f"{error.cause}: {error.remedy}"
    if layout and gpu and case.run.precision == "fp8":
        try:
            fp8.use_fp8(torch.nn.ModuleList(), torch.device("cuda"))
        except InputError as error:
            return f"{error.cause}: {error.remedy}"
    return ""


class Joined(Exception):
    """A rank has checked everything that it knows alone."""


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that end before they join a group, or draw weights."""

    def end(*_: object, **__: object) -> None:
        raise Joined

    monkeypatch.setattr(Ranks, "join_alone", end)
    monkeypatch.setattr(replicated, "Transformer", end)


@pytest.mark.usefixtures("alone")
def test_plan_launcher_and_ranks_accept_and_refuse_the_same_of_200_runs(devices: Any) -> None:
    refused = 0
    for case in drawn(0, CASES):
        devices(case)
        start = case.start()
        of_rank = start_of_a_rank(case, start)
        if not start.reasons:
            assert launched(case) == start.ranks_per_node
            assert of_rank == ""
            continue
        refused += 1
        with pytest.raises(RecipeError) as raised:
            launched(case)
        assert all(reason in str(raised.value) for reason in start.reasons)
        # Only a launcher knows that the nodes cannot share a step.
        if "nodes cannot share" not in start.reasons[0]:
            assert any(reason in of_rank for reason in start.reasons)
    assert 0.3 < refused / CASES < 0.8


def accepted(seed: int, count: int) -> list[tuple[Case, Layout]]:
    """Returns cases with a layout that the plan accepts on some GPU; layers are not compiled."""
    starts = ((case, case.start()) for case in drawn(seed, count))
    chosen = [(case, start.layout) for case, start in starts if not start.reasons and start.layout]
    return [(case, layout.model_copy(update={"compile": False})) for case, layout in chosen]


def test_some_accepted_runs_are_built() -> None:
    for case, layout in accepted(0, CASES)[:: CASES // 10]:
        with fake_group(layout.ranks - 1, layout.ranks):
            mesh = Mesh.of(layout, Ranks(layout.ranks - 1, layout.ranks, 0, layout.ranks))
            chunks = shards_of(case.run, mesh, case.vocab_size, case.seq_len)
        layers = sum(len(chunk.layers) for chunk in chunks)
        assert layers == sum(map(len, chunks_of_rank(case.run.model.layers, layout, layout.pipeline - 1)))


@pytest.mark.soak
def test_every_accepted_run_computes_a_gradient() -> None:
    for case, layout in accepted(1, CASES):
        found = counted(case.run, layout, case.vocab_size, case.seq_len, layout.ranks - 1)
        plan = planned(
            case.run, layout, ModelShape.of(case.run.model, case.vocab_size), case.seq_len, layout.pipeline - 1
        )
        assert found.calls == plan["calls"]

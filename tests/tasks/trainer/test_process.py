"""The settings of a rank's process: allocator, precision of products, garbage collection."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tasks.trainer.loop import Trainer
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.process import COLLECT_EVERY, GarbageCollection, configure_torch, set_allocator
from tests.corpora import Made
from tests.tasks.trainer.small_run import small_spec


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
            {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
        ),
        ({"PYTORCH_ALLOC_CONF": ""}, {"PYTORCH_ALLOC_CONF": ""}),
    ],
)
def test_the_allocator_has_growing_segments_unless_it_is_configured(
    environment: dict[str, str], expected: dict[str, str]
) -> None:
    set_allocator(environment)
    assert environment == expected


@pytest.mark.parametrize(("device", "precision"), [("cpu", "highest"), ("cuda", "high")])
def test_only_a_gpu_computes_fp32_products_in_tf32(
    monkeypatch: pytest.MonkeyPatch, device: str, precision: str
) -> None:
    found = {"precision": "highest"}
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda value: found.update(precision=value))
    monkeypatch.setattr(torch, "set_num_threads", lambda count: found.update(threads=count))
    monkeypatch.setattr(torch, "set_num_interop_threads", lambda count: found.update(interop=count))
    configure_torch(3, torch.device(device))
    assert found == {"precision": precision, "threads": 3, "interop": 1}


class Node:
    """A part of a cycle, which only a collection frees."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def thresholds() -> Iterator[None]:
    """Lets Python collect at every allocation, if collections are enabled."""
    before = gc.get_threshold()
    gc.set_threshold(1)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("thresholds")
def test_garbage_is_collected_only_at_checkpoints_and_at_an_interval() -> None:
    with GarbageCollection() as garbage:
        assert not gc.isenabled()
        assert gc.get_freeze_count() > 0
        for steps, saved, collected in ((1, False, False), (2, True, True), (COLLECT_EVERY, False, True)):
            node = weakref.ref(Node())
            nodes = [object() for _ in range(100)]
            garbage.after_step(steps, saved)
            assert (node() is None) == collected
            del nodes
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_a_run_trains_without_collections_and_collects_at_its_checkpoints(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(small_spec(made, tmp_path, steps=4, checkpoint_every=2, milestones=1), Ranks(0, 1, 0))
    enabled, steps = [], []
    step, after = trainer._train_step, GarbageCollection.after_step

    def watched(*arguments: object) -> bool:
        enabled.append(gc.isenabled())
        return step(*arguments)

    def recorded(self: GarbageCollection, completed: int, saved: bool) -> None:
        steps.append((completed, saved))
        after(self, completed, saved)

    monkeypatch.setattr(trainer, "_train_step", watched)
    monkeypatch.setattr(GarbageCollection, "after_step", recorded)
    trainer.train()
    assert enabled == [False] * 4
    assert steps == [(1, False), (2, True), (3, False), (4, True)]
    assert gc.isenabled()

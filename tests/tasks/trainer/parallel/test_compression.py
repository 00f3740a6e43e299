"""Compressed gradient sums: rounding, error feedback, bytes sent, and learning."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tasks.core.config import canonical_json
from tasks.trainer.config import TrainConfig
from tests.tasks.trainer.parallel.compression_worker import RANK, SHAPES, STEPS, Gradients, gradients, thin
from tests.tasks.trainer.parallel.rank_processes import run_ranks
from tests.tasks.trainer.parallel.test_parallel import job, run

WORLD = 2


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The results of two ranks."""
    folder = tmp_path_factory.mktemp("sums")
    assert run_ranks(WORLD, "compression_worker", str(folder)) == [0] * WORLD
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


def sums(made: Any, step: int = 0) -> Gradients:
    return {name: made(0, step)[name] + made(1, step)[name] for name in SHAPES}


def test_all_ranks_have_the_same_bits(found: list[dict[str, Any]]) -> None:
    for case in ("rounded", "exact"):
        assert all(torch.equal(found[0][case][name], found[1][case][name]) for name in SHAPES), case


def test_bf16_rounds_each_term_and_the_sum_once(found: list[dict[str, Any]]) -> None:
    first, second = gradients(0, 0), gradients(1, 0)
    for name, total in found[0]["rounded"].items():
        expected = (first[name].bfloat16().float() + second[name].bfloat16().float()).bfloat16().float()
        assert torch.equal(total, expected), name


def test_powersgd_is_exact_if_the_sum_has_its_rank(found: list[dict[str, Any]]) -> None:
    torch.testing.assert_close(found[0]["exact"], sums(thin), atol=1e-5, rtol=1e-5)


def test_powersgd_feeds_its_error_back(found: list[dict[str, Any]]) -> None:
    for name, shape in SHAPES.items():
        expected = sum((sums(gradients, step)[name] for step in range(STEPS)), torch.zeros(shape))
        sent = sum((step[name] for step in found[0]["steps"]), torch.zeros(shape))
        left = sum((one["left"].get(name, torch.zeros(shape)) for one in found), torch.zeros(shape))
        torch.testing.assert_close(sent + left, expected, atol=1e-4, rtol=1e-4)
        assert bool(left.any()) == (name in ("wide", "tall")), name


def test_a_refused_step_leaves_no_error_feedback(found: list[dict[str, Any]]) -> None:
    for one in found:
        for with_refusals, without in zip(one["after"], one["steps"], strict=True):
            assert all(torch.equal(with_refusals[name], without[name]) for name in SHAPES)


def test_a_new_state_starts_without_error_feedback(found: list[dict[str, Any]]) -> None:
    for one in found:
        assert all(torch.equal(one["again"][name], one["steps"][0][name]) for name in SHAPES)


def test_fewer_bytes_are_sent(found: list[dict[str, Any]]) -> None:
    # Of two ranks, each sends half of the vector to be added and half of the sum.
    values = sum(int(np.prod(shape)) for shape in SHAPES.values())
    assert found[0]["sent"]["bf16"] == pytest.approx(2 * values, abs=4)
    narrow = 2 * (24 + 80) * RANK + 7 + 12
    assert found[0]["sent"]["powersgd"] == 4 * narrow


@pytest.mark.soak
def test_a_run_learns_under_both_engines_and_is_resumed(tmp_path: Path) -> None:
    replicas, written = {"replicate": 2}, str(tmp_path / "checkpoints")
    narrow, low = {"kind": "bf16"}, {"kind": "powersgd", "rank": 8}
    jobs = [job(None, (0, 10)), job(None, (0, 10), compression=narrow)]
    jobs += [job(replicas, (0, 6), compression=narrow, write=written)]
    jobs += [job(replicas, (6, 10), compression=narrow, read=written)]
    jobs += [job(layout, (0, 20), batches=1, compression=low) for layout in (None, replicas)]
    exact, rounded, until, after, approximate, approximate_too = (
        np.array(one["losses"]) for one in run(2, tmp_path, jobs)
    )
    for found in (rounded, np.concatenate([until, after])):
        np.testing.assert_allclose(found, exact, atol=5e-3)
        assert not np.array_equal(found, exact)
    # Memorized random tokens: the case furthest from a low rank.
    assert approximate[-1] < 0.5 * approximate[0]
    np.testing.assert_allclose(approximate_too, approximate, atol=5e-3)


def test_compression_is_off_by_default_and_not_in_the_fingerprint() -> None:
    assert "compression" not in canonical_json(TrainConfig())
    config = TrainConfig.model_validate({"compression": {"kind": "powersgd", "rank": 2}})
    assert '"compression":{"kind":"powersgd","rank":2}' in canonical_json(config)
    with pytest.raises(ValidationError, match="rank"):
        TrainConfig.model_validate({"compression": {"kind": "bf16", "rank": 2}})

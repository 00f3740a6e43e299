"""Every layout over ranks gives the loss and gradient of one rank, and reads checkpoints of any other layout.

Run the soak tests (all products of four ranks, checkpoints between all layouts) after a change of
tasks/trainer/parallel, attention, loss, adamw or muon.
"""

import json
from collections.abc import Iterable
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tasks.core.errors import RecipeError
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.config import LoraConfig
from tasks.trainer.model.config import ExpertsConfig
from tasks.trainer.model.shape import ModelShape
from tasks.trainer.parallel.fit import check_fit, layout_reasons, layout_warnings
from tasks.trainer.place import Layout
from tasks.trainer.tuning.config import FinetuneConfig
from tests.tasks.trainer.parallel.parallel_worker import SEQ_LEN, VOCABULARY, config
from tests.tasks.trainer.parallel.rank_processes import run_ranks

STEPS = 10
SOAK = pytest.mark.soak
MODES: dict[str, dict[str, Any]] = {
    "fsdp": {"shard": 2},
    "zero-2": {"shard": 2, "zero": 2},
    "zero-1": {"shard": 2, "zero": 1},
    "replicas": {"replicate": 2},
    "tensor": {"tensor": 2},
    "context": {"context": 2},
    "pipeline": {"pipeline": 2},
    "interleaved": {"pipeline": 2, "schedule": "interleaved"},
    "recompute": {"shard": 2, "recompute": "full"},
    "selective": {"shard": 2, "recompute": "selective"},
}
PRODUCTS: dict[str, dict[str, Any]] = {
    "fsdp of four": {"shard": 4},
    "hsdp": {"replicate": 2, "shard": 2},
    "hsdp, zero-1": {"replicate": 2, "shard": 2, "zero": 1},
    "fsdp x tensor": {"shard": 2, "tensor": 2},
    "fsdp x context": {"shard": 2, "context": 2},
    "replicas x tensor": {"replicate": 2, "tensor": 2},
    "context x tensor": {"context": 2, "tensor": 2},
    "pipeline x tensor": {"pipeline": 2, "tensor": 2},
    "pipeline x context": {"pipeline": 2, "context": 2},
    "interleaved x fsdp": {"pipeline": 2, "shard": 2, "schedule": "interleaved"},
    "pipeline x fsdp, zero-2": {"pipeline": 2, "shard": 2, "zero": 2},
    "pipeline x fsdp, zero-1": {"pipeline": 2, "shard": 2, "zero": 1},
    "replicas x pipeline": {"replicate": 2, "pipeline": 2},
    "pipeline of four": {"pipeline": 4},
    "context of four": {"context": 4},
    "fsdp x tensor, recomputed": {"shard": 2, "tensor": 2, "recompute": "selective"},
}


QWEN: dict[str, Any] = {"head_width": 12, "qkv_bias": True, "qk_norm": True, "vocab_rows": 200}
GEMMA: dict[str, Any] = {
    **{"window": 8, "window_pattern": "wwf", "window_rope_theta": 1e3, "rope_pattern": "rrrn", "qk_norm": True},
    **{"norm_place": "both", "norm_weight": "offset", "activation": "gelu_tanh", "embedding_scale": "sqrt_dim"},
    **{"attention_scalar": 10.0, "attention_cap": 2.0, "logit_cap": 3.0},
}
"""Settings of other families. Of 200 rows the second of two ranks has none of the 96 tokens."""
ODD = {"layers": 1}
"""The last of its seven matrices has nothing for the second of two ranks to orthogonalize."""

EXPERTS: dict[str, Any] = {
    "experts": {"count": 8, "per_token": 2, "width": 16, "shared_width": 16, "balance": "bias", "bias_rate": 0.02},
    **{"attention_sinks": True, "output_bias": True},
}
OF_EXPERTS: dict[str, dict[str, Any]] = {
    "two parts": {"shard": 4, "expert": 2},
    "four parts": {"shard": 4, "expert": 4},
    "replicas": {"replicate": 2, "shard": 2, "expert": 2, "recompute": "full"},
    "context": {"shard": 2, "context": 2, "expert": 4, "zero": 1},
    "pipeline": {"pipeline": 2, "shard": 2, "expert": 2},
    "undivided": {"shard": 4, "recompute": "selective"},
}


def job(layout: dict[str, Any] | None, steps: tuple[int, int] = (0, STEPS), **more: Any) -> dict[str, Any]:
    # Pipelines have embedding and head on different ranks; the other layouts do the same for comparison.
    return {"layout": layout, "steps": steps, "tie": False, **more}


def run(ranks: int, folder: Path, jobs: list[dict[str, Any]]) -> list[dict[str, list[float]]]:
    """Runs jobs on some ranks, one after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "jobs.json").write_text(json.dumps(jobs))
    files = (str(folder / "jobs.json"), str(folder / "results.json"))
    assert run_ranks(ranks, "parallel_worker", *files) == [0] * ranks
    found: list[dict[str, list[float]]] = json.loads((folder / "results.json").read_text())
    return found


@pytest.fixture(scope="module")
def one_rank_each(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[float]]]:
    """Results of one rank in the bit-exact mode: of the usual model, with QWEN, GEMMA and EXPERTS, and with Muon."""
    jobs = [job(None), job(None, (0, 3), model=QWEN), job(None, (0, 3), model=GEMMA), job(None, (0, 4), model=EXPERTS)]
    jobs.append(job(None, (0, 3), optimizer="muon", model=ODD))
    return run(1, tmp_path_factory.mktemp("one"), jobs)


@pytest.fixture(scope="module")
def one_rank(one_rank_each: list[dict[str, list[float]]]) -> dict[str, list[float]]:
    """Loss, gradient norm and held-out bits per byte of every step, of one rank in the bit-exact mode."""
    return one_rank_each[0]


def check_equal(found: dict[str, list[float]], one: dict[str, list[float]], first: int = 0, atol: float = 1e-5) -> None:
    for name in ("losses", "norms", "bpb"):
        np.testing.assert_allclose(found[name], one[name][first : first + len(found[name])], rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("modes", "steps"), [(("zero-1", "tensor", "context", "interleaved"), 3), pytest.param(MODES, STEPS, marks=SOAK)]
)
def test_two_ranks_train_like_one_in_every_mode(
    one_rank_each: list[dict[str, list[float]]], tmp_path: Path, modes: Iterable[str], steps: int
) -> None:
    jobs = [*(job(MODES[mode], (0, steps)) for mode in modes), job(MODES["tensor"], (0, 3), model=QWEN)]
    jobs += [job(MODES[mode], (0, 3), model=GEMMA) for mode in ("tensor", "context")]
    jobs.append(job({"shard": 2, "expert": 2}, (0, 3), model=EXPERTS))
    jobs.append(job(MODES["fsdp"], (0, 3), optimizer="muon", model=ODD))
    *usual, qwen, tensor, context, experts, muon = run(2, tmp_path, jobs)
    for found in usual:
        check_equal(found, one_rank_each[0])
    check_equal(qwen, one_rank_each[1])
    check_equal(tensor, one_rank_each[2])
    check_equal(context, one_rank_each[2])
    check_equal(experts, one_rank_each[3])
    check_equal(muon, one_rank_each[4], atol=1e-6)


def test_what_experts_do_not_support_is_refused_by_name() -> None:
    layout, run = Layout(shard=2, context=2, tensor=2, expert=3, recompute="selective"), config(tie=False)
    mixture = ExpertsConfig(count=8, per_token=2, width=16)
    settings = {"model": run.model.model_copy(update={"experts": mixture}), "precision": "fp8"}
    mixed = run.model_copy(update=settings)
    reasons = layout_reasons(layout, mixed, ModelShape.of(mixed.model, VOCABULARY), SEQ_LEN, 1, 8)
    for name in ("8 experts", "shard x context = 4", '"selective"', "tensor = 2", "balance loss", '"fp8"'):
        assert any(name in reason for reason in reasons), name
    dense = layout_reasons(layout, run, ModelShape.of(run.model, VOCABULARY), SEQ_LEN, 1, 8)
    assert any("the model has no experts" in reason for reason in dense)
    tuning = FinetuneConfig(base="demo/checkpoint@1", lora=LoraConfig())
    with pytest.raises(RecipeError, match=r"\[finetune.lora\]: the base has experts"):
        tuning.training(settings["model"])


@pytest.mark.soak
def test_experts_divided_in_any_way_train_like_one_rank_and_resume_in_another_way(
    one_rank_each: list[dict[str, list[float]]], tmp_path: Path
) -> None:
    jobs = [job(layout, (0, 2), model=EXPERTS, write=str(tmp_path / name)) for name, layout in OF_EXPERTS.items()]
    resumed = zip(OF_EXPERTS.values(), [*OF_EXPERTS][::-1], strict=True)
    jobs += [job(layout, (2, 4), model=EXPERTS, read=str(tmp_path / name)) for layout, name in resumed]
    found = run(4, tmp_path, jobs)
    found += run(1, tmp_path / "1", [job(None, (2, 4), model=EXPERTS, read=str(tmp_path / "four parts"))])
    for number, one in enumerate(found):
        check_equal(one, one_rank_each[3], 0 if number < len(OF_EXPERTS) else 2)


@pytest.mark.soak
@pytest.mark.parametrize("model", [QWEN, GEMMA])
def test_settings_of_other_families_train_like_one_rank_in_every_mode(tmp_path: Path, model: dict[str, Any]) -> None:
    (one,) = run(1, tmp_path / "1", [job(None, model=model)])
    for found in run(2, tmp_path / "2", [job(layout, model=model) for layout in MODES.values()]):
        check_equal(found, one)


@pytest.mark.soak
def test_four_ranks_train_like_one_in_every_combination_of_modes(
    one_rank: dict[str, list[float]], tmp_path: Path
) -> None:
    for found in run(4, tmp_path, [job(layout) for layout in PRODUCTS.values()]):
        check_equal(found, one_rank)


@pytest.mark.soak
def test_a_checkpoint_of_one_layout_resumes_in_another_and_exports_to_one_file(
    one_rank: dict[str, list[float]], tmp_path: Path
) -> None:
    written = {name: str(tmp_path / name) for name in ("fsdp", "tensor", "one")}
    run(1, tmp_path / "1", [job(None, (0, 2), write=written["one"])])
    resumed = run(
        2,
        tmp_path / "2",
        [
            job(MODES["fsdp"], (0, 2), write=written["fsdp"]),
            job(MODES["tensor"], (0, 2), write=written["tensor"]),
            job(MODES["pipeline"], (2, 4), read=written["tensor"]),
            job(MODES["fsdp"], (2, 4), read=written["one"]),
        ],
    )[2:]
    resumed += run(
        1, tmp_path / "3", [job(None, (2, 4), read=written["fsdp"]), job({}, (2, 4), read=written["tensor"])]
    )
    for found in resumed:
        check_equal(found, one_rank, 2)
    whole, sharded = (Path(written[name]) / checkpoint.name_of(2) for name in ("one", "tensor"))
    merged = checkpoint.merge(sharded, tmp_path / "merged")
    assert {path.name for path in merged.iterdir()} == {path.name for path in whole.iterdir()}
    checkpoint.verify(merged)
    expected, found = load_file(whole / checkpoint.MODEL), load_file(merged / checkpoint.MODEL)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        # Adam divides by the root of the squared gradient, so rounding of tiny gradients is visible.
        torch.testing.assert_close(found[name], tensor, atol=1e-3, rtol=0)
    means = {name for name in load_file(merged / checkpoint.OPTIMIZER) if name.startswith(checkpoint.EMA)}
    assert {name.removeprefix(checkpoint.EMA) for name in means} == expected.keys()


@pytest.mark.soak
def test_a_checkpoint_of_any_layout_resumes_in_any_other(one_rank: dict[str, list[float]], tmp_path: Path) -> None:
    layouts = {
        2: {name: MODES[name] for name in ("fsdp", "tensor", "interleaved")},
        4: {name: PRODUCTS[name] for name in ("hsdp", "fsdp x tensor", "pipeline x tensor")},
    }
    for ranks, named in layouts.items():
        run(
            ranks,
            tmp_path / f"write-{ranks}",
            [job(at, (0, 4), write=str(tmp_path / name)) for name, at in named.items()],
        )
    ranks_of = {name: ranks for ranks, named in layouts.items() for name in named}
    pairs = list(permutations(ranks_of, 2))
    for ranks, named in layouts.items():
        jobs = [job(named[to], (4, 7), read=str(tmp_path / source)) for source, to in pairs if to in named]
        for found in run(ranks, tmp_path / f"read-{ranks}", jobs):
            check_equal(found, one_rank, 4)
    assert len(pairs) == 30


@pytest.mark.soak
def test_muon_takes_the_steps_of_one_rank_and_its_state_moves_between_layouts(tmp_path: Path) -> None:
    def muon(layout: dict[str, Any] | None, steps: tuple[int, int] = (0, 7), **more: Any) -> dict[str, Any]:
        return job(layout, steps, optimizer="muon", **more)

    written = {name: str(tmp_path / name) for name in ("fsdp", "one")}
    one, _ = run(1, tmp_path / "1", [muon(None), muon(None, (0, 4), write=written["one"])])
    modes = ("fsdp", "tensor", "pipeline")
    jobs = [*(muon(MODES[mode]) for mode in modes), muon(MODES["fsdp"], (0, 4), write=written["fsdp"])]
    jobs += [muon(MODES["tensor"], (4, 7), read=written[name]) for name in written]
    found = run(2, tmp_path / "2", jobs)
    for result, first in zip(found, (0, 0, 0, 0, 4, 4), strict=True):
        check_equal(result, one, first)


@pytest.mark.soak
def test_replicas_with_bf16_gradients_train_like_one_rank_in_any_layout(
    one_rank: dict[str, list[float]], tmp_path: Path
) -> None:
    layouts = [PRODUCTS[name] for name in ("hsdp", "hsdp, zero-1", "replicas x tensor", "replicas x pipeline")]
    for found in run(4, tmp_path, [job(layout, compression={"kind": "bf16"}) for layout in layouts]):
        np.testing.assert_allclose(found["losses"], one_rank["losses"], rtol=0, atol=5e-3)


@pytest.mark.soak
def test_muon_on_four_ranks_takes_the_steps_of_one(tmp_path: Path) -> None:
    (one,) = run(1, tmp_path / "1", [job(None, optimizer="muon")])
    for found in run(4, tmp_path / "4", [job(layout, optimizer="muon") for layout in PRODUCTS.values()]):
        check_equal(found, one)


WHOLE = config(tie=False).model.model_copy(update={"qk_norm": "projection"})
SUNK = config(tie=False).model.model_copy(update={"attention_sinks": True})


@pytest.mark.parametrize(
    ("layout", "changes", "reason"),
    [
        ({"shard": 3}, {}, "it has 3 ranks, and there are 4"),
        ({"shard": 4}, {"nodes": 2}, r"it has 4 ranks, and there are 8 \(2 nodes x 4\)"),
        ({"shard": 4}, {"batch_size": 6, "microbatch": 1}, "4 ranks cannot share 6 microbatches"),
        ({"tensor": 4}, {}, "tensor = 4 does not divide kv_heads = 2"),
        ({"context": 4}, {"seq_len": 36}, "2 x context = 8 does not divide seq_len = 36"),
        ({"pipeline": 4}, {"tie": True}, "tie_embeddings"),
        ({"tensor": 2, "shard": 2}, {"model": WHOLE}, 'projections that qk_norm = "projection" normalizes whole'),
        ({"tensor": 2, "shard": 2}, {"model": SUNK}, "tensor = 2 divides neither attention_sinks nor output_bias"),
        ({"tensor": 2, "shard": 2, "recompute": "full", "compile": True}, {}, "cannot compile layers with tensor > 1"),
        ({"pipeline": 4, "schedule": "interleaved"}, {}, "4 layers cannot be 8 chunks"),
        ({"pipeline": 4}, {"batch_size": 2, "microbatch": 1}, "2 microbatches per data-parallel rank"),
    ],
)
def test_an_invalid_layout_is_refused_with_its_reason(
    layout: dict[str, Any], changes: dict[str, Any], reason: str
) -> None:
    seq_len, tie, nodes = changes.pop("seq_len", SEQ_LEN), changes.pop("tie", False), changes.pop("nodes", 1)
    with pytest.raises(RecipeError, match=reason):
        check_fit(Layout(**layout), config(tie=tie).model_copy(update=changes), VOCABULARY, seq_len, nodes, 4)


@pytest.mark.parametrize(
    "layout", [{"shard": 8}, {"pipeline": 4, "shard": 2}, {"context": 4, "shard": 2}, {"tensor": 2, "shard": 4}]
)
def test_a_replica_may_span_nodes_and_matrices_that_do_are_warned_about(layout: dict[str, Any]) -> None:
    run = config(tie=False)
    assert not layout_reasons(Layout(**layout), run, ModelShape.of(run.model, VOCABULARY), SEQ_LEN, 4, 2)
    assert not layout_warnings(Layout(**layout), 4, 2)
    (warning,) = layout_warnings(Layout(**layout, replicate=1).model_copy(update={"tensor": 4}), 4, 2)
    assert "tensor = 4 does not divide the 2 ranks of a node" in warning

"""Silent corruption: a flipped bit is traced to its rank, and the run ends with the bytes of a clean run.

A slow rank is reported once per episode; noise is not reported.
"""

import json
import math
import random
import socket
from collections.abc import Iterable
from itertools import chain, repeat
from pathlib import Path

import pytest
import torch

from tasks.core.errors import TransientError
from tasks.formats.tokens import marks
from tasks.trainer.config import TrainSpec
from tasks.trainer.gradient import Gradient
from tasks.trainer.integrity import pace
from tasks.trainer.integrity.corruption import (
    MAX_NORMS,
    MIN_NORMS,
    OUTLIER_RATIO,
    Integrity,
    self_test,
)
from tasks.trainer.integrity.guard import LossGuard
from tasks.trainer.integrity.pace import RECENT, Pace
from tasks.trainer.launch import failure
from tasks.trainer.logs import FAULTS, METRICS, SKIPPED, read_metrics
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.parallel.replica import hash_of, minority
from tasks.trainer.place import Layout, TrainPlace
from tests.corpora import Made
from tests.tasks.trainer.faulty import ranks_of
from tests.tasks.trainer.small_run import digests, small_spec

SOAK = pytest.mark.soak


@pytest.fixture(scope="module")
def clean(made: Made, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The checkpoints of a run of two ranks without a fault."""
    folder = tmp_path_factory.mktemp("clean")
    assert ranks_of(spec_at(made, folder), 2) == [0, 0]
    assert read_metrics(folder / FAULTS) == []
    return digests(folder)


def spec_at(made: Made, folder: Path) -> TrainSpec:
    return small_spec(made, folder, steps=9, checkpoint_every=3, milestones=1, keep_checkpoints=9)


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(folder / METRICS)]


def whats(folder: Path) -> list[str]:
    lines = read_metrics(folder / FAULTS)
    assert {line["kind"] for line in lines} <= {"corruption"}
    return [line["what"] for line in lines]


@pytest.mark.parametrize("where", ["weight", "gradient"])
def test_two_differing_ranks_stop_and_repeating_the_step_names_the_bad_one(
    made: Made, clean: dict[str, str], tmp_path: Path, where: str
) -> None:
    spec = spec_at(made, tmp_path)
    assert ranks_of(spec, 2, **{where: {"rank": 1, "step": 6, "bit": 20}}) == [1, 1]
    causes = [one.cause for one in failure.recorded(tmp_path)]
    assert all("silent corruption at step 7: rank 0 on" in cause and "or rank 1 on" in cause for cause in causes)
    assert ranks_of(spec, 2) == [0, 0], "as the agent starts them again"
    assert digests(tmp_path) == clean
    assert len(whats(tmp_path)) == 2
    assert whats(tmp_path)[1].startswith("rank 1 on ")
    assert whats(tmp_path)[1].endswith("had other weights than when the step was repeated")


def test_corrupt_weights_are_not_saved(made: Made, clean: dict[str, str], tmp_path: Path) -> None:
    spec = spec_at(made, tmp_path)
    # Rank 0 writes; steps 3 to 5 end with a checkpoint.
    assert ranks_of(spec, 2, weight={"rank": 0, "step": 5, "bit": 3}) == [1, 1]
    assert digests(tmp_path, "checkpoints/step-*/*").items() <= clean.items()
    assert not (tmp_path / "checkpoints" / "step-00000006").exists()
    assert ranks_of(spec, 2) == [0, 0]
    assert digests(tmp_path) == clean
    assert whats(tmp_path)[1].startswith("rank 0 on ")
    assert whats(tmp_path)[1].endswith("had other state than when the step was repeated")


def test_a_flipped_gradient_bit_names_its_rank_and_the_step_is_corrected(
    made: Made, clean: dict[str, str], tmp_path: Path
) -> None:
    # Bit 30 is the highest of the exponent: the norm is not finite or far off.
    assert ranks_of(spec_at(made, tmp_path), 2, share={"rank": 1, "step": 8, "bit": 30}) == [0, 0]
    (what,) = whats(tmp_path)
    assert what.startswith("rank 1 on ")
    assert what.endswith("computed two gradients from the same batch")
    assert digests(tmp_path) == clean


def test_a_flipped_low_gradient_bit_is_found_in_a_checked_step(
    made: Made, clean: dict[str, str], tmp_path: Path
) -> None:
    spec = spec_at(made, tmp_path).model_copy(update={"place": TrainPlace(check_every=4)})
    assert ranks_of(spec, 2, share={"rank": 0, "step": 7, "bit": 0}) == [0, 0]
    (what,) = whats(tmp_path)
    assert what.startswith("rank 0 on ")
    assert what.endswith("computed two gradients from the same batch")
    assert digests(tmp_path) == clean


def test_a_rank_that_always_computes_wrong_is_identified_and_ends_the_run(made: Made, tmp_path: Path) -> None:
    spec = small_spec(made, tmp_path, batch_size=6).model_copy(update={"place": TrainPlace(check_every=4)})
    assert ranks_of(spec, 3, activation={"rank": 1, "step": 5, "bit": 12, "last": 99}) == [1, 1, 1]
    (what,) = whats(tmp_path)
    assert what.startswith("rank 1 on ")
    assert what.endswith(": does not compute the gradient that another rank does")
    assert {one.cause for one in failure.recorded(tmp_path)} == {f"silent corruption at step 7: {what}"}


def test_a_rank_that_fails_the_self_test_at_the_start_is_refused_by_rank_and_machine(
    made: Made, tmp_path: Path
) -> None:
    assert ranks_of(small_spec(made, tmp_path, batch_size=6), 3, self_test=2) == [1, 1, 1]
    named = f"rank 2 on {socket.gethostname()} fails the self-test"
    assert whats(tmp_path) == [named]
    assert {one.cause for one in failure.recorded(tmp_path)} == {f"silent corruption at step 0: {named}"}
    assert not list(tmp_path.glob("checkpoints/step-*"))


def layout_at(made: Made, folder: Path, layout: dict[str, int], **settings: int) -> TrainSpec:
    model = ModelConfig(layers=2, dim=32, heads=4, tie_embeddings=False)
    spec = small_spec(made, folder, model=model, **{"checkpoint_every": 4, "milestones": 1, **settings})
    return spec.model_copy(update={"place": TrainPlace(layout=Layout.model_validate(layout), check_every=4)})


@pytest.mark.parametrize(
    ("ranks", "layout"),
    [
        (2, {"shard": 2}),
        pytest.param(2, {"replicate": 2}, marks=SOAK),
        pytest.param(2, {"shard": 2, "zero": 1}, marks=SOAK),
        pytest.param(4, {"replicate": 2, "shard": 2}, marks=SOAK),
    ],
)
def test_in_a_sharded_layout_a_gradient_flip_names_only_its_rank(
    made: Made, tmp_path: Path, ranks: int, layout: dict[str, int]
) -> None:
    for name, fault in (("clean", {}), ("flipped", {"activation": {"rank": 1, "step": 7, "bit": 10}})):
        assert ranks_of(layout_at(made, tmp_path / name, layout, batch_size=8), ranks, **fault) == [0] * ranks
    assert whats(tmp_path / "clean") == []
    (what,) = whats(tmp_path / "flipped")
    assert what.startswith("rank 1 on ")
    assert what.endswith("computed two gradients from the same batch")
    assert losses(tmp_path / "flipped") == losses(tmp_path / "clean")


@pytest.mark.parametrize("layout", [{"tensor": 2}, pytest.param({"replicate": 2}, marks=SOAK)])
def test_in_a_sharded_layout_differing_replicas_end_the_run_and_are_named(
    made: Made, tmp_path: Path, layout: dict[str, int]
) -> None:
    spec = layout_at(made, tmp_path, layout)
    assert ranks_of(spec, 2, weight={"rank": 1, "step": 5, "bit": 20}) == [1, 1]
    assert ranks_of(spec, 2) == [0, 0]
    first, second = whats(tmp_path)
    assert "not equal to those of the other" in first
    assert second.startswith("rank 1 on ")
    assert second.endswith("than when the step was repeated")


def test_a_slow_rank_of_a_sharded_run_is_named(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "RECENT", 10)
    monkeypatch.setattr(pace, "EVERY", 1)
    assert ranks_of(layout_at(made, tmp_path, {"shard": 2}), 2, slow={"rank": 1}) == [0, 0]
    (line,) = read_metrics(tmp_path / FAULTS)
    assert line["kind"] == "slow_rank"
    assert line["what"].startswith("rank 1 on ")
    assert "per fixed matrix product" in line["what"]


@pytest.mark.parametrize("layout", [None, {"shard": 2}, {"pipeline": 2}])
def test_a_non_finite_value_on_one_rank_is_refused_by_all(
    made: Made, tmp_path: Path, layout: dict[str, int] | None
) -> None:
    spec = small_spec(made, tmp_path, steps=6, model=ModelConfig(layers=2, dim=32, heads=4, tie_embeddings=False))
    spec = spec.model_copy(update={"place": TrainPlace(layout=layout and Layout.model_validate(layout))})
    assert ranks_of(spec, 2, nan={"number": 1, "step": 3}) == [0, 0]
    assert [line["loss"] is None for line in read_metrics(tmp_path / METRICS)] == [False] * 3 + [True] + [False] * 2
    assert [line["step"] for line in read_metrics(tmp_path / SKIPPED)] == [3]
    assert not (tmp_path / marks.FILE).exists(), "it was not the documents"
    assert read_metrics(tmp_path / FAULTS) == []


class Fixed:
    """A computer of gradients, and its replica, with the gradient share and the norms given by the test.

    Like a sharded rank it has a share only of gradients that are compared.
    """

    def __init__(self, shares: list[float], tolerance: float = 0.0, norms: Iterable[float] = ()) -> None:
        self.shares, self.share_tolerance = iter(shares), tolerance
        self.share: float | None = None
        self.copies, self.hashes, self.peers, self.ranks = [], [], [0], Ranks(0, 1, 0)
        self.replica, self.calls, self.norms = self, 0, iter(norms)

    def gradient(self, parts: object, compared: bool) -> Gradient:
        self.share = next(self.shares) if compared else None
        self.calls += 1
        return Gradient(2.0, next(self.norms, 1.0), 8, False)


class Kept:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def report(self, kind: str, step: int, what: str, do: str) -> None:
        self.lines.append(what)


def alone(folder: Path, computer: Fixed, every: int) -> tuple[Integrity, Kept]:
    faults = Kept()
    return Integrity(folder, computer, LossGuard(), faults, "CPU", every), faults  # type: ignore[arg-type]


def computed(integrity: Integrity, computer: Fixed, steps: int) -> list[int]:
    """How often the gradient of each step is computed."""
    counts = []
    for step in range(steps):
        before = computer.calls
        integrity.gradient(step, {})
        counts.append(computer.calls - before)
    return counts


def test_a_rank_that_never_computes_the_same_ends_the_run(tmp_path: Path) -> None:
    integrity, faults = alone(tmp_path, Fixed([1, 2, 3, 4, 5, 6]), 5)
    with pytest.raises(TransientError, match=r"rank 0 on .* does not compute the same gradient twice"):
        integrity.gradient(4, {})
    assert len(faults.lines) == 3


def test_with_nondeterministic_kernels_only_differences_beyond_noise_are_faults(tmp_path: Path) -> None:
    integrity, faults = alone(tmp_path, computer := Fixed([1.0, 1.001], 0.01), 5)
    integrity.gradient(4, {})
    assert (computer.calls, faults.lines) == (2, [])
    integrity, faults = alone(tmp_path, computer := Fixed([1.0, 1.1, 1.0, 1.0], 0.01), 5)
    integrity.gradient(4, {})
    assert (computer.calls, len(faults.lines)) == (4, 1)


def test_a_gradient_is_recomputed_only_in_a_checked_step_or_on_suspicion(tmp_path: Path) -> None:
    # The norm of a step, and of its two recomputations if it is suspicious: an outlier, or refused by the guard.
    norms = [*[1.0] * MIN_NORMS, 2.0, *[OUTLIER_RATIO + 1] * 3, 1.0, *[math.nan] * 3, 1.0]
    integrity, faults = alone(tmp_path, computer := Fixed([7] * 200, norms=norms), 0)
    assert computed(integrity, computer, MIN_NORMS + 5) == [1] * (MIN_NORMS + 1) + [3, 1, 3, 1]
    integrity, faults = alone(tmp_path, computer := Fixed([7] * 200), 4)
    assert computed(integrity, computer, 9) == [1, 1, 1, 2, 1, 1, 1, 2, 1]
    assert faults.lines == []


def test_the_first_transient_flip_of_a_sharded_rank_is_corrected_and_the_second_one_named(tmp_path: Path) -> None:
    far = OUTLIER_RATIO + 1
    # Of each flip its own norm, and those of two computations that agree; only the second one has a share, 9.
    norms = [*[1.0] * MIN_NORMS, far, 1.0, 1.0, far, 1.0, 1.0]
    integrity, faults = alone(tmp_path, computer := Fixed([7, 7, 9, 7, 7], norms=norms), 0)
    found = [integrity.gradient(step, {}).norm for step in range(MIN_NORMS + 2)]
    assert found == [1.0] * (MIN_NORMS + 2)
    unnamed, named = faults.lines
    assert unnamed == (
        "a rank computed two gradients from the same batch (loss 2 and norm 11, and again 2 and 1); it is not known "
        "which"
    )
    assert named.startswith("rank 0 on ")
    assert next(computer.shares, None) is None


def test_a_new_level_of_norms_becomes_the_usual_one(tmp_path: Path) -> None:
    high = 2.0 * OUTLIER_RATIO
    integrity, _ = alone(tmp_path, computer := Fixed([7] * 900, norms=chain([1.0] * MAX_NORMS, repeat(high))), 0)
    counts = computed(integrity, computer, 2 * MAX_NORMS)
    assert counts[MAX_NORMS] == 3
    assert counts[3 * MAX_NORMS // 2 + 1 :] == [1] * (MAX_NORMS // 2 - 1), "once most of the window has it"


def test_every_bit_changes_the_hash() -> None:
    values = torch.randn(50, generator=torch.Generator().manual_seed(1))
    before = int(hash_of([values, values]))
    for bit in range(32):
        other = values.clone()
        other.view(torch.int32)[17] ^= torch.tensor(1 << bit if bit < 31 else -(2**31), dtype=torch.int32)
        assert int(hash_of([values, other])) != before
    assert self_test(torch.device("cpu")) == self_test(torch.device("cpu"))
    assert minority({0: 1.0, 1: 1.0, 2: 5.0, 3: 1.0}) == [2]


@pytest.mark.soak
def test_fifty_clean_runs_report_no_corruption(made: Made, tmp_path: Path) -> None:
    for number in range(50):
        folder = tmp_path / str(number)
        spec = small_spec(made, folder, steps=12, init_seed=number, seed=number)
        spec = spec.model_copy(update={"place": TrainPlace(check_every=2)})
        assert ranks_of(spec, 2) == [0, 0], failure.recorded(folder)
        assert read_metrics(folder / FAULTS) == [], json.dumps(number)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("ranks", "layout"),
    [
        (2, {"shard": 2}),
        (2, {"tensor": 2}),
        (2, {"context": 2}),
        (2, {"pipeline": 2, "schedule": "interleaved"}),
        (4, {"replicate": 2, "shard": 2}),
        (4, {"replicate": 2, "tensor": 2}),
        (4, {"shard": 2, "tensor": 2}),
        (4, {"pipeline": 2, "shard": 2}),
    ],
)
def test_clean_sharded_runs_report_no_corruption(
    made: Made, tmp_path: Path, ranks: int, layout: dict[str, int]
) -> None:
    for number in range(3):
        model = ModelConfig(layers=4, dim=32, heads=4, kv_heads=2, tie_embeddings=False)
        spec = layout_at(made, tmp_path / str(number), layout, batch_size=8, seed=number, steps=16)
        run = spec.run.model_copy(update={"model": model})
        spec = spec.model_copy(update={"run": run, "place": TrainPlace(check_every=2)})
        assert ranks_of(spec, ranks) == [0] * ranks, failure.recorded(tmp_path / str(number))
        assert read_metrics(tmp_path / str(number) / FAULTS) == []


def test_a_slow_rank_is_named_once_and_again_after_it_has_recovered() -> None:
    pace, found = Pace("step"), []
    for step in range(6 * RECENT):
        throttled = RECENT <= step < 2 * RECENT or step >= 4 * RECENT
        found += [(step, *one) for one in pace.step([1.0, 1.0, 1.5 if throttled else 1.0, 1.0])]
    assert [(rank, mine, others) for _, rank, mine, others in found] == [(2, 1.5, 1.0)] * 2
    assert [step // RECENT for step, *_ in found] == [1, 4]


def test_noise_single_slow_steps_and_milliseconds_name_no_rank() -> None:
    draw = random.Random(3)
    for base in (0.004, 1.0):
        pace = Pace("step")
        for step in range(1000):
            seconds = [base * draw.uniform(0.8, 1.2) * (9 if step % 70 == rank else 1) for rank in range(4)]
            assert pace.step(seconds) == []
    pace = Pace("step")
    assert [pace.step([0.004, 0.012]) for _ in range(200)] == [[]] * 200
    assert Pace("step").step([]) == Pace("step").step([1.0]) == []

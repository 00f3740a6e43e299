"""Silent corruption: a flipped bit names its rank, the run ends with the bytes of a clean one, and clean runs are."""

import json
from pathlib import Path

import pytest
import torch

from tasks.core.errors import TransientError
from tasks.formats.tokens import marks
from tasks.trainer import failure
from tasks.trainer.config import ModelConfig, TrainSpec
from tasks.trainer.faults import FILE as FAULTS
from tasks.trainer.integrity import EVERY, FAR, SOME, Integrity
from tasks.trainer.layout import Layout
from tasks.trainer.metrics import FILE as METRICS
from tasks.trainer.metrics import SKIPPED, read_metrics
from tasks.trainer.ranks import Ranks
from tasks.trainer.self_test import hash_of, minority, self_test
from tests.corpora import Made
from tests.tasks.trainer.faulty import ranks_of
from tests.tasks.trainer.small_run import digests, small_spec


@pytest.fixture(scope="module")
def clean(made: Made, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The checkpoints of a run of two ranks without a fault."""
    folder = tmp_path_factory.mktemp("clean")
    assert ranks_of(spec_at(made, folder), 2) == [0, 0]
    assert read_metrics(folder / FAULTS) == []
    return digests(folder)


def spec_at(made: Made, folder: Path) -> TrainSpec:
    return small_spec(made, folder, steps=9, checkpoint_every=3, milestones=1, keep_checkpoints=9)


def whats(folder: Path) -> list[str]:
    lines = read_metrics(folder / FAULTS)
    assert {line["kind"] for line in lines} <= {"corruption"}
    return [line["what"] for line in lines]


@pytest.mark.parametrize("where", ["weight", "gradient"])
def test_two_ranks_that_differ_end_and_the_repeated_step_names_the_rank(
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
    # Rank 0 is the one that writes; steps 3 to 5 end with a checkpoint.
    assert ranks_of(spec, 2, weight={"rank": 0, "step": 5, "bit": 3}) == [1, 1]
    assert digests(tmp_path, "checkpoints/step-*/*").items() <= clean.items()
    assert not (tmp_path / "checkpoints" / "step-00000006").exists()
    assert ranks_of(spec, 2) == [0, 0]
    assert digests(tmp_path) == clean
    assert whats(tmp_path)[1].startswith("rank 0 on ")
    assert whats(tmp_path)[1].endswith("had other state than when the step was repeated")


def test_a_flipped_bit_of_a_rank_s_gradient_names_it_and_the_step_is_right(
    made: Made, clean: dict[str, str], tmp_path: Path
) -> None:
    # Bit 30 is the highest of the exponent: the norm is not finite or far off.
    assert ranks_of(spec_at(made, tmp_path), 2, share={"rank": 1, "step": 8, "bit": 30}) == [0, 0]
    (what,) = whats(tmp_path)
    assert what.startswith("rank 1 on ")
    assert what.endswith("computed two gradients from the same batch")
    assert digests(tmp_path) == clean


@pytest.mark.parametrize("layout", [None, {"shard": 2}, {"pipeline": 2}])
def test_what_is_not_finite_on_one_rank_is_refused_by_all(
    made: Made, tmp_path: Path, layout: dict[str, int] | None
) -> None:
    spec = small_spec(made, tmp_path, steps=6, model=ModelConfig(layers=2, dim=32, heads=4, tie_embeddings=False))
    spec = spec.model_copy(update={"layout": layout and Layout.model_validate(layout)})
    assert ranks_of(spec, 2, nan={"rank": 1, "step": 3}) == [0, 0]
    assert [line["loss"] is None for line in read_metrics(tmp_path / METRICS)] == [False] * 3 + [True] + [False] * 2
    assert [line["step"] for line in read_metrics(tmp_path / SKIPPED)] == [3]
    assert not (tmp_path / marks.FILE).exists(), "it was not the documents"
    assert read_metrics(tmp_path / FAULTS) == []


class Fixed:
    """A replica whose share of the gradient is what the test says."""

    def __init__(self, shares: list[int]) -> None:
        self.shares, self.share, self.hashes, self.replica_size = iter(shares), 0, list[float](), 1

    def compute(self) -> tuple[float, float, int, bool]:
        self.share = next(self.shares)
        return 2.0, 1.0, 8, False

    def state_hash(self) -> torch.Tensor:
        raise NotImplementedError


class Kept:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def report(self, kind: str, step: int, what: str, do: str) -> None:
        self.lines.append(what)


def test_a_rank_that_never_computes_the_same_ends_the_run(tmp_path: Path) -> None:
    replica, faults = Fixed([1, 2, 3, 4]), Kept()
    integrity = Integrity(tmp_path, Ranks(0, 1, 0), replica, faults, "CPU")  # type: ignore[arg-type]
    with pytest.raises(TransientError, match=r"rank 0 on .* does not compute the same gradient twice"):
        integrity.gradient(EVERY - 1, replica.compute, lambda found: False)
    assert len(faults.lines) == 4


def test_a_gradient_is_computed_again_only_on_suspicion(tmp_path: Path) -> None:
    norms = [1.0] * SOME + [2.0, FAR + 1, 1.0]
    replica, faults = Fixed([7] * 200), Kept()
    integrity = Integrity(tmp_path, Ranks(0, 1, 0), replica, faults, "CPU")  # type: ignore[arg-type]
    calls: list[int] = []
    for step, norm in enumerate(norms):

        def compute(norm: float = norm, step: int = step) -> tuple[float, float, int, bool]:
            calls.append(step)
            replica.compute()
            return 2.0, norm, 8, False

        integrity.gradient(step, compute, lambda found: False)
    assert [step for step in set(calls) if calls.count(step) > 1] == [SOME + 1]
    assert faults.lines == []


def test_the_hash_shows_every_bit() -> None:
    values = torch.randn(50, generator=torch.Generator().manual_seed(1))
    before = int(hash_of([values, values]))
    for bit in range(32):
        other = values.clone()
        other.view(torch.int32)[17] ^= torch.tensor(1 << bit if bit < 31 else -(2**31), dtype=torch.int32)
        assert int(hash_of([values, other])) != before
    assert self_test(torch.device("cpu")) == self_test(torch.device("cpu"))
    assert minority({0: 1.0, 1: 1.0, 2: 5.0, 3: 1.0}) == [2]


@pytest.mark.soak
def test_fifty_clean_runs_raise_nothing(made: Made, tmp_path: Path) -> None:
    for number in range(50):
        folder = tmp_path / str(number)
        spec = small_spec(made, folder, steps=12, init_seed=number, seed=number)
        assert ranks_of(spec, 2) == [0, 0]
        assert read_metrics(folder / FAULTS) == [], json.dumps(number)

"""Runs whose loss rises because their data becomes harder, planned or not, and that also meet poison.

Other small runs have so much noise that a change of the data is no spike. Here almost all of the first stage is
learned, so the noise of its loss is 0.02 nats, and the harder source of the second stage costs 9 nats per token at
first.
"""

import random
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from statistics import fmean

import pyarrow as pa
import pytest
from tokenizers import Tokenizer

from tasks.core.stage import Inputs
from tasks.formats.tokens import marks
from tasks.formats.tokens.shard import ShardSet
from tasks.stages.canary import CanaryConfig
from tasks.stages.canary import run as canary
from tasks.trainer.config import AnnealConfig, OptimConfig, TrainSpec
from tasks.trainer.data.batches import Batches
from tasks.trainer.data.heldout import heldout_documents
from tasks.trainer.integrity.guard import ROLL_BACK_AFTER
from tasks.trainer.logs import DETERMINISTIC, FAULTS, METRICS, SKIPPED, read_metrics
from tasks.trainer.loop import Trainer, TrainingStopped
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.spec import make_spec
from tests.corpora import WORDS, Made, kept_document, tokens_in
from tests.tasks.trainer.faulty import poison
from tests.tasks.trainer.small_run import small_config
from tests.tasks.trainer.test_loop import ALONE, stop_after

STEPS, CHANGE, BATCH = 280, 200, 8
SEED = 22
GARBAGE_AT = range(CHANGE - 20, CHANGE)
"""With this seed, one of these steps is the first to read the garbage: the first losses have left the window."""
BELL = "\a"
GARBAGE, BELLS = "https://garbage.org/1", [f"https://bell.org/{index}" for index in range(3)]
SOAK = pytest.mark.soak
Place = tuple[str, int]
"""Shard and row of a document."""


def documents() -> Iterator[dict]:
    """An easy source with a document of garbage, and a harder source with three that are not a number to the model."""
    draw = random.Random(3)
    cycle = ["water ", "river ", "stone ", "light "] * 20
    for index in range(2700):
        yield kept_document(f"https://easy.org/{index}", "".join(cycle[index % 4 :][: draw.randint(20, 60)]), "easy")
    yield kept_document(GARBAGE, "".join(chr(draw.randint(0x4E00, 0x9FFF)) for _ in range(20)), "easy")
    for url in [f"https://hard.org/{index}" for index in range(240)] + BELLS:
        between = f" {BELL} " if url in BELLS else " "
        yield kept_document(url, between.join(draw.choices(WORDS, k=draw.randint(20, 60))), "hard")


@pytest.fixture(scope="module")
def harder(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return tokens_in(tmp_path_factory.mktemp("harder"), list(documents()), seq_len=64, method="best_fit")


def places(made: Made, urls: Collection[str]) -> set[Place]:
    """The places of documents in the token shards."""
    uids = {bytes.fromhex(row["id"]) for row in documents() if row["url"] in urls}
    found = set()
    for path in made.shards.files("shards/"):
        column = pa.ipc.open_file(pa.memory_map(made.shards.local(path))).read_all()["doc_uid"].to_pylist()
        found |= {(Path(path).stem, row) for row, uid in enumerate(column) if uid in uids}
    assert len(found) == len(urls)
    return found


def spec_of(made: Made, out: Path, share: float) -> TrainSpec:
    out.mkdir(parents=True, exist_ok=True)
    run = small_config(
        model=ModelConfig(layers=1, dim=32, heads=2, kv_heads=2),
        optim=OptimConfig(lr=1e-2, warmup_steps=5, decay_share=0.2),
        steps=STEPS, batch_size=BATCH, microbatch=BATCH, checkpoint_every=50, milestones=1, seed=SEED,
        mixture={"easy": 1.0, "hard": 0.0},
        anneal=AnnealConfig(share=1 - CHANGE / STEPS, mixture={"easy": 1 - share, "hard": share}),
    )  # fmt: skip
    return make_spec(run, Inputs({"shards": made.shards, "plan": made.plan}), out)


def arm_of(made: Made, out: Path, share: float) -> TrainSpec:
    """The same run as a canary's arm, whose setting the second stage is."""
    run = spec_of(made, out, share).run
    assert run.anneal is not None
    same = {name: getattr(run, name) for name in ("model", "optim", "steps", "batch_size", "microbatch")}
    late = {"share": run.anneal.share, "mixture": run.anneal.mixture}
    arm = {"arm": "arm-1", "weights": run.mixture, "set": {"train.anneal": late}}
    inputs = Inputs({"shards": made.shards, "plan": made.plan})
    documents = {"easy": heldout_documents(ShardSet.open(made.shards), "easy", 100)}
    return canary._spec(CanaryConfig(**same), inputs, arm, SEED, documents, out)


def read_in(spec: TrainSpec, steps: range) -> set[Place]:
    """The documents of some steps."""
    batches = Batches(spec)
    try:
        return set[Place]().union(*map(batches.documents, steps))
    finally:
        batches.close()


def trainer_of(made: Made, spec: TrainSpec) -> Trainer:
    trainer = Trainer(spec, ALONE)
    poison(trainer, Tokenizer.from_file(str(made.tokenizer.local("tokenizer.json"))).encode(BELL).ids)
    return trainer


@pytest.mark.parametrize(
    ("share", "planned", "of"),
    [
        pytest.param(0.1, True, spec_of, marks=SOAK),
        pytest.param(0.3, True, spec_of, marks=SOAK),
        (1.0, True, spec_of),
        (0.3, True, arm_of),
        pytest.param(1.0, True, arm_of, marks=SOAK),
        pytest.param(0.05, False, spec_of, marks=SOAK),
        pytest.param(0.1, False, spec_of, marks=SOAK),
        pytest.param(0.3, False, spec_of, marks=SOAK),
        (1.0, False, spec_of),
        pytest.param(1.0, False, arm_of, marks=SOAK),
    ],
)
def test_a_harder_source_is_learned_and_only_real_poison_is_withheld(
    harder: Made,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    share: float,
    planned: bool,
    of: Callable[[Made, Path, float], TrainSpec],
) -> None:
    """The garbage is read before the change and the bells after it, in the same run."""
    spec, poisonous = of(harder, tmp_path, share), places(harder, [GARBAGE, *BELLS])
    assert places(harder, [GARBAGE]) <= read_in(spec, GARBAGE_AT) - read_in(spec, range(GARBAGE_AT[0]))
    if not planned:
        monkeypatch.setattr(TrainSpec, "data_changes", ())
    trainer_of(harder, spec).train()

    found = marks.from_json((tmp_path / marks.FILE).read_bytes())
    assert {(shard, row) for mark in found for shard, rows in mark.rows.items() for row in rows} == (
        poisonous & read_in(spec, range(STEPS))
    )
    assert {mark.reason for mark in found} == {"loss_spike", "loss_not_finite"}
    assert not any(mark.shards for mark in found)
    faults = read_metrics(tmp_path / FAULTS)
    assert [(fault["kind"], fault["step"]) for fault in faults] == [("poison", mark.step) for mark in found]
    losses = [line["loss"] for line in read_metrics(tmp_path / METRICS)]
    assert len(losses) == STEPS
    refused = [step for step, loss in enumerate(losses) if loss is None]
    if planned:
        assert refused == []
    else:
        assert CHANGE <= refused[0] < CHANGE + 20
        assert len(refused) < 2 * ROLL_BACK_AFTER
        skipped = read_metrics(tmp_path / SKIPPED)
        assert all("so the weights are good and the data is the cause" in line["cause"] for line in skipped)
    # At first each token of the harder source costs 9 nats, and then at most the entropy of its words.
    assert fmean(loss for loss in losses[-20:] if loss) < 0.15 + 3 * share


@SOAK
def test_a_run_that_resumes_beside_a_change_is_the_same(
    harder: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped at the change, the window is that of the first stage; two steps later, one of them has been refused."""

    def losses(name: str, *stops: int) -> list[dict[str, object]]:
        spec = spec_of(harder, tmp_path / name, 0.3)
        short = spec.model_copy(update={"run": spec.run.model_copy(update={"steps": CHANGE + 30})})
        for stop in stops:
            trainer = trainer_of(harder, short)
            stop_after(trainer, stop)
            with pytest.raises(TrainingStopped):
                trainer.train()
        trainer_of(harder, short).train()
        return [{key: line[key] for key in DETERMINISTIC} for line in read_metrics(tmp_path / name / METRICS)]

    assert losses("planned", CHANGE - 1, CHANGE + 1) == losses("whole")
    monkeypatch.setattr(TrainSpec, "data_changes", ())
    unplanned = losses("unplanned", CHANGE + 1)
    assert any(line["loss"] is None for line in unplanned)
    assert unplanned == losses("uninterrupted")

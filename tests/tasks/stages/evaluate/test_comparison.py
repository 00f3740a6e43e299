"""Two models on the same documents and items: comparisons, their intervals, and resumption after a kill."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.stage import Output
from tasks.core.store import Store
from tasks.formats.tokens.shard import ShardSet
from tasks.stages.evaluate import stage
from tasks.stages.tokens import TokenizerConfig
from tasks.trainer.data.heldout import HeldoutDocument
from tasks.trainer.evaluation import paired
from tasks.trainer.evaluation.comparison import Comparison, Contender, compare, encode_texts, texts_of
from tasks.trainer.evaluation.config import EvaluateConfig
from tasks.trainer.evaluation.paired import PairedDifference
from tests.conftest import run_stage_in
from tests.corpora import Made, kept_document, tokens_in
from tests.tasks.stages.evaluate.conftest import as_model_folder
from tests.tasks.stages.evaluate.test_tasks import QUESTIONS, by_hand, choices, rows_in, scorer_of
from tests.tasks.trainer.in_process import training_in_process
from tests.tasks.trainer.small_run import small_config


def output_in(folder: Path) -> Output:
    return Output(Store(str(folder)), ArtifactId("test/comparison", "dev"), "f" * 64)


def held_out(made: Made) -> dict[str, list]:
    return texts_of(ShardSet.open(made.shards), made.tokenizer.read("tokenizer.json").decode(), 10**9)


def of_folder(label: str, folder: Path) -> Contender:
    """The model of a model folder."""
    description, tokenizer = folder / "model.json", (folder / "tokenizer.json").read_text()
    context = json.loads(description.read_text())["seq_len"]
    return Contender(label, str(folder), description, folder / "model.safetensors", tokenizer, context)


def by_name(found: Sequence[Comparison]) -> dict[str, Comparison]:
    return {one.name: one for one in found}


@pytest.fixture(scope="module")
def young(made: Made, trained: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same model after a third of its steps."""
    return as_model_folder(tmp_path_factory.mktemp("young"), made, trained, 50)


def test_a_longer_training_is_better_in_total_and_by_item(
    made: Made, trained: Artifact, young: Path, tmp_path: Path
) -> None:
    from scipy.stats import ttest_rel  # takes a second

    config = EvaluateConfig(tasks=(choices(rows_in(tmp_path, QUESTIONS)),))
    first, second = of_folder("young", young), Contender.of_artifact("old", trained, made.tokenizer)
    found = by_name(compare(first, second, held_out(made), config, output_in(tmp_path)))
    inputs = {"checkpoint": trained, "shards": made.shards, "tokenizer": made.tokenizer}
    scored = run_stage_in(tmp_path, "tasks.stages.evaluate.stage", config, inputs)  # type: ignore[arg-type]
    scores = json.loads(scored.read("scores.json"))
    assert list(found) == ["code", "my-books", "web", "quiz"]
    for source, score in scores["sources"].items():
        assert found[source].second == score["bpb"]
        assert found[source].difference.value == pytest.approx(found[source].first - found[source].second)
    (task,) = scores["tasks"]
    assert (found["quiz"].metric, found["quiz"].second) == ("bpb", task["metrics"]["bpb"]["value"])
    before = scorer_of(made, trained, 50)
    bits = [
        -by_hand(before, row["query"], f" {row['choices'][row['gold']]}")
        / math.log(2)
        / len(row["choices"][row["gold"]].encode())
        for row in QUESTIONS
    ]
    (path,) = scored.files("tasks/")
    interval = ttest_rel(bits, scored.table(path).column("bpb").to_pylist()).confidence_interval(0.95)
    assert found["quiz"].difference.interval(0.95) == pytest.approx((interval.low, interval.high), rel=1e-4)


def test_a_model_is_not_better_than_itself(made: Made, trained: Artifact, model_folder: Path, tmp_path: Path) -> None:
    config = EvaluateConfig(tasks=(choices(rows_in(tmp_path, QUESTIONS)),))
    first, second = of_folder("one", model_folder), Contender.of_artifact("two", trained, made.tokenizer)
    for one in compare(first, second, held_out(made), config, output_in(tmp_path)):
        assert one.difference.interval(0.95) == (0.0, 0.0), one.name


def test_a_model_of_another_tokenizer_is_compared_on_the_text(made: Made, trained: Artifact, tmp_path: Path) -> None:
    rows = [row for path in made.documents.files("kept/") for row in made.documents.table(path).to_pylist()]
    folder = tmp_path / "other"
    tokenizer = run_stage_in(folder, "tasks.stages.tokens.bpe", TokenizerConfig(vocab_size=280, seed=3),
                             {"documents": made.documents}, kind="other")  # fmt: skip
    other = tokens_in(folder, rows, tokenizer_file=Store(str(folder)).url(f"{tokenizer.path}/tokenizer.json"))
    inputs = {"shards": other.shards, "plan": other.plan}
    with training_in_process():
        model = run_stage_in(folder, "tasks.stages.train.stage", small_config(), inputs, kind="checkpoint")  # type: ignore[arg-type]
    first = Contender.of_artifact("other", model, other.tokenizer)
    second = Contender.of_artifact("ours", trained, made.tokenizer)
    texts, output = held_out(made), output_in(tmp_path)
    found = by_name(compare(first, second, texts, EvaluateConfig(), output))
    scored = run_stage_in(folder, "tasks.stages.evaluate.stage", EvaluateConfig(),
                          {"checkpoint": model, "shards": other.shards, "tokenizer": other.tokenizer})  # type: ignore[arg-type]  # fmt: skip
    scores = json.loads(scored.read("scores.json"))
    # Documents are held out by id, so both encodings hold out the same ones.
    assert {name: one.first for name, one in found.items()} == {
        name: score["bpb"] for name, score in scores["sources"].items()
    }
    sizes = [len(one.text.encode()) for some in texts.values() for one in some]
    rows_of = [record.rows_out for name, record in sorted(output.committed.items())]
    assert sum(rows_of) == 2 * len(sizes)


def test_a_document_is_encoded_as_the_shards_have_it_special_tokens_in_its_text_included(tmp_path: Path) -> None:
    text = "the river <|endoftext|> of\nlight \x00 naïve e\u0301 数据"
    rows = [kept_document(f"https://h.org/{index}", f"{text} {index}") for index in range(40)]
    made = tokens_in(tmp_path, rows)
    shards = ShardSet.open(made.shards)
    texts = held_out(made)["web"]
    found: list[HeldoutDocument] = list(
        encode_texts(texts, made.tokenizer.read("tokenizer.json").decode(), shards.format.eos_id)
    )
    for (uid, tokens, n_bytes), one, plain in zip(shards.heldout("web"), found, texts, strict=True):
        assert (one.uid, one.tokens.tolist(), one.n_bytes) == (uid, tokens.tolist(), n_bytes)
        assert plain.text.startswith(text)


def test_scores_from_before_a_kill_are_reused(
    made: Made, trained: Artifact, young: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EvaluateConfig(tasks=(choices(rows_in(tmp_path, QUESTIONS)),))
    first, second = of_folder("young", young), Contender.of_artifact("old", trained, made.tokenizer)
    whole = output_in(tmp_path / "whole")
    expected = compare(first, second, held_out(made), config, whole)
    loads, load = [], Contender.load

    def counted(contender: Contender, batch_tokens: int):
        loads.append(contender.label)
        if len(loads) == 2:
            raise KeyboardInterrupt
        return load(contender, batch_tokens)

    monkeypatch.setattr(Contender, "load", counted)
    with pytest.raises(KeyboardInterrupt):
        compare(first, second, held_out(made), config, output_in(tmp_path / "killed"))
    resumed = output_in(tmp_path / "killed")
    assert compare(first, second, held_out(made), config, resumed) == expected
    assert loads == ["young", "old", "old"]
    files = [{name: record.files for name, record in one.committed.items()} for one in (whole, resumed)]
    assert files[0] == files[1]


def test_the_interval_over_documents_has_its_nominal_coverage() -> None:
    draw = np.random.default_rng(1)
    hits = 0
    for _ in range(500):
        sizes = np.exp(draw.normal(6, 0.6, 60))
        low, high = paired.of_sized(sizes * draw.normal(0.02, 0.05, 60), sizes).interval(0.95)
        hits += low <= 0.02 <= high
    assert 0.92 <= hits / 500 <= 0.975


def test_combined_variances_add_like_independent_errors() -> None:
    one, two = PairedDifference(0.1, 0.04, 9), PairedDifference(0.3, 0.04, 9)
    both = paired.mean([one, two])
    assert (both.value, both.variance, both.freedom) == pytest.approx((0.2, 0.02, 18))
    wide = paired.widened(both, [(0.02, 1)])
    assert (wide.value, wide.variance) == pytest.approx((0.2, 0.04))
    assert wide.freedom == pytest.approx(0.04**2 / (0.02**2 / 18 + 0.02**2))
    assert wide.interval(0.95)[0] < both.interval(0.95)[0]


@pytest.mark.parametrize("differences", [[0.5], [1.0, 1.0, 1.0], [0.1, 0.1, 0.1]])
def test_zero_spread_gives_no_interval(differences: list[float]) -> None:
    assert paired.of_items(differences).interval(0.95) == (-math.inf, math.inf)


def test_a_model_without_its_tokenizer_is_refused(trained: Artifact) -> None:
    with pytest.raises(InputError, match="contains no tokenizer"):
        Contender.of_artifact("one", trained)
    assert stage.milestones(trained) == [50, 100, 150]

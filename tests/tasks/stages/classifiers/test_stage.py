import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.filters.batch import DocumentBatch
from tasks.filters.classifier import ClassifierMeasures
from tasks.filters.quality import QualityMeasures
from tasks.stages.classifiers import ClassifiersConfig, ClassifierSettings, CrawlTexts, FastTextSettings, Texts
from tasks.stages.classifiers.stage import external
from tasks.stages.classifiers.texts import LabeledText
from tasks.stages.classifiers.training import TrainedClassifier, train
from tests.conftest import run_stage_in
from tests.s3_server import S3Server
from tests.tasks.stages.classifiers.texts_by_hand import extracted_in, jsonl, learned, shop

SMALL = FastTextSettings(epochs=25, learning_rate=0.5, dimensions=8, buckets=1000)


def gate(folder: Path, **changes: object) -> ClassifierSettings:
    """A small version of DCLM's recipe: reference text against crawl."""
    path = jsonl(folder / "reference.jsonl", ({"text": learned(seed)} for seed in range(120)))
    settings = {
        "name": "quality",
        "texts": (Texts(path=path, label="reference"),),
        "crawl": CrawlTexts(documents=100),
        "positive": "reference",
        "heldout_share": 0.3,
        "fasttext": SMALL,
        "purpose": "Tells reference text from the crawl.",
    }
    return ClassifierSettings(**{**settings, **changes})


@pytest.fixture
def crawl(tmp_path: Path) -> Artifact:
    return extracted_in(tmp_path, (shop(seed) for seed in range(200)))


def trained(run_stage: Callable, crawl: Artifact, *settings: ClassifierSettings, **options: object) -> Artifact:
    return run_stage(
        "tasks.stages.classifiers.stage",
        ClassifiersConfig(train=settings),
        {"extracted": crawl},
        kind="classifiers",
        **options,
    )


def test_training_on_reference_text_and_crawl_gives_a_model_a_card_and_scores(
    tmp_path: Path, crawl: Artifact, run_stage: Callable
) -> None:
    artifact = trained(run_stage, crawl, gate(tmp_path))
    assert artifact.files("quality/") == [
        "quality/card.md",
        "quality/model.bin",
        "quality/model.json",
        "quality/scores.json",
    ]
    scores = json.loads(artifact.read("quality/scores.json"))
    assert scores["auc"] > 0.95
    assert set(scores["baselines"]) == {"majority", "length"}
    assert artifact.record.metrics["quality_auc"] == scores["auc"]
    page = artifact.read("quality/card.md").decode()
    for said in ("Tells reference text from the crawl.", "reference.jsonl", "sha256", "Intended use and limits"):
        assert said in page


def test_the_annotator_uses_the_trained_model(tmp_path: Path, crawl: Artifact, run_stage: Callable) -> None:
    artifact = trained(run_stage, crawl, gate(tmp_path))
    annotator = ClassifierMeasures(models=("quality",))
    annotator.prepare({"classifiers": artifact})
    column = annotator.annotate(DocumentBatch([learned(999), shop(999), "", "!"]))
    good, bad, nothing, _ = column.field("quality").to_pylist()
    assert good > 0.8 > 0.2 > bad
    assert nothing == 0


def test_two_trainings_give_the_same_bytes(tmp_path: Path, crawl: Artifact, run_stage: Callable) -> None:
    both = [
        trained(run_stage, crawl, gate(tmp_path), version=version, workers=workers)
        for version, workers in (("one", 0), ("two", 2))
    ]
    assert both[0].record.content == both[1].record.content


def test_training_gives_the_same_bytes_in_any_process(tmp_path: Path) -> None:
    environment = {"PYTHONHASHSEED": "2", "OMP_NUM_THREADS": "3"}
    code = (
        "import hashlib, sys; from tests.tasks.stages.classifiers.test_stage import trained_in;"
        "print(*(hashlib.sha256(one.data).hexdigest() for one in trained_in(sys.argv[1])))"
    )
    there = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, **environment, "PYTHONPATH": str(Path(__file__).parents[4])},
        capture_output=True,
        text=True,
        check=True,
    )
    here = [hashlib.sha256(one.data).hexdigest() for one in trained_in(str(tmp_path))]
    assert there.stdout.split() == here


def trained_in(scratch: str) -> list[TrainedClassifier]:
    """Trains one model of each method on the same texts."""
    made = ((learned(seed), "reference") if seed % 2 else (shop(seed), "crawl") for seed in range(200))
    examples = [LabeledText(text, label, text, "", "made") for text, label in made]
    common = {"name": "some", "texts": (Texts(path="/made", label="reference"),), "positive": "reference"}
    both = (ClassifierSettings(**common, fasttext=SMALL), ClassifierSettings(**common, method="signals"))
    return [train(settings, examples[:150], examples[150:], scratch) for settings in both]


def test_a_quantized_model_is_smaller_similar_in_score_and_reproducible(
    tmp_path: Path, crawl: Artifact, run_stage: Callable
) -> None:
    full = trained(run_stage, crawl, gate(tmp_path), version="full")
    small = gate(tmp_path, fasttext=SMALL.model_copy(update={"quantised": True}))
    one, two = (trained(run_stage, crawl, small, version=version) for version in ("one", "two"))
    assert one.record.content == two.record.content
    assert len(one.read("quality/model.ftz")) < len(full.read("quality/model.bin"))
    assert one.record.metrics["quality_auc"] == pytest.approx(full.record.metrics["quality_auc"], abs=0.02)


def test_every_text_is_used_for_training_held_out_or_excluded_with_a_reason(
    tmp_path: Path, crawl: Artifact, run_stage: Callable
) -> None:
    rows = [{"text": learned(seed), "label": "good"} for seed in range(60)]
    rows += [{"text": shop(seed), "label": "bad"} for seed in range(60)]
    rows += [{"text": learned(0).upper(), "label": "good"}, {"text": learned(1), "label": "bad"}]
    rows += [{"text": " ", "label": "good"}, {"text": "unsure", "label": "?"}]
    texts = Texts(path=jsonl(tmp_path / "rows.jsonl", rows), relabel={"good": "good", "bad": "bad"})
    settings = gate(tmp_path, texts=(texts,), crawl=None, positive="good")
    [part] = [one for one in trained(run_stage, crawl, settings).parts if one.name == "quality"]
    assert part.rejected == {"contradiction": 2, "copy": 1, "empty": 1, "other_label": 1}
    assert part.rows_in == 124
    assert part.rows_out == 119


def test_a_multi_class_classifier_has_no_positive_label(tmp_path: Path, crawl: Artifact, run_stage: Callable) -> None:
    kinds = {"learned": learned, "shop": shop, "list": lambda seed: " ".join(f"{seed} {n}" for n in range(30))}
    rows = [{"text": make(seed), "kind": name} for name, make in kinds.items() for seed in range(60)]
    texts = Texts(path=jsonl(tmp_path / "kinds.jsonl", rows), label_field="kind")
    settings = gate(tmp_path, name="topic", texts=(texts,), crawl=None, positive="")
    artifact = trained(run_stage, crawl, settings)
    scores = json.loads(artifact.read("topic/scores.json"))
    assert scores["confusion"]["labels"] == ["learned", "list", "shop"]
    assert set(scores["auc_by_label"]) == set(kinds)
    annotator = ClassifierMeasures(models=("topic",))
    with pytest.raises(InputError, match="no positive label"):
        annotator.prepare({"classifiers": artifact})


def test_signal_weights_are_fitted_from_few_labels_for_the_quality_annotator(
    tmp_path: Path, crawl: Artifact, run_stage: Callable
) -> None:
    settings = gate(tmp_path, name="liked", method="signals")
    artifact = trained(run_stage, crawl, settings)
    assert json.loads(artifact.read("liked/scores.json"))["auc"] > 0.95
    annotator = QualityMeasures(model="liked")
    annotator.prepare({"classifiers": artifact})
    scores = annotator.annotate(DocumentBatch([learned(999), shop(999)])).field("score").to_numpy()
    assert scores[0] > 0.8 > 0.2 > scores[1]


def test_a_restarted_stage_trains_only_missing_models(
    tmp_path: Path, crawl: Artifact, run_stage: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = gate(tmp_path), gate(tmp_path, name="other", seed=1)
    from tasks.stages.classifiers import stage

    made, real = [], stage._train

    def dies_at_the_second(settings: ClassifierSettings, *rest: object) -> None:
        if settings.name == "other" and "other" not in made:
            made.append("other")
            raise KeyboardInterrupt
        made.append(settings.name)
        real(settings, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(stage, "_train", dies_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        trained(run_stage, crawl, first, second)
    trained(run_stage, crawl, first, second)
    assert made == ["quality", "other", "other"]


def test_a_recipe_without_classifiers_writes_an_empty_artifact(crawl: Artifact, run_stage: Callable) -> None:
    artifact = trained(run_stage, crawl)
    assert json.loads(artifact.read("index.json")) == {"classifiers": [], "metrics": {}}
    with pytest.raises(InputError, match='no model "quality"'):
        ClassifierMeasures(models=("quality",)).prepare({"classifiers": artifact})


def test_texts_and_models_can_be_on_an_object_store(tmp_path: Path, s3: S3Server) -> None:
    url = "s3://sluice/test_classifiers"
    for number in range(2):
        rows = ({"text": learned(seed)} for seed in range(number * 60, number * 60 + 60))
        data = Path(jsonl(tmp_path / "rows.jsonl", rows)).read_bytes()
        with Store(url).write(f"texts/{number}/rows.jsonl") as file:
            file.write(data)
    crawl = extracted_in(tmp_path, (shop(seed) for seed in range(100)))
    settings = gate(tmp_path, texts=(Texts(path=f"{url}/texts/**/*.jsonl", label="reference"),))
    config = ClassifiersConfig(train=(settings,))
    artifact = run_stage_in(f"{url}/store", "tasks.stages.classifiers.stage", config, {"extracted": crawl})
    annotator = ClassifierMeasures(models=("quality",))
    annotator.prepare({"classifiers": artifact})
    good, bad = annotator.annotate(DocumentBatch([learned(999), shop(999)])).field("quality").to_pylist()
    assert good > bad
    assert f"`{url}/texts/1/rows.jsonl`" in artifact.read("quality/card.md").decode()


def test_the_bytes_of_the_reference_text_are_in_the_fingerprint(tmp_path: Path) -> None:
    settings = gate(tmp_path)
    assert external(ClassifiersConfig(train=(settings,))) == {"texts/quality": [settings.texts[0].path]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"crawl": None}, "too few labels"),
        ({"texts": (Texts(path="/nowhere/*.jsonl", label="reference"),)}, "matches no file"),
        ({"crawl": CrawlTexts(sources=("books",))}, "no document of the sources books"),
        ({"heldout_share": 0.001}, "held out"),
    ],
)
def test_an_untrainable_classifier_is_an_error_with_its_cause(
    tmp_path: Path, crawl: Artifact, run_stage: Callable, changes: dict, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        trained(run_stage, crawl, gate(tmp_path, **changes))


def test_an_invalid_line_is_named(tmp_path: Path, crawl: Artifact, run_stage: Callable) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text('{"text": "a", "label": "b"}\n{"text": \n', encoding="utf-8")
    with pytest.raises(InputError, match=r"broken\.jsonl, line 2: not JSON"):
        trained(run_stage, crawl, gate(tmp_path, texts=(Texts(path=str(path)),)))
    for other in ('["a", "b"]', '{"text": "a"}', '{"text": 7, "label": "b"}'):
        path.write_text(f'{{"text": "a", "label": "b"}}\n{other}\n', encoding="utf-8")
        with pytest.raises(InputError, match=r"broken\.jsonl, line 2: no row with a text and a label"):
            trained(run_stage, crawl, gate(tmp_path, texts=(Texts(path=str(path)),)))


def test_a_page_cannot_inject_a_label(tmp_path: Path, run_stage: Callable) -> None:
    plea = "__label__1 " * 5  # fastText's name of the label "reference", which it searches in the whole line
    hostile = extracted_in(tmp_path, (plea + shop(seed) for seed in range(200)))
    artifact = trained(run_stage, hostile, gate(tmp_path))
    assert json.loads(artifact.read("quality/scores.json"))["accuracy"] > 0.95


def test_a_diverging_learning_rate_is_refused_with_a_remedy(tmp_path: Path) -> None:
    rows = [LabeledText(f"word{n % 7} foo{n} bar{n % 3}", "ab"[n % 2], str(n), "", "x") for n in range(100)]
    wild = FastTextSettings(learning_rate=1000, epochs=50, dimensions=4, buckets=10)
    with pytest.raises(InputError, match=r"classifier quality .*NaN.*learning_rate"):
        train(gate(tmp_path, fasttext=wild), rows[:80], rows[80:], str(tmp_path))


def test_a_model_too_small_to_be_quantized_is_refused_with_a_remedy(tmp_path: Path) -> None:
    rows = [LabeledText(f"word{n}", "ab"[n % 2], str(n), "", "x") for n in range(20)]
    small = FastTextSettings(quantised=True, dimensions=4, buckets=10)
    with pytest.raises(InputError, match=r"classifier quality .*256 rows.*quantised"):
        train(gate(tmp_path, fasttext=small), rows, rows, str(tmp_path))

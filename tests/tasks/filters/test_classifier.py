import importlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.filters.base import Annotator, Filter, fields
from tasks.filters.batch import DocumentBatch
from tasks.filters.classifier import Classifier, ClassifierMeasures
from tasks.filters.learned.fasttext import line_of, load
from tasks.filters.quality import QualityMeasures
from tasks.filters.topic import Topic, TopicMeasures
from tasks.stages.classifiers import ClassifiersConfig, ClassifierSettings, FastTextSettings, Texts
from tests.tasks.stages.classifiers.texts_by_hand import extracted_in, jsonl, learned, shop

SMALL = FastTextSettings(epochs=25, learning_rate=0.5, dimensions=8, buckets=1000)


@pytest.fixture
def models(tmp_path: Path, run_stage: Callable) -> dict[str, Artifact]:
    """A quality gate, an advertising gate that reads 200 characters, and a model of two topics."""
    rows = [{"text": learned(seed), "label": "learned"} for seed in range(80)]
    rows += [{"text": shop(seed), "label": "shop"} for seed in range(80)]
    texts = (Texts(path=jsonl(tmp_path / "rows.jsonl", rows)),)
    common = {"texts": texts, "heldout_share": 0.2, "fasttext": SMALL}
    config = ClassifiersConfig(
        train=(
            ClassifierSettings(name="quality", positive="learned", **common),
            ClassifierSettings(name="adverts", positive="shop", chars=200, **common),
            ClassifierSettings(name="topic", **common),
        )
    )
    crawl = extracted_in(tmp_path, [shop(0)])
    return {
        "classifiers": run_stage("tasks.stages.classifiers.stage", config, {"extracted": crawl}, kind="classifiers")
    }


def test_each_model_gives_a_column_and_limits_turn_columns_into_reasons(models: dict[str, Artifact]) -> None:
    annotator = ClassifierMeasures(models=("quality", "adverts"))
    annotator.prepare(models)
    measured = fields(annotator.annotate(DocumentBatch([learned(500), shop(500)])))
    assert [field.name for field in annotator.type()] == ["quality", "adverts"]
    assert measured["quality"].dtype == np.float32
    found = dict(Classifier(at_least={"quality": 0.5}, at_most={"adverts": 0.5}).reasons(measured))
    assert {reason: mask.tolist() for reason, mask in found.items()} == {
        "classifier_quality_low": [False, True],
        "classifier_adverts_high": [False, True],
    }


def test_a_model_reads_as_many_characters_as_in_training(models: dict[str, Artifact]) -> None:
    annotator = ClassifierMeasures(models=("adverts",))
    annotator.prepare(models)
    page = shop(500)[:200]
    alone, followed = annotator.annotate(DocumentBatch([page, page + learned(500)])).field("adverts").to_pylist()
    assert alone == followed


def test_scores_do_not_depend_on_the_batch(models: dict[str, Artifact]) -> None:
    annotator = ClassifierMeasures(models=("quality",))
    annotator.prepare(models)
    texts = [learned(1), "", shop(2), "one\ntwo\x00three", "naïve 数据"]
    together = annotator.annotate(DocumentBatch(texts)).field("quality").to_pylist()
    assert together == [annotator.annotate(DocumentBatch([text])).field("quality")[0].as_py() for text in texts]


def test_a_nan_score_breaks_no_limit() -> None:
    measured = {"quality": np.array([np.nan, 0.5, 0.4]), "toxicity": np.array([np.nan, 0.9, 1.0])}
    limits = Classifier(at_least={"quality": 0.5}, at_most={"toxicity": 0.9})
    assert {reason: mask.tolist() for reason, mask in limits.reasons(measured)} == {
        "classifier_quality_low": [True, False, True],
        "classifier_toxicity_high": [True, False, True],
    }


def test_the_topic_is_the_likeliest_label_and_none_for_a_text_without_a_word(models: dict[str, Artifact]) -> None:
    annotator = TopicMeasures()
    annotator.prepare(models)
    measured = fields(annotator.annotate(DocumentBatch([learned(500), shop(500), "--- !"[:0]])))
    assert measured["label"].tolist() == ["learned", "shop", ""]
    assert measured["score"][0] > 0.5
    assert measured["score"][2] == 0
    reasons = dict(Topic(drop=("shop",)).reasons(measured))
    assert reasons["topic_shop"].tolist() == [False, True, False]


def test_missing_models_are_named(models: dict[str, Artifact]) -> None:
    with pytest.raises(InputError, match="train_classifiers"):
        ClassifierMeasures().prepare({})
    with pytest.raises(InputError, match=r'no model "toxicity" \(it has: adverts, quality, topic\)'):
        ClassifierMeasures(models=("toxicity",)).prepare(models)
    with pytest.raises(InputError, match="of the method fasttext"):
        QualityMeasures(model="quality").prepare(models)


def test_a_model_is_loaded_once_per_process(models: dict[str, Artifact]) -> None:
    assert load(models, "quality", "classifier") is load(models, "quality", "classifier")


@pytest.mark.parametrize("name", ["classifier", "topic", "lexicon", "quality", "hugging_face"])
def test_each_module_has_one_annotator_and_the_filter_that_reads_it(name: str) -> None:
    module = importlib.import_module(f"tasks.filters.{name}")
    own = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]
    [annotator] = [one for one in own if issubclass(one, Annotator)]
    [rule] = [one for one in own if issubclass(one, Filter)]
    assert rule.measured_by is annotator


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("One\nTwo\r\nthree\u2028four", "one two three four"),
        ("__label__0 snake_case", "label 0 snake case"),
        ("a\x00b\x1fc\x7f", "a b c"),
        ("数据, данные", "数据 , данные"),
        (" \n\t", ""),
    ],
)
def test_a_text_becomes_one_line_without_control_characters_or_labels(text: str, line: str) -> None:
    assert line_of(text, 100) == line

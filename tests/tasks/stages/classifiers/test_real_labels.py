"""Minimum scores on real labels, with a margin: quality and toxicity as in `benchmarks.classifiers scores`, topics."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tasks.filters.base import fields
from tasks.filters.batch import DocumentBatch
from tasks.filters.language import LanguageLabels
from tasks.stages.classifiers import ClassifiersConfig, ClassifierSettings, FastTextSettings, Texts
from tests.tasks.stages.classifiers.texts_by_hand import extracted_in, shop

SHORT = FastTextSettings(epochs=15, learning_rate=0.2, dimensions=32, word_ngrams=1, char_ngrams=(3, 6))
TOXIC = {"hate_speech": "toxic", "offensive_language": "toxic", "neither": "other"}
HATEFUL = {"hate_speech": "toxic", "offensive_language": "other", "neither": "other"}


@pytest.mark.parametrize(("relabel", "floor"), [(TOXIC, 0.965), pytest.param(HATEFUL, 0.78, marks=pytest.mark.soak)])
def test_toxicity_is_detected_on_held_out_tweets(
    tmp_path: Path, shared_data: Path, run_stage: Callable, relabel: dict[str, str], floor: float
) -> None:
    texts = Texts(path=str(shared_data / "toxicity_pii" / "davidson_tweets.jsonl.zst"), relabel=relabel)
    settings = ClassifierSettings(name="toxicity", texts=(texts,), positive="toxic", heldout_share=0.2, fasttext=SHORT)
    crawl = extracted_in(tmp_path, [shop(0)])
    artifact = run_stage("tasks.stages.classifiers.stage", ClassifiersConfig(train=(settings,)), {"extracted": crawl})
    scores = json.loads(artifact.read("toxicity/scores.json"))
    assert scores["auc"] > floor
    assert scores["auc"] > scores["baselines"]["length"]["auc"] + 0.15


def test_topic_classification_recovers_the_corpus_of_a_text(
    tmp_path: Path, shared_data: Path, run_stage: Callable
) -> None:
    names = ("academic", "code", "math", "reviews", "wiki")
    texts = tuple(Texts(path=str(shared_data / "text_domains" / f"{name}.jsonl.zst"), label=name) for name in names)
    settings = ClassifierSettings(
        name="topic", texts=texts, max_per_label=400, fasttext=FastTextSettings(epochs=25, dimensions=16), chars=1000
    )
    crawl = extracted_in(tmp_path, [shop(0)])
    artifact = run_stage("tasks.stages.classifiers.stage", ClassifiersConfig(train=(settings,)), {"extracted": crawl})
    scores = json.loads(artifact.read("topic/scores.json"))
    assert scores["accuracy"] > 0.9
    assert min(scores["auc_by_label"].values()) > 0.97


@pytest.mark.parametrize(("name", "floor"), [("udhr_sentences", 0.82), ("genesis_verses", 0.95)])
def test_the_language_of_a_sentence_is_detected(shared_data: Path, name: str, floor: float) -> None:
    with pa.input_stream(shared_data / "langid" / f"{name}.jsonl.zst", compression="zstd") as file:
        rows = [json.loads(line) for line in file.read().decode().splitlines()]
    labelled = [row for row in rows if row["lang"]]
    annotator = LanguageLabels()
    annotator.prepare({})
    labels = fields(annotator.annotate(DocumentBatch([row["text"] for row in labelled])))["label"]
    assert np.mean([label == row["lang"] for label, row in zip(labels, labelled, strict=True)]) > floor

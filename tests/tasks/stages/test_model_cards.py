"""Both model cards keep their bytes: they are part of the content of the models, which annotations are made with."""

import hashlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tasks.filters.ngram.model import Scores
from tasks.stages.classifiers import ClassifierSettings
from tasks.stages.classifiers import stage as classifiers
from tasks.stages.classifiers.texts import LabeledText, TextSplit
from tasks.stages.perplexity import PerplexityConfig, ReferenceText
from tasks.stages.perplexity import stage as perplexity
from tasks.stages.perplexity.stage import Cuts

SCORES = {
    "auc": 0.9876,
    "auc_standard_error": 0.0123,
    "accuracy": 0.9,
    "baselines": {"length": {"auc": 0.61234}, "majority": {"label": "good", "accuracy": 0.5}},
    "thresholds": [{"threshold": 0.5, "precision": 0.9, "recall": 0.8, "above": 0.45}],
    "confusion": {"labels": ["bad", "good"], "rows_are_truth": [[1200, 3], [4, 5]]},
}
TEXTS = [{"path": "/a/*.jsonl", "label": "good"}, {"path": "/b/*.jsonl", "label": "bad"}]


def digest(page: str) -> str:
    return hashlib.sha256(page.encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"positive": "good", "purpose": "Tells good | bad.", "crawl": {"label": "bad"}}, "1d743ee9a3ebf185"),
        ({"method": "signals", "positive": "good"}, "758b759f528621a9"),
        ({}, "dbe2c082ed93c107"),
    ],
)
def test_the_model_card_of_a_classifier_is_complete(settings: dict[str, Any], expected: str) -> None:
    made = ClassifierSettings.model_validate({"name": "quality", "texts": TEXTS, **settings})
    train = [LabeledText("t", "good", "k", "", "a"), LabeledText("u", "bad", "l", "", "b")]
    examples = TextSplit(train, train[:1], {"copy": 1234, "short": 0}, {"/b": "2" * 64, "/a": "1" * 64}, 5678)
    assert digest(classifiers.card(made, examples, SCORES, "0" * 64)) == expected


def test_the_model_card_of_an_n_gram_model_is_complete() -> None:
    references = (
        ReferenceText(name="tales", kind="jsonl", path="/a/*.jsonl", licence="CC0"),
        ReferenceText(name="web", kind="documents"),
    )
    uses = [perplexity.ReferenceUse(references[0], 1234, 56_789), perplexity.ReferenceUse(references[1], 1, 2)]
    levels = [SimpleNamespace(prob=np.zeros(size)) for size in (1003, 50, 7)]
    made: Any = SimpleNamespace(
        ngrams=SimpleNamespace(levels=levels),
        distinct=[2000, 1500, 1200],
        discounts=[(0.5, 1.0, 1.5), (0.6, 1.1, 1.6), (0.7, 1.2, 1.7)],
        fallback=[False, False, True],
    )
    heldout = Scores(np.array([-20.0]), np.array([1000]), np.array([10]), np.array([50]), np.array([-5.0]))
    config = PerplexityConfig(references=references, order=3)
    page = perplexity.card("und", config, uses, made, heldout, Cuts(100.04, 250.06, "the reference"))
    assert digest(page) == "8241837953e6a9b2"

import json
import math
import textwrap
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tasks.core.errors import InputError
from tasks.filters.base import fields
from tasks.filters.batch import DocumentBatch
from tasks.filters.learned.signals import NAMES, Weights, fit, matrix, signals
from tasks.filters.quality import LIST_SCORE, RIDGE, WEIGHTS, Quality, QualityMeasures, is_list
from tasks.stages.classifiers.training import auc


def test_the_signals_of_a_text_match_their_names() -> None:
    found = dict(zip(NAMES, signals("I WAS There...\n\nTHE end, the end! " + "a " * 60 + "b.\nx\nx"), strict=True))
    words = 3 + 4 + 61 + 2
    assert found["log_words"] == pytest.approx(math.log(words))
    assert found["stop_share"] == pytest.approx((1 + 2 + 60) / words)
    assert found["pronoun_share"] == pytest.approx(1 / words)
    assert found["distinct_share"] == pytest.approx(
        len({"i", "was", "there...", "the", "end,", "end!", "a", "b.", "x"}) / words
    )
    assert found["title_share"] == pytest.approx(2 / words)
    assert found["ellipsis_share"] == pytest.approx(1 / words)
    assert found["log_prose"] == 0.0
    assert found["log_line_words"] == pytest.approx(math.log1p(words / 4))
    assert found["repeated_lines"] == pytest.approx(1 / 4)
    assert found["log_line"] == pytest.approx(math.log1p(14))


@pytest.mark.parametrize("text", ["", " \n ", "\x00", "…", "数据" * 3000, "a" * 1_000_000, "\n" * 100_000, "\ud800"])
def test_any_text_has_finite_signals_and_a_score_between_0_and_1(text: str) -> None:
    assert all(map(math.isfinite, signals(text)))
    assert 0 <= WEIGHTS.probabilities(matrix([text]))[0] <= 1


def test_only_english_and_undetermined_text_is_scored_and_other_text_is_kept() -> None:
    annotator = QualityMeasures()
    annotator.prepare({})
    measured = fields(annotator.annotate(DocumentBatch(["MENU | HOME | CART"] * 3, languages=["en", "de", "und"])))
    assert np.isnan(measured["score"]).tolist() == [False, True, False]
    [(reason, mask)] = Quality().reasons(measured)
    assert (reason, mask.tolist()) == ("quality_low", [True, False, True])


PARTS = [
    ["The history sidebar", "The download list", "Form autofill", "The tab strip", "Profile import"],
    ["is blank after", "loses its settings when", "should warn before", "shows the wrong icon while", "hangs if"],
    ["a window is closed", "the proxy asks for a password", "a long file name is saved", "the disk is full"],
]
TITLES = [" ".join(words) for words in product(*PARTS)]
PROSE = (
    "The river rises in the hills to the north of the town and is fed by three streams. In spring it floods the "
    "meadows on both sides, which is why the oldest of the farms stand on the higher ground to the west."
)


def scored(text: str) -> float:
    annotator = QualityMeasures()
    annotator.prepare({})
    return float(fields(annotator.annotate(DocumentBatch([text], languages=["en"])))["score"][0])


def test_a_text_with_half_of_its_words_in_titles_is_no_list() -> None:
    assert not is_list("A short title\nIt rained today.")
    assert is_list("A short title here\nIt rained today.")


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(TITLES[::3]),
        "\n\n".join(TITLES),
        " ".join(TITLES),
        "\n".join(f"{number} - {title}" for number, title in enumerate(TITLES, 40_000)),
        "\n".join(title + "?" * (number % 5 == 0) for number, title in enumerate(TITLES)),
        "\n".join(f"* [{title}](/bugs/{number})" for number, title in enumerate(TITLES)),
    ],
    ids=["lines", "blank lines", "one line", "numbers", "some questions", "links"],
)
def test_a_list_of_titles_is_neither_gold_nor_dropped(text: str) -> None:
    assert WEIGHTS.probabilities(matrix([text]))[0] > 0.5, "by its surface alone it is good"
    assert scored(text) == pytest.approx(LIST_SCORE)
    assert Quality().min_score < LIST_SCORE


@pytest.mark.parametrize(
    "text",
    [
        PROSE * 3,
        "\n".join(textwrap.wrap(PROSE * 3, 60)),
        "High water on the upper river\n\n" + "\n\n".join([PROSE] * 3) + "\n\nMore from the valley\n\nAbout us",
        "\n".join(f"“{sentence.strip()}.”" for sentence in (PROSE * 3).split(".") if sentence.strip()),
    ],
    ids=["prose", "wrapped lines", "headings", "quotations"],
)
def test_the_score_of_sentences_does_not_depend_on_line_breaks(text: str) -> None:
    assert scored(text) == pytest.approx(float(WEIGHTS.probabilities(matrix([text]))[0]))


def test_the_fit_recovers_planted_weights() -> None:
    draw = np.random.default_rng(3)
    found = draw.normal(size=(4000, len(NAMES)))
    planted = np.linspace(-2, 2, len(NAMES))
    positive = draw.random(4000) < 1 / (1 + np.exp(-(found @ planted)))
    weights = fit(found, positive, ridge=1.0)
    assert [weights.terms[name][0] for name in NAMES] == pytest.approx(planted, abs=0.25)


@pytest.mark.parametrize("value", [7.0, math.log(101)])  # the deviation of fifty of the latter is not quite zero
def test_a_constant_signal_gets_no_weight(value: float) -> None:
    found = np.column_stack([np.full(50, value) if place else np.arange(50.0) for place in range(len(NAMES))])
    weights = fit(found, np.arange(50) >= 25, ridge=1.0)
    assert weights.terms[NAMES[1]] == (0.0, round(value, 6), 1.0)
    assert weights.terms[NAMES[0]][0] > 0
    assert np.isfinite(weights.probabilities(found)).all()


def test_one_label_alone_cannot_be_fitted() -> None:
    with pytest.raises(InputError, match="both labels"):
        fit(np.zeros((3, len(NAMES))), np.ones(3, dtype=bool), ridge=1.0)


def test_weights_survive_a_round_trip_through_their_file() -> None:
    assert Weights.model_validate_json(WEIGHTS.model_dump_json()) == WEIGHTS
    assert tuple(WEIGHTS.terms) == NAMES


def human_labels(shared_data: Path) -> tuple[list[str], np.ndarray]:
    with pa.input_stream(shared_data / "quality" / "dclm_human_quality.jsonl.zst", compression="zstd") as file:
        rows = [json.loads(line) for line in file.read().decode().splitlines()]
    return [row["text"] for row in rows], np.array([row["label"] == 1 for row in rows])


def test_the_shipped_weights_are_the_fit_of_the_human_labels(shared_data: Path) -> None:
    texts, good = human_labels(shared_data)
    assert fit(matrix(texts), good, RIDGE) == WEIGHTS


def test_on_held_out_pages_the_score_agrees_with_people_better_than_length(shared_data: Path) -> None:
    texts, good = human_labels(shared_data)
    found, fold = matrix(texts), np.arange(len(texts)) % 10
    scores = np.zeros(len(texts))
    for test in range(10):
        scores[fold == test] = fit(found[fold != test], good[fold != test], RIDGE).probabilities(found[fold == test])
    assert auc(good, scores) > 0.88
    assert auc(good, [len(text) for text in texts]) < 0.82

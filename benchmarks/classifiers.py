"""Classifiers and scores against labels that people gave: quality, toxicity, topic, language; and their speed.

    python -m benchmarks.classifiers [--data FOLDER]

The folder has `quality`, `toxicity_pii`, `text_domains` and `langid`. All models are trained here, through the code of
the stage train_classifiers, and scored on texts they have not seen: AUC with its standard error (Hanley and McNeil),
beside a majority and a length-only baseline. Settings for toxicity were
chosen by cross-validation inside the texts to learn from; signals and settings for quality by cross-validation on the
votes themselves, so that figure is too kind: on votes of the study that had no part in the choice the AUC is 0.87.
Speed is CPU seconds of one process, best of three. Writes `benchmarks/results/classifiers.json`.

- quality: DCLM's 196 majority votes. A fastText gate of reference text against web pages never sees the votes; scores
  that learn from votes are cross-validated, ten folds by hash of the text, five times.
- toxicity: Davidson's tweets, a fifth held out by hash of the text; toxic (hateful or offensive) against neither, and
  hateful against the rest. The lexicon is a list made of the tweets to learn from, since Sluice ships none.
- topic: eleven corpora by their name; the chapters of a novel and the pages of a repository stay together.
- language: lid.176 as the annotator asks it; labels that the model does not know count as errors, and apart.
"""

import argparse
import io
import json
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fasttext
import numpy as np
import pyarrow as pa

from benchmarks.harness import keep
from tasks.core.engine import Engine
from tasks.filters.base import Annotator, fields
from tasks.filters.batch import Batch
from tasks.filters.language import LanguageLabels
from tasks.filters.learned.fasttext import FastText, line_of
from tasks.filters.learned.signals import fit, matrix
from tasks.filters.lexicon import Entries
from tasks.filters.pretrained import model_file
from tasks.filters.prose_score import ProseScore
from tasks.filters.quality import RIDGE, WEIGHTS, QualityMeasures
from tasks.formats.documents.text import hash64, words
from tasks.stages.classifiers import ClassifierSettings, FastTextSettings, Texts
from tasks.stages.classifiers.texts import Example, Examples, gather
from tasks.stages.classifiers.training import auc, auc_error, baselines, scores_of, train

ROOT = Path(__file__).parents[1]
REFERENCE = ("wiki", "academic", "books", "speech", "techdocs")
WEB = ("web", "forum", "masc", "reviews")
DCLM = FastTextSettings()
FEW = FastTextSettings(epochs=100, learning_rate=0.5, dimensions=16)
SMALL = FastTextSettings(epochs=25, learning_rate=0.2, dimensions=32)
SHORT = FastTextSettings(epochs=15, learning_rate=0.2, dimensions=32, word_ngrams=1, char_ngrams=(3, 6))
TOXICITY = {
    "toxic_or_neither": {"hate_speech": "toxic", "offensive_language": "toxic", "neither": "other"},
    "hateful_or_rest": {"hate_speech": "toxic", "offensive_language": "other", "neither": "other"},
}
_FOLDS, _REPEATS = 10, 5
_MIN_TOXIC, _MIN_COUNT = 0.95, 10


def rows(path: Path) -> Iterator[dict[str, Any]]:
    with pa.input_stream(str(path), compression="zstd") as file:
        yield from map(json.loads, io.TextIOWrapper(file, encoding="utf-8", newline="\n"))


def agreement(good: np.ndarray, scores: Sequence[float] | np.ndarray) -> dict[str, float]:
    value = auc(good, scores)
    return {"auc": round(value, 3), "standard_error": round(auc_error(value, int(good.sum()), int((~good).sum())), 3)}


def measured(annotator: Annotator, texts: Sequence[str], field: str) -> np.ndarray:
    annotator.prepare({})
    return fields(annotator.annotate(Batch(texts)))[field]


def quality(data: Path, scratch: str) -> dict[str, Any]:
    votes = list(rows(data / "quality" / "dclm_human_quality.jsonl.zst"))
    texts, good = [row["text"] for row in votes], np.array([row["label"] == 1 for row in votes])
    found: dict[str, Any] = {
        "pages": len(texts),
        "majority": {"accuracy": round(float(max(good.mean(), 1 - good.mean())), 3), "auc": 0.5},
        "length": agreement(good, [len(text) for text in texts]),
        "prose_score": agreement(good, measured(ProseScore(), texts, "score")),
    }
    for name, negatives in (("web", ("web",)), ("web_and_forum", ("web", "forum")), ("web_and_people", WEB)):
        gate = _gate(data, negatives, scratch)
        found[f"fasttext_reference_against_{name}"] = agreement(good, gate.scores(texts))
    signals = matrix(texts)

    def by_signals(learn: np.ndarray, test: np.ndarray) -> np.ndarray:
        return fit(signals[learn], good[learn], RIDGE).probabilities(signals[test])

    def by_words(learn: np.ndarray, test: np.ndarray) -> np.ndarray:
        made = [Example(text, str(bool(mark)), text, "", "") for text, mark in zip(texts, good, strict=True)]
        settings = ClassifierSettings(name="votes", texts=(Texts(path="/"),), positive="True", fasttext=FEW)
        learnt, tested = ([made[place] for place in np.flatnonzero(side)] for side in (learn, test))
        return train(settings, learnt, tested, scratch).probabilities[:, 1]

    found["fasttext_on_votes_cross_validated"] = cross_validated(texts, good, by_words, repeats=1)
    found["signals_on_votes_cross_validated"] = cross_validated(texts, good, by_signals)
    found["signals_in_sample"] = agreement(good, measured(QualityMeasures(), texts, "score"))
    found["weights_are_those_in_the_code"] = fit(signals, good, RIDGE) == WEIGHTS
    return found


def cross_validated(
    texts: Sequence[str], good: np.ndarray, score: Callable[..., np.ndarray], repeats: int = _REPEATS
) -> dict[str, Any]:
    """Returns the mean AUC over repeats; each pools the held-out scores of ten folds by hash of the text."""
    values, kept, above = [], [], []
    for repeat in range(repeats):
        fold = np.array([hash64(f"fold/{repeat}/{text}") % _FOLDS for text in texts])
        scores = np.zeros(len(texts))
        for number in range(_FOLDS):
            scores[fold == number] = score(fold != number, fold == number)
        values.append(auc(good, scores))
        kept.append(float((scores[good] >= 0.2).mean()))
        above.append(float((scores[~good] >= 0.2).mean()))
    mean = float(np.mean(values))
    return {
        "auc": round(mean, 3),
        "standard_error": round(auc_error(mean, int(good.sum()), int((~good).sum())), 3),
        "auc_of_each_repeat": [round(value, 3) for value in values],
        "at_least_0.2": {"good_kept": round(float(np.mean(kept)), 3), "other_kept": round(float(np.mean(above)), 3)},
    }


def _gate(data: Path, negatives: Sequence[str], scratch: str) -> FastText:
    """Trains DCLM's gate: reference text against web-like text, 2,000 of each side at most."""
    texts = [
        Texts(path=str(data / "text_domains" / f"{name}.jsonl.zst"), label=label)
        for label, names in (("reference", REFERENCE), ("web", negatives))
        for name in names
    ]
    settings = ClassifierSettings(
        name="quality", texts=tuple(texts), positive="reference", max_per_label=2000, fasttext=DCLM
    )
    examples = gather(settings, None, Engine())
    trained = train(settings, examples.train, examples.heldout, scratch)
    path = Path(scratch) / "gate.bin"
    path.write_bytes(trained.data)
    return FastText(str(path), trained.meaning)


def toxicity(data: Path, scratch: str) -> dict[str, Any]:
    path = str(data / "toxicity_pii" / "davidson_tweets.jsonl.zst")
    found = {}
    for name, relabel in TOXICITY.items():
        settings = ClassifierSettings(
            name="toxicity", texts=(Texts(path=path, relabel=relabel),), positive="toxic", heldout_share=0.2,
            fasttext=SHORT,
        )  # fmt: skip
        examples = gather(settings, None, Engine())
        found[name] = _trained(settings, examples, scratch)
        truth = np.array([example.label == "toxic" for example in examples.heldout])
        entries, size = _lexicon(examples.train)
        counts = [entries.count(example.text) for example in examples.heldout]
        hits = np.array([one[0] > 0 for one in counts])
        found[name]["lexicon_of_the_texts_to_learn_from"] = {
            "entries": size,
            **agreement(truth, [covered / max(1, total) for _, covered, total in counts]),
            "any_hit": {
                "precision": round(float(truth[hits].mean()), 3),
                "recall": round(float(hits[truth].mean()), 3),
            },
        }
    return found


def _lexicon(examples: Sequence[Example]) -> tuple[Entries, int]:
    """Makes a list of the words that stand in toxic texts nearly always, by how much oftener than texts are toxic."""
    seen: Counter[str] = Counter()
    toxic: Counter[str] = Counter()
    for example in examples:
        for word in set(words(example.text)):
            seen[word] += 1
            toxic[word] += example.label == "toxic"
    base = sum(example.label == "toxic" for example in examples) / len(examples)
    least = base + (1 - base) * (_MIN_TOXIC if base > 0.5 else 0.25)
    chosen = [word for word, count in seen.items() if count >= _MIN_COUNT and toxic[word] / count >= least]
    return Entries(chosen), len(chosen)


def topic(data: Path, scratch: str) -> dict[str, Any]:
    folder = Path(scratch) / "topic"
    folder.mkdir()
    for path in sorted((data / "text_domains").glob("*.jsonl.zst")):
        with (folder / path.name.removesuffix(".zst")).open("w") as file:
            for row in rows(path):
                name = row["id"].split("/")
                group = "/".join(name[:2]) if row["domain"] in ("books", "techdocs") else row["id"]
                file.write(json.dumps({"text": row["text"], "label": row["domain"], "group": group}) + "\n")
    texts = (Texts(path=f"{folder}/*.jsonl", group_field="group"),)
    settings = ClassifierSettings(name="topic", texts=texts, heldout_share=0.25, fasttext=SMALL, max_per_label=1000)
    return _trained(settings, gather(settings, None, Engine()), scratch)


def _trained(settings: ClassifierSettings, examples: Examples, scratch: str) -> dict[str, Any]:
    trained = train(settings, examples.train, examples.heldout, scratch)
    learnt, tested = ([(one.label, len(one.text)) for one in side] for side in (examples.train, examples.heldout))
    base = baselines(trained.meaning.labels, learnt, tested, settings.positive)
    truth = [example.label for example in examples.heldout]
    scores = scores_of(trained.meaning.labels, truth, trained.probabilities, settings.positive, base)
    shown = ("heldout", "auc", "auc_standard_error", "accuracy", "baselines")
    found = {"learnt_from": len(examples.train), **{name: scores[name] for name in shown if name in scores}}
    if not settings.positive:
        return {**found, "auc_by_label": scores["auc_by_label"]}
    return {**found, "thresholds": [row for row in scores["thresholds"] if row["threshold"] in (0.1, 0.5, 0.9)]}


def language(data: Path) -> dict[str, Any]:
    lid = fasttext.load_model(str(model_file("lid.176.ftz")))
    known = {label.removeprefix("__label__") for label in lid.get_labels()}
    found = {}
    for name in ("udhr_sentences", "genesis_verses"):
        labelled = [row for row in rows(data / "langid" / f"{name}.jsonl.zst") if row["lang"]]
        labels = measured(LanguageLabels(), [row["text"] for row in labelled], "label")
        right: dict[str, list[bool]] = defaultdict(list)
        for row, label in zip(labelled, labels, strict=True):
            right[row["lang"]].append(label == row["lang"])
        every = [mark for marks in right.values() for mark in marks]
        in_model = [mark for lang, marks in right.items() if lang in known for mark in marks]
        largest = sorted(right, key=lambda lang: (-len(right[lang]), lang))[:20]
        found[name] = {
            "texts": len(every),
            "languages": len(right),
            "accuracy": round(float(np.mean(every)), 3),
            "accuracy_mean_of_languages": round(float(np.mean([np.mean(marks) for marks in right.values()])), 3),
            "accuracy_where_the_model_knows_the_label": round(float(np.mean(in_model)), 3),
            "unknown_to_the_model": sorted(right.keys() - known),
            "accuracy_by_language": {lang: round(float(np.mean(right[lang])), 3) for lang in largest},
            "below_one_half": {
                lang: round(float(np.mean(marks)), 2) for lang, marks in sorted(right.items()) if np.mean(marks) < 0.5
            },
        }
    return found


def speed(data: Path, scratch: str) -> dict[str, Any]:
    """Returns documents per CPU second and megabytes of whole text per CPU second of each score."""
    names = ("web", "techdocs", "masc", "wiki")
    texts = [row["text"] for name in names for row in rows(data / "text_domains" / f"{name}.jsonl.zst")]
    gate = _gate(data, ("web",), scratch)
    entries = Entries([f"{first} {second}" for first in ("the", "a", "of") for second in map(str, range(300))])
    contenders: dict[str, Callable[[], Any]] = {
        "quality (signals, 5,000 characters)": lambda: matrix(texts),
        "classifier (fastText, 2,000 characters)": lambda: gate.scores(texts),
        "of which: the line fastText reads": lambda: [line_of(text, 2000) for text in texts],
        "lexicon (900 phrases, whole text)": lambda: [entries.count(text) for text in texts],
    }
    size = sum(len(text.encode()) for text in texts) / 1e6
    found = {}
    for name, work in contenders.items():
        best = min(_seconds(work) for _ in range(3))
        found[name] = {"documents": round(len(texts) / best), "megabytes": round(size / best, 1)}
    return {"documents": len(texts), "megabytes": round(size, 1), "per_cpu_second": found}


def _seconds(work: Callable[[], Any]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder with quality, toxicity_pii and so on")
    given = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        result: dict[str, Any] = {
            "quality": quality(given.data, scratch),
            "toxicity": toxicity(given.data, scratch),
            "topic": topic(given.data, scratch),
            "language": language(given.data),
            "speed": speed(given.data, scratch),
        }
    result["wall_seconds"] = round(time.monotonic() - begin, 1)
    keep("classifiers", result)


if __name__ == "__main__":
    main()

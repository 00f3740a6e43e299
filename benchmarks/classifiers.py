"""Scores and language labels against human labels: quality, toxicity, languages.

    python -m benchmarks.classifiers scores --data FOLDER
    python -m benchmarks.classifiers languages --data FOLDER [--model FILE]

`scores`: FOLDER has `quality`, `toxicity_pii` and `text_domains`. All models are trained here, through the code of the
stage train_classifiers, and scored on held-out texts: AUC with its standard error (Hanley and McNeil),
with a majority and a length-only baseline. Settings for toxicity were chosen by cross-validation inside the training
texts; signals and settings for quality by cross-validation on the votes themselves, so that figure is optimistic: on
held-out votes of the study the AUC is 0.87. Writes `classifiers.json`.

- quality: DCLM's 196 majority votes. A fastText gate of reference text against web pages is not trained on votes;
  scores trained on votes are cross-validated, ten folds by hash of the text, five times.
- toxicity: Davidson's tweets, a fifth held out by hash of the text; toxic (hateful or offensive) against neither, and
  hateful against the rest. The lexicon is a word list from the training tweets, since Sluice ships none.

`languages`: FOLDER has `langid`, sentences of the Universal Declaration of Human Rights in 376 translations, 100 of
which have the code of a language supported by common models, and verses of Genesis in six languages. The annotator
`language` labels them, with lid.176 or the fastText file of `--model`, in our codes. The result has

- for each of the 100 languages: sentences, recall, precision among all sentences of the 100 languages, and the most
  frequent wrong label;
- the accuracy on sentences truncated to their first 20, 50, 100 and 200 characters, and on sentences and verses in
  capitals and in small letters;
- for each group of languages that models confuse: sentences labeled as another of the group, and in how many of these
  and of the others the second language is close;
- for documents of 4,000 characters of verses, of which none, a tenth, a quarter or 45 % are in another language: the
  measured share of such lines, and how many documents have one above a fifth;
- for sentences in the other languages: how many get a label, with which score.

Writes `languages.json` if the model is lid.176.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import json_lines, keep, parser
from tasks.core.engine import Engine
from tasks.filters.base import Annotator, fields
from tasks.filters.batch import DocumentBatch
from tasks.filters.language import CONFUSABLE, LanguageLabels, is_close
from tasks.filters.learned.fasttext import FastText
from tasks.filters.learned.signals import fit, matrix
from tasks.filters.lexicon import Entries
from tasks.filters.prose_score import ProseScore
from tasks.filters.quality import RIDGE, WEIGHTS, QualityMeasures
from tasks.formats.documents.text import hash64, words
from tasks.stages.classifiers import ClassifierSettings, FastTextSettings, Texts
from tasks.stages.classifiers.texts import LabeledText, TextSplit, gather
from tasks.stages.classifiers.training import auc, auc_error, baselines, scores_of, train

REFERENCE = ("wiki", "academic", "books", "speech", "techdocs")
WEB = ("web", "forum", "masc", "reviews")
DCLM = FastTextSettings()
FEW = FastTextSettings(epochs=100, learning_rate=0.5, dimensions=16)
SHORT = FastTextSettings(epochs=15, learning_rate=0.2, dimensions=32, word_ngrams=1, char_ngrams=(3, 6))
TOXICITY = {
    "toxic_or_neither": {"hate_speech": "toxic", "offensive_language": "toxic", "neither": "other"},
    "hateful_or_rest": {"hate_speech": "toxic", "offensive_language": "other", "neither": "other"},
}
_FOLDS, _REPEATS = 10, 5
_MIN_TOXIC, _MIN_COUNT = 0.95, 10
_CUTS = (20, 50, 100, 200)
_SURE = (0.3, 0.5, 0.8)
_WELL, _BADLY = 0.9, 0.5
_CHARS, _MIXED = 4000, 0.2


def agreement(good: np.ndarray, scores: Sequence[float] | np.ndarray) -> dict[str, float]:
    value = auc(good, scores)
    return {"auc": round(value, 3), "standard_error": round(auc_error(value, int(good.sum()), int((~good).sum())), 3)}


def measured(annotator: Annotator, texts: Sequence[str], field: str) -> np.ndarray:
    annotator.prepare({})
    return fields(annotator.annotate(DocumentBatch(texts)))[field]


def quality(data: Path, scratch: str) -> dict[str, Any]:
    votes = list(json_lines(data / "quality" / "dclm_human_quality.jsonl.zst"))
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
        made = [LabeledText(text, str(bool(mark)), text, "", "") for text, mark in zip(texts, good, strict=True)]
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
    """Trains DCLM's gate: reference text against web-like text, at most 2,000 of each."""
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
    return FastText(str(path), trained.description)


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


def _lexicon(examples: Sequence[LabeledText]) -> tuple[Entries, int]:
    """Returns the words that occur almost only in toxic texts, ranked by the lift over the share of toxic texts."""
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


def _trained(settings: ClassifierSettings, examples: TextSplit, scratch: str) -> dict[str, Any]:
    trained = train(settings, examples.train, examples.heldout, scratch)
    learnt, tested = ([(one.label, len(one.text)) for one in side] for side in (examples.train, examples.heldout))
    base = baselines(trained.description.labels, learnt, tested, settings.positive)
    truth = [example.label for example in examples.heldout]
    scores = scores_of(trained.description.labels, truth, trained.probabilities, settings.positive, base)
    shown = ("heldout", "auc", "auc_standard_error", "accuracy", "baselines")
    found = {"learnt_from": len(examples.train), **{name: scores[name] for name in shown if name in scores}}
    return {**found, "thresholds": [row for row in scores["thresholds"] if row["threshold"] in (0.1, 0.5, 0.9)]}


def scores(given: argparse.Namespace) -> None:
    """Trains and scores models of quality and toxicity."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        result = {"quality": quality(given.data, scratch), "toxicity": toxicity(given.data, scratch)}
    keep("classifiers", {**result, "wall_seconds": round(time.monotonic() - begin, 1)})


def labels(language: LanguageLabels, texts: list[str]) -> tuple[list[str], np.ndarray]:
    """Returns label and score of each text."""
    found = fields(language.annotate(DocumentBatch(texts)))
    return list(found["label"]), found["score"]


def by_language(gold: list[str], found: list[str]) -> dict[str, dict[str, Any]]:
    """Returns the counts and shares of every language of `gold`."""
    of_label = Counter(found)
    table = {}
    for language in sorted(set(gold)):
        given = [label for label, right in zip(found, gold, strict=True) if right == language]
        right = given.count(language)
        others = Counter(label for label in given if label != language).most_common(2)
        table[language] = {
            "sentences": len(given),
            "recall": round(right / len(given), 3),
            "precision": round(right / of_label[language], 3) if of_label[language] else None,
            "taken_for": {label: count for label, count in others},
        }
    return table


def in_case(language: LanguageLabels, gold: list[str], texts: list[str]) -> dict[str, float]:
    """Returns the accuracy on texts in capitals and in small letters."""
    return {
        "capitals": _share(gold, labels(language, [text.upper() for text in texts])[0]),
        "small_letters": _share(gold, labels(language, [text.lower() for text in texts])[0]),
    }


def confused(language: LanguageLabels, gold: list[str], texts: list[str]) -> dict[str, dict[str, int]]:
    """Returns for each group of confusable languages the sentences, wrong ones within the group, and close ones."""
    measured = fields(language.annotate(DocumentBatch(texts)))
    close, found = is_close(measured), measured["label"]
    table = {}
    for group in CONFUSABLE:
        own = np.array([one in group for one in gold])
        wrong = own & np.isin(found.astype(str), group) & (found != np.array(gold, object))
        if own.any():
            table["-".join(group)] = {
                "sentences": int(own.sum()),
                "taken_for_another": int(wrong.sum()),
                "of_these_close": int((wrong & close).sum()),
                "others_close": int((own & ~wrong & close).sum()),
            }
    return {**table, "all": {"sentences": len(gold), "close": int(close.sum())}}


def mixtures(language: LanguageLabels, verses: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Returns the measured share of other lines by the true share, over documents of verses in pairs of languages."""
    by_code: dict[str, list[str]] = {}
    for row in verses:
        by_code.setdefault(row["lang"], []).append(row["text"])
    texts = {code: "\n".join(lines) for code, lines in by_code.items()}
    pairs = [(one, other) for one in texts for other in texts if one != other]
    table = {}
    for share in (0.0, 0.1, 0.25, 0.45):
        other_chars = int(share * _CHARS)
        documents = [
            f"{texts[one][first : first + _CHARS - other_chars]}\n{texts[other][first : first + other_chars]}"
            for one, other in pairs
            for first in range(0, min(map(len, texts.values())) - _CHARS, _CHARS)
        ]
        shares = fields(language.annotate(DocumentBatch(documents)))["other_share"]
        table[str(share)] = {
            "documents": len(documents),
            "mean": round(float(shares.mean()), 3),
            "standard_deviation": round(float(shares.std()), 3),
            f"above_{_MIXED}": round(float((shares > _MIXED).mean()), 3),
        }
    return table


def unknown(scores: np.ndarray, found: list[str], languages: int) -> dict[str, Any]:
    """Returns the labels of sentences in languages without a label in the data."""
    return {
        "languages": languages,
        "sentences": len(found),
        "share_with_a_score_of_at_least": {str(limit): round(float((scores >= limit).mean()), 3) for limit in _SURE},
        "taken_for": dict(Counter(found).most_common(12)),
    }


def measure_languages(data: Path, model: str) -> dict[str, Any]:
    """Returns all figures."""
    language = LanguageLabels(model=model)
    language.prepare({})
    declared = list(json_lines(data / "langid" / "udhr_sentences.jsonl.zst"))
    known = [row for row in declared if row["lang"]]
    others = [row for row in declared if not row["lang"]]
    gold, texts = [row["lang"] for row in known], [row["text"] for row in known]
    found, _ = labels(language, texts)
    table = by_language(gold, found)
    cut = {}
    for length in _CUTS:
        short, _ = labels(language, [text[:length] for text in texts])
        cut[str(length)] = _share(gold, short)
    verses = list(json_lines(data / "langid" / "genesis_verses.jsonl.zst"))
    verse_gold, verse_texts = [row["lang"] for row in verses], [row["text"] for row in verses]
    foreign, scores = labels(language, [row["text"] for row in others])
    recalls = {name: line["recall"] for name, line in table.items()}
    return {
        "model": Path(model).name if model else "lid.176.ftz",
        "languages": len(table),
        "sentences": len(known),
        "accuracy": _share(gold, found),
        "mean_recall": round(float(np.mean(list(recalls.values()))), 3),
        "accuracy_of_the_first_characters": cut,
        "accuracy_by_case": in_case(language, gold, texts),
        "verses": _share(verse_gold, labels(language, verse_texts)[0]),
        "verses_by_case": in_case(language, verse_gold, verse_texts),
        "confusable": confused(language, gold, texts),
        "other_lines_by_true_share": mixtures(language, verses),
        "well_known": sorted(name for name, recall in recalls.items() if recall >= _WELL),
        "half_known": sorted(name for name, recall in recalls.items() if _BADLY <= recall < _WELL),
        "hardly_known": sorted(name for name, recall in recalls.items() if recall < _BADLY),
        "other_languages": unknown(scores, foreign, len({row["udhr"] for row in others})),
        "by_language": table,
    }


def _share(gold: list[str], found: list[str]) -> float:
    return round(float(np.mean([one == other for one, other in zip(gold, found, strict=True)])), 3)


def languages(given: argparse.Namespace) -> None:
    """Labels the sentences."""
    result = measure_languages(given.data, given.model)
    if given.model:
        print(json.dumps(result, indent=1, ensure_ascii=False))
    else:
        keep("languages", result)


def main() -> None:
    options = parser(__doc__)
    commands = options.add_subparsers(required=True)
    one = commands.add_parser("scores", help="quality and toxicity against human labels")
    one.add_argument("--data", type=Path, required=True, help="folder with quality, toxicity_pii and text_domains")
    one.set_defaults(run=scores)
    one = commands.add_parser("languages", help="accuracy by language")
    one.add_argument("--data", type=Path, required=True, help="folder with langid")
    one.add_argument("--model", default="", help="a fastText model file; default: lid.176")
    one.set_defaults(run=languages)
    given = options.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()

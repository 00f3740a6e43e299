"""How well the language model knows which language: accuracy per language, and what it makes of those it does not know.

    python -m benchmarks.languages --data FOLDER [--model FILE]

The folder has `langid`: sentences of the Universal Declaration of Human Rights in 376 translations, 100 of which have
the code of a language that common models tell, and verses of Genesis in six languages. They are put before the
annotator `language`, lid.176 or the fastText file of `--model`, labels in our codes. Counted are

- for each of the 100 languages: sentences, share found (recall), share of what gets its label among all sentences of
  the 100 that is it (precision), and what most of the others are taken for;
- all sentences cut to their first 20, 50, 100 and 200 characters;
- sentences in the other languages: how many get a label all the same, with which score.

Writes `benchmarks/results/languages.json` where the model is lid.176.
"""

import argparse
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import keep
from tasks.filters.base import fields
from tasks.filters.batch import Batch
from tasks.filters.language import LanguageLabels

_CUTS = (20, 50, 100, 200)
_SURE = (0.3, 0.5, 0.8)
_WELL, _BADLY = 0.9, 0.5


def rows(path: Path) -> list[dict[str, Any]]:
    """Reads JSON lines."""
    with pa.input_stream(str(path), compression="zstd") as stream:
        return [json.loads(line) for line in io.TextIOWrapper(stream, encoding="utf-8")]


def labels(language: LanguageLabels, texts: list[str]) -> tuple[list[str], np.ndarray]:
    """Returns label and score of each text."""
    found = fields(language.annotate(Batch(texts)))
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


def unknown(scores: np.ndarray, found: list[str], languages: int) -> dict[str, Any]:
    """Returns what becomes of sentences in languages that the data have no label for."""
    return {
        "languages": languages,
        "sentences": len(found),
        "share_with_a_score_of_at_least": {str(limit): round(float((scores >= limit).mean()), 3) for limit in _SURE},
        "taken_for": dict(Counter(found).most_common(12)),
    }


def measure(data: Path, model: str) -> dict[str, Any]:
    """Returns all figures."""
    language = LanguageLabels(model=model)
    language.prepare({})
    declared = rows(data / "langid" / "udhr_sentences.jsonl.zst")
    known = [row for row in declared if row["lang"]]
    others = [row for row in declared if not row["lang"]]
    gold, texts = [row["lang"] for row in known], [row["text"] for row in known]
    found, _ = labels(language, texts)
    table = by_language(gold, found)
    cut = {}
    for length in _CUTS:
        short, _ = labels(language, [text[:length] for text in texts])
        cut[str(length)] = _share(gold, short)
    verses = rows(data / "langid" / "genesis_verses.jsonl.zst")
    foreign, scores = labels(language, [row["text"] for row in others])
    recalls = {name: line["recall"] for name, line in table.items()}
    return {
        "model": Path(model).name if model else "lid.176.ftz",
        "languages": len(table),
        "sentences": len(known),
        "accuracy": _share(gold, found),
        "mean_recall": round(float(np.mean(list(recalls.values()))), 3),
        "accuracy_of_the_first_characters": cut,
        "verses": _share([row["lang"] for row in verses], labels(language, [row["text"] for row in verses])[0]),
        "well_known": sorted(name for name, recall in recalls.items() if recall >= _WELL),
        "half_known": sorted(name for name, recall in recalls.items() if _BADLY <= recall < _WELL),
        "hardly_known": sorted(name for name, recall in recalls.items() if recall < _BADLY),
        "other_languages": unknown(scores, foreign, len({row["udhr"] for row in others})),
        "by_language": table,
    }


def _share(gold: list[str], found: list[str]) -> float:
    return round(float(np.mean([one == other for one, other in zip(gold, found, strict=True)])), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with langid")
    parser.add_argument("--model", default="", help="a fastText model file; lid.176 without it")
    given = parser.parse_args()
    result = measure(given.data, given.model)
    if given.model:
        print(json.dumps(result, indent=1, ensure_ascii=False))
    else:
        keep("languages", result)


if __name__ == "__main__":
    main()

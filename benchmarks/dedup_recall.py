"""Recall of near dedup: pairs with planted edits beside the theory, and real pairs with their exact similarity.

    python -m benchmarks.dedup_recall TEXTS.jsonl.zst ... [--gold FOLDER] [--pairs 500]

Real passages of 200 words, none twice, each with a copy in which words are replaced all over the text, replaced at its
beginning, or cut off at its end, until there are `--pairs` pairs in each of 20 ranges of true Jaccard similarity from
0.5 to 1. The similarity is that of the sets of 5-word tuples, without a hash. The stage runs with a threshold of 0.01,
so that it lists each pair that shares a band; `found` is their share in a range, `theory` the mean of 1 - (1 - s^r)^b
over its pairs (Leskovec, Rajaraman, Ullman, Mining of Massive Datasets, 3.4.2), for 16 bands of 8 and 20 of 6. `z` is
the distance between both in standard deviations of the number of pairs found, or in pairs where it is below one.

`--gold` is a folder with `docs.jsonl.zst` (id, text) and `pairs.jsonl.zst` (a, b, jaccard5): recall of its pairs from
0.8 on at the stage's own settings, and the share of what was found that is at 0.8 or above by sets of tuples.

Writes `benchmarks/results/dedup_recall.json` and `dedup_recall.png`.
"""

import argparse
import io
import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.dedup_scale import make, passages
from benchmarks.harness import ROOT, keep
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.engine import open_engine
from tasks.core.stage import Inputs, Output
from tasks.core.store import Store
from tasks.formats.documents.text import normalise
from tasks.stages.dedup import DedupConfig, stage

WORDS, SHINGLE = 200, 5
RANGES = np.linspace(0.5, 1.0, 21)
BANDINGS = ((16, 8), (20, 6))
EDITS = ("replaced", "beginning", "end")
_TRIES = 100


def tuples(text: str) -> set[tuple[str, ...]]:
    """Returns the shingles of a text by the words that dedup compares; a short text is one shingle."""
    words = normalise(text).split()
    return {tuple(words[at : at + SHINGLE]) for at in range(max(1, len(words) - SHINGLE + 1))}


def similarity(one: str, other: str) -> float:
    """Returns the Jaccard similarity of two texts."""
    left, right = tuples(one), tuples(other)
    return len(left & right) / len(left | right)


def edited(words: Sequence[str], drawn: random.Random) -> str:
    """Returns a copy with edits of one kind."""
    kind, changed = drawn.choice(EDITS), list(words)
    if kind == "end":
        return " ".join(changed[: len(words) - drawn.randrange(1, len(words) // 2)])
    places: Sequence[int] = range(drawn.randrange(1, len(words) // 3))
    if kind == "replaced":
        places = drawn.sample(range(len(words)), drawn.randrange(1, len(words) // 12))
    for place in places:
        changed[place] = f"x{drawn.getrandbits(40):x}"
    return " ".join(changed)


def planted(texts: list[list[str]], per_range: int) -> list[tuple[str, str, float]]:
    """Returns passages, their edited copies and the true similarity, as many in each range."""
    drawn = random.Random(3)
    cut = [words[at : at + WORDS] for words in texts for at in range(0, len(words) - WORDS + 1, WORDS)]
    drawn.shuffle(cut)
    missing = np.full(len(RANGES) - 1, per_range)
    found = []
    for words in cut:
        passage = " ".join(words)
        for _ in range(_TRIES):
            copy = edited(words, drawn)
            share = similarity(passage, copy)
            place = int(np.searchsorted(RANGES, share, side="right")) - 1
            if 0 <= place < len(missing) and missing[place]:
                missing[place] -= 1
                found.append((passage, copy, share))
                break
        if not missing.any():
            return found
    raise SystemExit(f"{len(cut):,} passages are too few for {per_range} pairs in each range: give more texts")


def run(folder: Path, texts: list[str], config: DedupConfig) -> Iterator[tuple[int, int]]:
    """Runs the stage; yields the pairs of texts that it lists, as indices of `texts`, the smaller one first."""
    make(folder, texts, len(texts))
    store = Store(str(folder))
    roles = ("extracted", "prose_score")
    inputs = {role: Artifact.open_at(store, ArtifactId(f"scale/{role}", "dev")) for role in roles}
    output = Output(store, ArtifactId("scale/duplicates", "dev"), "f" * 64)
    with open_engine(workers=0) as engine:
        report = stage.run(config, Inputs(inputs), output, engine)
    made = commit(output, "dedup", stage.VERSION, config, [], report)
    rows = [row for path in made.files("duplicates/") for row in made.table(path, ["id", "text"]).to_pylist()]
    of_text: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        of_text.setdefault(row["text"] or row["id"], []).append(index)
    for group in of_text.values():
        yield from ((a, b) for a in group for b in group if a < b)
    for path in made.files("pairs/"):
        for pair in made.table(path).to_pylist():
            both = ((a, b) for a in of_text[pair["better"]] for b in of_text[pair["worse"]])
            yield from ((min(a, b), max(a, b)) for a, b in both)


def curve(folder: Path, pairs: list[tuple[str, str, float]], bands: int, rows: int) -> dict[str, Any]:
    """Returns the measured and the expected share of pairs with a common band, by range of similarity."""
    config = DedupConfig(jaccard=0.01, minhash={"bands": bands, "rows": rows})
    found = set(run(folder, [text for one, other, _ in pairs for text in (one, other)], config))
    met = np.array([(2 * index, 2 * index + 1) in found for index in range(len(pairs))])
    shares = np.array([share for _, _, share in pairs])
    expected = 1 - (1 - shares**rows) ** bands
    place = np.searchsorted(RANGES, shares, side="right") - 1
    ranges = [place == number for number in range(len(RANGES) - 1)]
    points = [point(shares[inside], met[inside], expected[inside]) for inside in ranges]
    return {"bands": bands, "rows": rows, "worst_z": max(abs(one["z"]) for one in points), "curve": points}


def point(shares: NDArray[np.float64], met: NDArray[np.bool_], expected: NDArray[np.float64]) -> dict[str, float]:
    """Returns the point of the curve for the pairs of one range."""
    deviation = np.sqrt((expected * (1 - expected)).sum())
    found = {"jaccard": shares.mean(), "found": met.mean(), "theory": expected.mean()}
    z = (met.sum() - expected.sum()) / max(deviation, 1.0)
    return {**{name: round(float(value), 4) for name, value in found.items()}, "z": round(float(z), 2)}


def gold(folder: Path, data: Path) -> dict[str, Any]:
    """Returns recall and precision on real pairs."""
    documents, known = (_read(data / name) for name in ("docs.jsonl.zst", "pairs.jsonl.zst"))
    texts, number = [row["text"] for row in documents], {row["id"]: index for index, row in enumerate(documents)}
    found = set(run(folder, texts, DedupConfig()))
    true = {tuple(sorted((number[row["a"]], number[row["b"]]))) for row in known if row["jaccard5"] >= 0.8}
    right = sum(similarity(texts[one], texts[other]) >= 0.8 for one, other in found)
    return {
        "true_pairs": len(true),
        "recall": round(len(true & found) / len(true), 4),
        "found_pairs": len(found),
        "precision": round(right / len(found), 4),
    }


def _read(path: Path) -> list[dict[str, Any]]:
    with pa.input_stream(str(path), compression="detect") as stream:
        return [json.loads(line) for line in io.TextIOWrapper(stream, encoding="utf-8")]


def draw(measured: list[dict[str, Any]], target: Path) -> None:
    """Draws the measured shares over the curves of the theory."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    similarities = np.linspace(RANGES[0], 1, 200)
    for one in measured:
        bands, rows = one["bands"], one["rows"]
        (line,) = axes.plot(
            similarities, 1 - (1 - similarities**rows) ** bands, label=f"theory, {bands} bands of {rows}"
        )
        points = [[row[name] for row in one["curve"]] for name in ("jaccard", "found")]
        axes.plot(*points, "o", color=line.get_color(), label=f"measured, {bands} bands of {rows}")
    axes.axvline(0.8, color="grey", linestyle=":")
    axes.set_xlabel("true Jaccard similarity")
    axes.set_ylabel("share of pairs that share a band")
    axes.legend()
    figure.savefig(target, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="+", help="JSONL files with a field text, plain or compressed")
    parser.add_argument("--gold", type=Path, help="folder with docs.jsonl.zst and pairs.jsonl.zst")
    parser.add_argument("--pairs", type=int, default=500, help="pairs in each range")
    given = parser.parse_args()
    long = [words for words in passages(given.texts) if len(words) >= WORDS]
    pairs = planted(long, given.pairs)
    with tempfile.TemporaryDirectory(prefix="dedup-recall-") as scratch:
        folder = Path(scratch)
        measured = [curve(folder / f"{bands}x{rows}", pairs, bands, rows) for bands, rows in BANDINGS]
        real = {"gold": gold(folder / "gold", given.gold)} if given.gold else {}
    draw(measured, ROOT / "benchmarks" / "results" / "dedup_recall.png")
    corpus = [Path(path).name for path in given.texts]
    keep("dedup_recall", {"corpus": corpus, "pairs": len(pairs), **real, "planted": measured})


if __name__ == "__main__":
    main()

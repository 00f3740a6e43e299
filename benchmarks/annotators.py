r"""Annotators: each on whole batches of documents, beside the plainest way to do the same, in one run.

    python -m benchmarks.annotators --texts FOLDER [--mb 20] [--rounds 3] [--peer PYTHON]

FOLDER holds JSON lines (`*.jsonl.zst`, field `text`). Figures are MB of text (UTF-8) per CPU-second of one process, the
best of the rounds, ours and the other in turn. "words" is the split that all rules share: new texts for empty tables
(`words`), and texts whose words are known (`words, met before`). A rule alone is measured with that split at hand.
Beside `re.findall(r"\w+")`, fastText's `predict` alone, and loops over documents and lines in Python stand, where
`--peer` names the Python of an environment with datatrove 0.10.1 (`benchmarks.refine` makes one), datatrove's filters
on 2 MB of the same texts. They split the words themselves, so a ratio of one rule counts our split with it; "all rules"
are their four, asked about each text in turn, as in a pipeline.

The same text is then cut into documents of 1 KB to 1 MB: all rules together, split included. The peak of memory
(VmHWM) is that of a process of its own on documents of 1 MB. Writes `benchmarks/results/annotators.json`.
"""

import argparse
import io
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.harness import keep
from benchmarks.refine.command import PEER
from tasks.filters.base import Annotator
from tasks.filters.batch import Batch
from tasks.filters.catalogue import annotator
from tasks.filters.counting import words
from tasks.filters.pretrained import model_file
from tasks.formats.documents.text import clean
from tasks.stages.annotate import AnnotateConfig

RULES = ("gopher_quality", "gopher_repetition", "c4", "fineweb", "prose_score")
LENGTHS = {"1 KB": 1_000, "10 KB": 10_000, "100 KB": 100_000, "1 MB": 1_000_000}
_PEER_MB = 2
_ENDS = (".", "!", "?", '"', "'", ":", ";", ")")


def texts_of(folder: Path, most: int) -> list[str]:
    """Returns texts of every file in `folder`, cleaned as extract does, `most` bytes in all: as many of each file."""
    paths = sorted(folder.glob("*.jsonl.zst"))
    found = []
    for path in paths:
        size = 0
        with pa.CompressedInputStream(pa.OSFile(str(path)), "zstd") as file:
            for line in io.BytesIO(file.read()):
                if size < most / len(paths):
                    found.append(clean(json.loads(line)["text"]))
                    size += len(found[-1].encode())
    return found


def batches_of(texts: Sequence[str]) -> list[pa.StringArray]:
    """Returns texts as the stage hands them over: a few megabytes at a time."""
    limit, size = AnnotateConfig().batch_bytes, 0
    columns: list[pa.StringArray] = []
    batch_texts: list[str] = []
    for text in texts:
        if batch_texts and size + len(text.encode()) > limit:
            columns.append(pa.array(batch_texts, pa.string()))
            batch_texts, size = [], 0
        batch_texts.append(text)
        size += len(text.encode())
    return [*columns, pa.array(batch_texts, pa.string())]


def spent(work: Callable[[], object]) -> float:
    """Returns the CPU seconds of one call."""
    before = time.process_time()
    work()
    return time.process_time() - before


def forgotten() -> None:
    """Empties the tables of words that this process has met."""
    words._vocabulary = words.Vocabulary()


def alone(one: Annotator, columns: Sequence[pa.StringArray]) -> float:
    """Returns the CPU seconds of one annotator with the words split."""
    total = 0.0
    for column in columns:
        batch = Batch(column.to_pylist(), column=column)
        _ = batch.words
        total += spent(lambda batch=batch: one.annotate(batch))  # type: ignore[misc]
    return total


def together(columns: Sequence[pa.StringArray]) -> float:
    """Returns the CPU seconds of all rules, the split of new texts included."""
    forgotten()
    rules = [annotator(name, {}) for name in RULES]
    texts = [column.to_pylist() for column in columns]

    def run() -> None:
        for batch_texts, column in zip(texts, columns, strict=True):
            batch = Batch(batch_texts, column=column)
            for one in rules:
                one.annotate(batch)

    return spent(run)


def split(columns: Sequence[pa.StringArray]) -> float:
    """Returns the CPU seconds of the shared split."""
    return spent(lambda: [words.split(column) for column in columns])


def plain_words(texts: Sequence[str]) -> None:
    """Splits with the simplest expression."""
    for text in texts:
        re.findall(r"\w+", text)


def plain_lines(texts: Sequence[str]) -> None:
    """Does by loops in Python what `prose_score` measures: the floor for rules on lines."""
    for text in texts:
        lines = [line for raw in text.split("\n") if (line := raw.strip())]
        sum(len(line) for line in lines if line.endswith(_ENDS))
        sum(map(len, dict.fromkeys(lines)))


def plain_language(texts: Sequence[str]) -> None:
    """Asks the model about the beginnings."""
    import fasttext

    model = fasttext.load_model(str(model_file("lid.176.ftz")))
    for text in texts:
        model.predict(text[:2000].replace("\n", " "))


def compared(texts: Sequence[str], columns: Sequence[pa.StringArray], rounds: int) -> dict[str, float]:
    """Returns the least CPU seconds of each contender."""

    def new() -> float:
        forgotten()
        return split(columns)

    language = annotator("language", {})
    language.prepare({})
    runs: dict[str, Callable[[], float]] = {
        "words": new,
        "words, met before": lambda: split(columns),
        r"re.findall(r'\w+')": lambda: spent(lambda: plain_words(texts)),
        "language": lambda: alone(language, columns),
        "fastText predict": lambda: spent(lambda: plain_language(texts)),
        **{name: partial(alone, annotator(name, {}), columns) for name in RULES},
        "loop over lines": lambda: spent(lambda: plain_lines(texts)),
        "all rules": lambda: together(columns),
    }
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            best[name] = min(best[name], run())
    return best


def by_length(texts: Sequence[str], rounds: int) -> dict[str, float]:
    """Returns MB/s of all rules for the same text as documents of each length."""
    whole = "\n\n".join(texts)
    size = len(whole.encode()) / 1e6
    cut = {
        name: batches_of([whole[at : at + chars] for at in range(0, len(whole), chars)])
        for name, chars in LENGTHS.items()
    }
    best = dict.fromkeys(cut, float("inf"))
    for _ in range(rounds):
        for name, columns in cut.items():
            best[name] = min(best[name], together(columns))
    return {name: round(size / seconds, 2) for name, seconds in best.items()}


def peak_mb(folder: Path, mb: float) -> float:
    """Returns the peak of memory of a process that annotates documents of 1 MB."""
    command = [sys.executable, "-m", "benchmarks.annotators", "--texts", str(folder), "--mb", str(mb), "--only-peak"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def peak_here(folder: Path, mb: float) -> None:
    """Annotates documents of 1 MB, one batch at a time, and prints how far that took this process's memory, in MB."""
    whole = "\n\n".join(texts_of(folder, int(mb * 1e6)))
    chars = LENGTHS["1 MB"]
    together(batches_of([whole[at : at + chars] for at in range(0, len(whole), chars)]))
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    print(int(found[1]) / 1000)


def peers(python: str, texts: Sequence[str]) -> dict[str, float]:
    """Returns MB/s of datatrove's filters on the first texts."""
    some, size = [], 0
    # Of all files some, for they lie one behind the other.
    for text in texts[:: max(1, sum(map(len, texts)) // (_PEER_MB * 1_000_000))]:
        some.append(text)
        size += len(text.encode())
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write("".join(json.dumps(text) + "\n" for text in some))
        file.flush()
        output = subprocess.run([python, PEER, "speed", file.name], check=True, capture_output=True, text=True).stdout
    return {name: round(size / 1e6 / seconds, 3) for name, seconds in json.loads(output.splitlines()[-1]).items()}


def main() -> None:
    """Runs all and writes the result."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--texts", type=Path, required=True)
    options.add_argument("--mb", type=float, default=20)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--peer", help="Python with datatrove")
    options.add_argument("--only-peak", action="store_true", help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.only_peak:
        return peak_here(arguments.texts, arguments.mb)
    texts = texts_of(arguments.texts, int(arguments.mb * 1e6))
    columns = batches_of(texts)
    size = sum(len(text.encode()) for text in texts) / 1e6
    speed = {name: round(size / cost, 2) for name, cost in compared(texts, columns, arguments.rounds).items()}
    ratios = {
        "words": speed["words"] / speed[r"re.findall(r'\w+')"],
        "words, met before": speed["words, met before"] / speed[r"re.findall(r'\w+')"],
        "language": speed["language"] / speed["fastText predict"],
        "prose_score": speed["prose_score"] / speed["loop over lines"],
    }
    result: dict[str, Any] = {"documents": len(texts), "text_mb": round(size, 1), "mb_per_s": speed}
    if arguments.peer:
        result["datatrove_mb_per_s"] = theirs = peers(arguments.peer, texts)
        for name, other in theirs.items():
            mine = 1 / speed[name] + (1 / speed["words"] if name in RULES else 0)
            ratios[f"{name} x datatrove"] = 1 / mine / other
    result["ratio"] = {name: round(value, 2) for name, value in ratios.items()}
    result["mb_per_s_by_length"] = by_length(texts, arguments.rounds)
    result["peak_mb_on_documents_of_1_mb"] = peak_mb(arguments.texts, arguments.mb)
    keep("annotators", result)
    return None


if __name__ == "__main__":
    main()

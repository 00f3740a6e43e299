"""Both sides' verdicts on the same texts, and where they differ."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.refine.command import PEER, cpu_seconds
from benchmarks.refine.ours import RULES
from tasks.filters.base import fields
from tasks.filters.batch import Batch
from tasks.filters.catalogue import annotator, filter_of
from tasks.formats.documents.text import clean

_BATCH = 4_000_000


def texts_of(folder: Path) -> list[str]:
    """Returns the texts of all files in `folder`, cleaned as extract does."""
    found = []
    for path in sorted(folder.glob("*.jsonl.zst")):
        with pa.CompressedInputStream(pa.OSFile(str(path)), "zstd") as file:
            found += [clean(json.loads(line)["text"]) for line in io.BytesIO(file.read())]
    return found


def ours(texts: Sequence[str]) -> list[dict[str, str]]:
    """Returns the first reason of every filter for every text, "" where it passes."""
    found: list[dict[str, str]] = []
    start = 0
    while start < len(texts):
        end, size = start, 0
        while end < len(texts) and size < _BATCH:
            size, end = size + len(texts[end]), end + 1
        batch = Batch(texts[start:end])
        rows: list[dict[str, str]] = [dict.fromkeys(RULES, "") for _ in batch.texts]
        for name in RULES:
            measures = fields(annotator(name, {}).annotate(batch))
            for reason, goes in filter_of(name, {}).reasons(measures):
                for place in goes.nonzero()[0]:
                    rows[place][name] = rows[place][name] or reason
        found += rows
        start = end
    return found


def compared(folder: Path, python: str, state: Path) -> dict[str, Any]:
    """Asks both sides about every text; prints where they differ and returns the share of equal verdicts."""
    texts = texts_of(folder)
    asked, told = state / "texts.jsonl", state / "verdicts.jsonl"
    asked.write_text("".join(json.dumps(text) + "\n" for text in texts))
    theirs_s, _ = cpu_seconds([python, PEER, "verdicts", str(asked), str(told)])
    theirs = [json.loads(line) for line in told.read_text().splitlines()]
    mine = ours(texts)
    equal = {}
    for name in RULES:
        differ = [row for row in range(len(texts)) if bool(mine[row][name]) != bool(theirs[row][name])]
        equal[name] = round(1 - len(differ) / len(texts), 6)
        print(f"{name:18} equal on {equal[name]:.4%} of {len(texts)} texts")
        for row in differ:
            print(f"    text {row}: ours {mine[row][name] or 'keeps'}, datatrove {theirs[row][name] or 'keeps'}")
    return {"texts": len(texts), "equal": equal, "datatrove_cpu_s": round(theirs_s, 1)}

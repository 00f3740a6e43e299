"""Bytes, requests and memory of the merge of the records of many parts (`core.merges.range_merge`), by doublings.

    python -m benchmarks.merges                 both
    python -m benchmarks.merges keys            of the index (`formats.documents.key_index`)
    python -m benchmarks.merges identities      of the first pass of `extract`

Keys: makes key files of 4,096 uniform keys per part and merges them in this process: once with each range reading the
whole files of all parts ("flat", how the index was merged before), once level by level. Ranges have 65,536 keys, a 64th
of those of the product, so a part is a 16th of a range, as with parts of 262,144 keys. Each run is a process of its
own. `requests` are reads of files or byte ranges, as a remote store would get them. `exponents` are fits of log figure
against log parts over all sizes, `doublings` are the exponents from one size to the next. Both ways must write the same
bytes.

Identities: finds the excluded rows among drawn identities, half of which are copies, with ranges of 65,536 rows, first
for more parts of 4,096 rows, then for more rows in 64 parts. Each task is a process of its own, so `stage_mb` is the
peak memory of the process of the stage alone, and `task_mb` that of the largest task (it begins as a copy of the
stage's). Writes `merges.json`.
"""

import json
import math
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import linear_regression
from typing import Any

import numpy as np

from benchmarks.harness import cost, keep, last, parser
from tasks.core import ranges
from tasks.core.artifact import ArtifactFolder, ArtifactId, PartRecord
from tasks.core.engine import Engine
from tasks.core.manifest import Total
from tasks.core.merges.range_merge import range_begin, range_count
from tasks.core.part import Part, PartSpec
from tasks.core.stage import Output
from tasks.core.store import Store
from tasks.formats.documents import key_index
from tasks.formats.documents.external_files import SourceFile
from tasks.stages.extract.config import WARC, ExtractConfig, FileSource
from tasks.stages.extract.first_pass import exclusions
from tasks.stages.extract.first_pass.identity import Identity
from tasks.stages.extract.sources import InputUnit

KEYS = 4096
RANGE_KEYS = 1 << 16
PARTS = {"flat": (64, 128, 256, 512, 1024), "levels": (64, 128, 256, 512, 1024, 2048, 4096)}
IDENTITIES = {
    "more_parts": [(parts, KEYS) for parts in (64, 128, 256, 512, 1024)],
    "more_rows": [(64, KEYS << doublings) for doublings in (0, 1, 2, 3, 4)],
}
"""Parts, and rows of a part."""
FIGURES = ("bytes", "requests")


class Counted(Engine):
    """Runs tasks in this process, and measures their pickled arguments."""

    largest = 0

    def map(self, fn: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """See `Engine.map`."""
        self.largest = max([self.largest, *(len(pickle.dumps((fn, item))) for item in items)])
        yield from super().map(fn, items)


def count_reads() -> dict[str, int]:
    """Makes the store count reads and their bytes; returns the counts."""
    counts = dict.fromkeys(FIGURES, 0)
    for name in ("read", "read_range"):
        setattr(Store, name, _counting(getattr(Store, name), counts))
    return counts


def _counting(read: Callable[..., bytes], counts: dict[str, int]) -> Callable[..., bytes]:
    def counted(*args: Any) -> bytes:
        data = read(*args)
        counts["bytes"] += len(data)
        counts["requests"] += 1
        return data

    return counted


def merge_flat(output: Output, engine: Engine, records: Sequence[PartRecord]) -> None:
    """Merges the keys with one task per range, which reads the files of all parts."""
    paths = [f"{key_index.PART_KEYS_FOLDER}/{record.name}.bin" for record in records]
    count = range_count(KEYS * len(records), RANGE_KEYS)
    specs = [
        PartSpec(f"words-{number:05d}-of-{count:05d}", (output.folder, paths, number, count)) for number in range(count)
    ]
    output.map_parts(engine, _merge_range, specs, conserved=False)


def _merge_range(part: Part, payload: tuple[ArtifactFolder, list[str], int, int]) -> None:
    folder, paths, number, count = payload
    pieces = []
    for index, path in enumerate(paths):
        table = np.frombuffer(folder.read(path), key_index.PART_KEY)
        first, end = (
            len(table) if bound >> 64 else int(np.searchsorted(table["key"], np.uint64(bound)))
            for bound in (range_begin(number, count), range_begin(number + 1, count))
        )
        piece = np.empty(end - first, key_index.KEY)
        piece["key"], piece["part"], piece["row"] = table["key"][first:end], index, table["row"][first:end]
        pieces.append(piece)
    merged = np.concatenate(pieces)
    merged = merged[np.argsort(merged["key"], kind="stable")]
    with ranges.checksummed_file(part, f"{key_index.FOLDER}/{part.name}.bin", rows=len(merged)) as file:
        file.write(merged.tobytes())


def one(way: str, parts: int) -> dict[str, Any]:
    """Merges the keys of some parts in this process; returns counts and the identity of the written bytes."""
    os.fsync = lambda fd: None  # thousands of small files are synced otherwise; the disk is not measured
    key_index._RANGE_KEYS = RANGE_KEYS
    draw, engine = np.random.default_rng(1), Counted()
    with tempfile.TemporaryDirectory() as root:
        output = Output(Store(root), ArtifactId("bench/keys", "dev"), "by-hand")
        for number in range(parts):
            with output.part(f"part-{number:05d}", conserved=False) as part:
                key_index.write_part_keys(part, draw.integers(0, 2**64, KEYS, np.uint64), np.arange(KEYS))
        counts = count_reads()
        records = list(output.committed.values())
        (merge_flat if way == "flat" else key_index.merge)(output, engine, records)
        content = Total.of(entry for part in output.committed.values() for entry in part.files).digest
    return {"parts": parts, **counts, "largest_task_bytes": engine.largest, "content": content}


def measured(way: str, parts: int) -> dict[str, Any]:
    """Returns the figures of a run in a process of its own, with its peak memory."""
    run = cost([sys.executable, "-m", "benchmarks.merges", "--one", way, str(parts)])
    figures: dict[str, Any] = json.loads(run.output.splitlines()[-1])
    return {**figures, "cpu_s": round(run.cpu_s, 1), "peak_mb": round(run.peak_bytes / 1e6)}


class Forked(Engine):
    """Runs each task in a process of its own, and adds up what the tasks count.

    Args:
        counts: what the store counts in a process.
    """

    def __init__(self, counts: dict[str, int]) -> None:
        self.counts, self.total = counts, dict.fromkeys(counts, 0)
        self.task_bytes = 0

    def map(self, fn: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """See `Engine.map`."""
        for index, item in enumerate(items):
            reader, writer = os.pipe()
            if not (child := os.fork()):
                self.counts |= dict.fromkeys(self.counts, 0)
                result = fn(item)
                with open(writer, "wb") as file:
                    pickle.dump((result, self.counts, peak_bytes()), file)
                os._exit(0)
            os.close(writer)
            with open(reader, "rb") as file:
                result, counts, peak = pickle.load(file)
            os.waitpid(child, 0)
            self.total = {name: count + counts[name] for name, count in self.total.items()}
            self.task_bytes = max(self.task_bytes, peak)
            yield index, result


def peak_bytes() -> int:
    """Returns the peak memory of this process, without that of its children."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def identities_once(parts: int, rows: int) -> dict[str, Any]:
    """Finds the excluded rows of some parts; returns counts and peaks."""
    os.fsync = lambda fd: None
    exclusions._RANGE_ROWS, exclusions._GROUP_WEIGHT = RANGE_KEYS, 1

    def drawn(unit: InputUnit, *_: object) -> Iterator[Identity]:
        pages = np.random.default_rng(int(unit.file.name)).integers(0, parts * rows // 2, rows).tolist()
        for page in pages:
            key = page * 0x9E3779B97F4A7C15 & (1 << 64) - 1
            yield key, key.to_bytes(16, "little"), key, False

    vars(exclusions)["unit_identities"] = drawn
    source = FileSource(name="drawn", kind=WARC, path="/drawn/*")
    units = [InputUnit(SourceFile(f"/drawn/{number}", str(number), 1), source) for number in range(parts)]
    specs = [
        PartSpec(f"part-{number:05d}", exclusions.PartInput(ExtractConfig(), (one,)))
        for number, one in enumerate(units)
    ]
    engine = Forked(count_reads())
    with tempfile.TemporaryDirectory() as root:
        output = Output(Store(root), ArtifactId("bench/extracted", "dev"), "by-hand")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins at the memory of now
        before = peak_bytes()
        found = exclusions.exclude_rows(specs, units, output, engine)
        stage = peak_bytes()
        reasons = [len(spec.payload.excluded.read()) for spec in found]
    if reasons != [rows] * parts:
        raise RuntimeError(f"{sum(reasons)} rows have a reason, not {parts * rows}")
    peaks = {"start_mb": before, "stage_mb": stage, "task_mb": engine.task_bytes}
    return {"parts": parts, "rows": rows, **engine.total} | {name: round(peak / 1e6) for name, peak in peaks.items()}


def identities_measured(parts: int, rows: int) -> dict[str, Any]:
    """Returns the figures of `identities_once` in a process of its own, whose processes are its tasks."""
    run = cost([sys.executable, "-m", "benchmarks.merges", "--identities", str(parts), str(rows)])
    figures: dict[str, Any] = json.loads(run.output.splitlines()[-1])
    return {**figures, "cpu_s": round(run.cpu_s, 1)}


def exponent(rows: Sequence[dict[str, Any]], figure: str) -> float:
    """Returns the slope of log figure over log parts."""
    parts, figures = ([math.log(row[name]) for row in rows] for name in ("parts", figure))
    return round(linear_regression(parts, figures).slope, 3)


def doublings(rows: Sequence[dict[str, Any]], figure: str) -> list[float]:
    """Returns the exponent of each doubling of the parts."""
    return [round(math.log2(more[figure] / fewer[figure]), 2) for fewer, more in pairwise(rows)]


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the figures of a way at all sizes, with their exponents."""
    return {
        "exponents": {figure: exponent(rows, figure) for figure in FIGURES},
        "doublings": {figure: doublings(rows, figure) for figure in FIGURES},
        "sizes": rows,
    }


def keys_figures() -> dict[str, Any]:
    """Measures both ways to merge keys at all sizes."""
    rows = {way: [measured(way, parts) for parts in sizes] for way, sizes in PARTS.items()}
    for flat, levels in zip(*rows.values(), strict=False):
        if flat.pop("content") != levels["content"]:
            raise RuntimeError(f"the index of {flat['parts']} parts has other bytes")
    for row in rows["levels"]:
        del row["content"]
    return {way: summary(sizes) for way, sizes in rows.items()}


def main() -> None:
    """Measures the merges at all sizes."""
    arguments = parser(__doc__)
    arguments.add_argument("what", nargs="*", help="keys, identities; both by default")
    arguments.add_argument("--one", nargs=2, metavar=("WAY", "PARTS"), help="one merge of keys in this process")
    arguments.add_argument("--identities", nargs=2, type=int, metavar=("PARTS", "ROWS"), help="one run in this process")
    options = arguments.parse_args()
    if options.one:
        print(json.dumps(one(options.one[0], int(options.one[1]))))
        return
    if options.identities:
        print(json.dumps(identities_once(*options.identities)))
        return
    figures = {**last("merges"), "keys_per_part": KEYS, "keys_per_range": RANGE_KEYS}
    if not options.what or "keys" in options.what:
        figures |= keys_figures()
    if not options.what or "identities" in options.what:
        sizes = {way: [identities_measured(*size) for size in sizes] for way, sizes in IDENTITIES.items()}
        figures["identities"] = {**sizes, "exponents": summary(sizes["more_parts"])["exponents"]}
    keep("merges", figures)


if __name__ == "__main__":
    main()

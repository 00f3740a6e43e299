"""Requests and bytes of the exchange of runs between passes against the number of parts, with as many rows in each.

    python -m benchmarks.exchange                            one exchange, flat and level by level
    python -m benchmarks.exchange stages [--parts 32 128]    `dedup` and `consolidate` as wholes

A folder counts as a remote store. `get` are reads of files and byte ranges, `head` are look-ups; the worker's cache has
room for all files, so that each is fetched once. `written` are the bytes of all files, also of intermediate ones.

`runs`: as many runs as parts, of 300 records of 24 bytes, and ranges of 2,000 records, a five-hundredth of those of the
product, so 6 runs have the records of a bucket, as the band keys of parts of 10,000 documents do. `buckets` are ranges
of hashes, `parts` those of the row ids of each part. "flat" is how passes read runs before: each task looks up all of
them. Both ways must read the same records. `exponents` are fits of log figure against log parts over all sizes, `steps`
from one size to the next: one level more raises the figures at one size.

`stages`: parts of 10 documents with copies and near copies, and 2,000 records in a bucket; the counts of both stages.
Writes `exchange.json`.
"""

import hashlib
import json
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import dedup as corpus
from benchmarks.harness import cost, keep, last, parser
from benchmarks.merges import exponent
from tasks.core.artifact import Artifact, ArtifactFolder, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.engine import Engine
from tasks.core.merges.range_merge import range_begin
from tasks.core.stage import Inputs, Output, Report
from tasks.core.store import Store
from tasks.formats.dedup import sorted_runs
from tasks.formats.dedup.dedup_index import BAND
from tasks.formats.dedup.exchange import exchange, runs_of
from tasks.formats.documents.groups import ref_to
from tasks.stages.consolidate import resolve
from tasks.stages.consolidate import stage as consolidate
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.dedup import DedupConfig
from tasks.stages.dedup import stage as dedup

PER_BUCKET, PER_RUN, PAIRS, DOCUMENTS = 2_000, 300, 500, 10
PARTS = {"flat": (32, 64, 128), "levels": (32, 64, 128, 512, 2048)}
FIGURES = ("get", "head", "put", "read", "written")
counts: Counter[str] = Counter()


def counted(name: str, count: Callable[..., None]) -> None:
    """Makes a method of the store count its calls."""
    method = getattr(Store, name)

    def call(*args: Any, **options: Any) -> Any:
        result = method(*args, **options)
        count(result, *args, **options)
        return result

    setattr(Store, name, call)


def count_requests() -> None:
    """Makes folders remote stores that count requests and bytes, as S3 would get them."""
    begin = Store.__init__

    def remote(store: Store, *args: Any, **options: Any) -> None:
        begin(store, *args, **options)
        store.is_local = False
        os.makedirs(store._base, exist_ok=True)
        store._fs.auto_mkdir = True

    Store.__init__ = remote  # type: ignore[assignment, method-assign]

    def got(data: Any, store: Store, path: str, *_: Any) -> None:
        size = len(data) if isinstance(data, bytes) else store._fs.size(store._full(path))
        counts.update(get=1, read=size)

    def put(*_: Any) -> None:
        counts.update(put=1)

    def looked_up(_: Any, store: Store, path: str, size: int | None = None, sha256: str = "") -> None:
        counts.update(head=size is None)  # a copy by size and hash is used without a request

    for name in ("read", "read_range", "_fetch"):
        counted(name, got)
    for name in ("write", "publish", "copy"):
        counted(name, put)
    for name in ("exists", "size", "local"):
        counted(name, looked_up)


def run_stage(
    root: str, name: str, stage: Any, config: Config, inputs: dict[str, Artifact]
) -> tuple[Artifact, dict[str, int]]:
    """Runs and commits a stage; returns its artifact, and what its passes cost."""
    output = Output(Store(root), ArtifactId(f"scale/{name}", "dev"), "f" * 64)
    counts.clear()
    report = stage.run(config, Inputs(inputs), output, Engine())
    found = {figure: counts[figure] for figure in FIGURES}
    found["written"] = sum(output.store.sizes(output.address.path).values())
    return commit(output, name, stage.VERSION, config, [], report), found


def one(root: str, parts: int, documents: int) -> dict[str, Any]:
    """Runs both stages in this process; returns their counts and the identity of their results."""
    os.fsync = lambda fd: None  # thousands of small files are synced otherwise; the disk is not measured
    os.environ["SLUICE_CACHE"] = f"{root}/cache"
    corpus.PER_PART, resolve._PER_BUCKET = documents, PER_BUCKET
    drawn = random.Random(3)
    texts = [[f"w{drawn.randrange(5_000)}" for _ in range(400)] for _ in range(100)]
    corpus.write(root, corpus.documents(texts, parts * documents, 1), parts * documents)
    store = Store(root)
    extracted, scores = (
        Artifact.open_at(store, ArtifactId(f"scale/{one}", "dev")) for one in ("extracted", "prose_score")
    )
    output = Output(store, ArtifactId("scale/attributes", "dev"), "a")
    with output.part("groups", conserved=False):
        pass
    attributes = commit(output, "annotate", 1, Config(), [ref_to(scores, "prose_score")], Report())
    count_requests()
    settings = DedupConfig(records_per_bucket=PER_BUCKET, pairs_per_part=PAIRS)
    duplicates, of_dedup = run_stage(
        root, "duplicates", dedup, settings, {"extracted": extracted, "prose_score": scores}
    )
    given = {"extracted": extracted, "attributes": attributes, "duplicates": duplicates}
    kept, of_consolidate = run_stage(
        root, "documents", consolidate, ConsolidateConfig(filters=(), mask_pii=False), given
    )
    names = ("candidate_pairs", "verified_pairs", "exact_duplicates", "near_duplicates")
    found = {name: round(duplicates.record.metrics[name]) for name in names}
    content = [duplicates.record.content, kept.record.content]
    return {"parts": parts, **found, "dedup": of_dedup, "consolidate": of_consolidate, "content": content}


def measured(mode: str, *given: Any) -> dict[str, Any]:
    """Returns the figures of a run in a process of its own."""
    run = cost([sys.executable, "-m", "benchmarks.exchange", mode, *map(str, given)])
    figures: dict[str, Any] = json.loads(run.output.splitlines()[-1])
    return {**figures, "cpu_s": round(run.cpu_s, 1)}


def one_exchange(root: str, parts: int, way: str, to: str) -> dict[str, Any]:
    """Exchanges the runs of some parts; returns its counts and a hash of what its tasks read."""
    os.fsync = lambda fd: None
    os.environ["SLUICE_CACHE"] = f"{root}/cache"
    count_requests()
    output, drawn = Output(Store(root), ArtifactId("scale/runs", "dev"), "f" * 64), np.random.default_rng(1)
    with output.part("runs", conserved=False) as part:
        for number in range(parts):
            records = np.zeros(PER_RUN, BAND)
            keys = drawn.integers(0, parts << 32 if to == "parts" else 1 << 64, PER_RUN, np.uint64)
            records["key"], records["row_id"] = keys, np.arange(PER_RUN) + number * PER_RUN
            sorted_runs.write(part, f"runs/{number:05d}.bin", [sorted_runs.by_key(records)])
    runs = runs_of(output.committed.values(), "runs", BAND)
    counts.clear()
    count = parts if to == "parts" else sorted_runs.bucket_count(parts * PER_RUN, PER_BUCKET)
    keys_end = parts << 32 if to == "parts" else 1 << 64
    if way == "levels":
        made = exchange("next", BAND, output, Engine(), runs, PER_BUCKET, count, keys_end)
        read = partial(made.records, output.folder)
    else:
        paths = [run.path for run in runs]
        read = partial(_read_flat, output.folder, paths, count, keys_end)
    seen = hashlib.sha256()
    for number in range(count):
        seen.update(np.sort(read(number)["row_id"]).tobytes())
    found = {figure: counts[figure] for figure in FIGURES}
    found["written"] = sum(output.store.sizes(output.address.path).values())
    return {"parts": parts, **found, "seen": seen.hexdigest()}


def _read_flat(folder: ArtifactFolder, paths: Sequence[str], count: int, keys: int, number: int) -> NDArray[np.void]:
    first, end = (range_begin(edge, count, keys) for edge in (number, number + 1))
    return sorted_runs.read_range(folder, paths, BAND, first, end)


def runs_figures() -> dict[str, Any]:
    """Measures an exchange in both ways and both directions, at all sizes."""
    found: dict[str, Any] = {}
    for to in ("buckets", "parts"):
        rows = {way: [measured("--exchange", parts, way, to) for parts in sizes] for way, sizes in PARTS.items()}
        for flat, levels in zip(*rows.values(), strict=False):
            if flat.pop("seen") != levels["seen"]:
                raise RuntimeError(f"{flat['parts']} runs: the tasks read other records")
        for row in rows["levels"]:
            del row["seen"]
        found[to] = {way: summary(of_way) for way, of_way in rows.items()}
    return found


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the figures at all sizes, with their exponents."""
    figures = [figure for figure in FIGURES if all(row[figure] for row in rows)]
    steps = {figure: [exponent(pair, figure) for pair in pairwise(rows)] for figure in figures}
    return {
        "exponents": {figure: exponent(rows, figure) for figure in figures},
        "steps": steps,
        "sizes": list(rows),
    }


def main() -> None:
    """Measures exchanges, or stages."""
    options = parser(__doc__)
    options.add_argument("what", nargs="*", help="runs, stages; runs by default")
    options.add_argument("--parts", nargs="+", type=int, default=[32, 128], help="of the stages")
    options.add_argument("--stages", type=int, metavar="PARTS", help="one run of both stages in this process")
    options.add_argument("--exchange", nargs=3, metavar=("PARTS", "WAY", "TO"), help="one exchange in this process")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="exchange-") as folder:
        if given.stages:
            print(json.dumps(one(folder, given.stages, DOCUMENTS)))
            return
        if given.exchange:
            parts, way, to = given.exchange
            print(json.dumps(one_exchange(folder, int(parts), way, to)))
            return
    figures = {**last("exchange"), "records_of_a_run": PER_RUN, "records_of_a_range": PER_BUCKET}
    if not given.what or "runs" in given.what:
        figures |= runs_figures()
    if "stages" in given.what:
        figures["stages"] = [measured("--stages", parts) for parts in given.parts]
    keep("exchange", figures)


if __name__ == "__main__":
    main()

"""Requests and bytes of `dedup` and `consolidate` against the number of parts, with as many documents in each part.

    python -m benchmarks.exchange [--parts 16 64 256] [--documents 20]

Makes parts of 20 documents with copies and near copies, in a folder that counts as a remote store, and runs both stages
on them in this process. There are 2,000 records in a bucket and 500 pairs in a task, a five-hundredth and a
hundredth of those of the product, so 6 parts have the band keys of a bucket, as parts of 10,000 documents do. `get` are
reads of files and byte ranges, `head` are look-ups, each by a worker whose cache has room for all files. `written` are
the bytes of the artifact and of intermediate files.
`exponents` are fits of log figure against log parts, `doublings` are the exponents from one size to the next: a figure
that grows with the documents has 1, and one level of the merges more adds to it at one size.
"""

import json
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from benchmarks import dedup as corpus
from benchmarks.harness import cost, keep, parser
from benchmarks.merges import exponent
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.engine import Engine
from tasks.core.groups import ref_to
from tasks.core.stage import Inputs, Output, Report
from tasks.core.store import Store
from tasks.stages.consolidate import resolve
from tasks.stages.consolidate import stage as consolidate
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.dedup import DedupConfig
from tasks.stages.dedup import stage as dedup

PER_BUCKET, PAIRS = 2_000, 500
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

    Store.__init__ = remote  # type: ignore[method-assign]

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


def measured(parts: int, documents: int) -> dict[str, Any]:
    """Returns the figures of `one` in a process of its own."""
    run = cost([sys.executable, "-m", "benchmarks.exchange", "--one", str(parts), str(documents)])
    figures: dict[str, Any] = json.loads(run.output.splitlines()[-1])
    return {**figures, "cpu_s": round(run.cpu_s, 1)}


def summary(rows: Sequence[dict[str, Any]], stage: str) -> dict[str, Any]:
    """Returns the exponents of a stage."""
    flat = [{"parts": row["parts"], **row[stage]} for row in rows]
    figures = [figure for figure in FIGURES if all(row[figure] for row in flat)]
    steps = {figure: [exponent(pair, figure) for pair in pairwise(flat)] for figure in figures}
    return {"exponents": {figure: exponent(flat, figure) for figure in figures}, "doublings": steps}


def main() -> None:
    """Measures both stages at all sizes."""
    options = parser(__doc__)
    options.add_argument("--parts", nargs="+", type=int, default=[16, 64, 256])
    options.add_argument("--documents", type=int, default=20, help="of a part")
    options.add_argument("--one", nargs=2, type=int, metavar=("PARTS", "DOCUMENTS"), help="one run in this process")
    given = options.parse_args()
    if given.one:
        with tempfile.TemporaryDirectory(prefix="exchange-") as folder:
            print(json.dumps(one(folder, *given.one)))
        return
    rows = [measured(parts, given.documents) for parts in given.parts]
    stages = {stage: summary(rows, stage) for stage in ("dedup", "consolidate")}
    keep("exchange", {"documents": given.documents, "per_bucket": PER_BUCKET, **stages, "sizes": rows})


if __name__ == "__main__":
    main()

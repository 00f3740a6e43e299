"""Time and reads of a trace in a corpus of 10 M captures, from a folder and from an object store.

    python -m benchmarks.trace --documents 10000000 --store /some/empty/folder

Builds artifacts in the formats of the stages for a synthetic corpus of that size (30 % of the captures rejected),
and times the writing of its index. Then times traces in fresh processes with an empty cache: kept page, rejected page,
unknown page, document id, domain and step; from the folder, and through an S3 server on loopback that waits
10 ms before each response. Goal: each below 2 s. Writes `trace.json`.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import keep, parser
from benchmarks.range_server import served
from tasks.core import ranges
from tasks.core.artifact import Artifact, ArtifactId, FileEntry, PartRecord
from tasks.core.commit import commit
from tasks.core.config import Config, canonical_json
from tasks.core.engine import open_engine
from tasks.core.stage import Output, Report, part_names
from tasks.core.store import Store
from tasks.formats.documents.document import document_id
from tasks.formats.documents.key_index import ID, URL, keys_of, merge, write_part_keys
from tasks.formats.tokens.index import IndexedShard, write_index
from tasks.formats.tokens.order import VERSION as ORDER
from tasks.formats.tokens.plan import array_name, arrays_of, write_array
from tasks.formats.tokens.plan_tables import part_row, shard_rows, write_tables
from tasks.formats.tokens.shard import ShardEntry, ShardSet, TokenFormat, shard_name, write_shard
from tasks.stages.consolidate.stage import KEPT_SCHEMA, REJECTED
from tasks.stages.tokens import TokenizerConfig
from tasks.stages.tokens.bpe import train
from tasks.stages.tokens.pack import Documents, concat
from tests.shards import buffer_of

FMT = TokenFormat(300, 0, "none")
SEQ_LEN, PART = 2048, 100_000
STEPS, BATCH = 5000, 256
DIGEST = "sha1:A"
PAUSE_MS = 10


def main() -> None:
    """Builds the corpus unless it exists, then times the traces."""
    options = parser(__doc__)
    options.add_argument("--documents", type=int, default=10_000_000)
    options.add_argument("--store", required=True)
    chosen = options.parse_args()
    store = Store(chosen.store)
    if not store.exists("big/checkpoint/dev/.artifact.json"):
        build(store, chosen.documents)
    figures: dict[str, Any] = {"captures": chosen.documents, **sizes(store)}
    built = Path(store.root) / "built.json"
    figures |= json.loads(built.read_text()) if built.exists() else {}
    figures["folder"] = {what: timed(store.root, name) for what, name in QUERIES.items()}
    with served(Path(store.root), PAUSE_MS) as environment:
        figures[f"s3, {PAUSE_MS} ms per request"] = {
            what: timed("s3://bucket", name, **environment) for what, name in QUERIES.items()
        }
    keep("trace", figures)


def timed(root: str, name: str, **environment: str) -> dict[str, float]:
    """Returns the cost of one trace, in a separate process with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        out = subprocess.run(
            [sys.executable, "-c", CODE, root, name],
            capture_output=True, text=True, check=True, env={**os.environ, **environment, "SLUICE_CACHE": cache},
        )  # fmt: skip
        fetched = sum(path.stat().st_size for path in Path(cache).rglob("*") if path.is_file())
    imports, took, busy, found, requests = out.stdout.split()
    return {
        "seconds": round(float(took), 2), "cpu_s": round(float(busy), 2), "imports_s": round(float(imports), 2),
        "found": int(found), "requests": int(requests), "cached_mb": round(fetched / 1e6, 1),
    }  # fmt: skip


def sizes(store: Store) -> dict[str, Any]:
    """Returns the documents of the index, and its bytes per document: of the index, and of the keys of the parts."""
    shards = Artifact.open_at(store, ArtifactId("big/shards", "dev"))
    files = list(shards.entries())
    documents = sum(file.rows or 0 for file in files if file.path.endswith("-documents.bin"))
    bytes_of = {
        folder: sum(file.bytes for file in files if file.path.startswith(folder)) for folder in ("index/", "keys/")
    }
    return {
        "documents": documents,
        "index_bytes_per_document": round(bytes_of["index/"] / documents, 1),
        "keys_bytes_per_document": round(bytes_of["keys/"] / documents, 1),
    }


def build(store: Store, documents: int) -> None:
    """Writes documents, tokenizer, shards, plan and checkpoint of a synthetic corpus."""
    names = part_names(-(-documents // PART))
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        seconds = list(pool.map(make_part, repeat(store), range(len(names)), names))
    outputs = opened(store)
    started = time.perf_counter()
    with open_engine(workers=0) as engine:
        for kind in ("documents", "shards"):
            merge(outputs[kind], engine, [outputs[kind].committed[name] for name in names])
    built = {"write_index_s": round(sum(seconds), 1), "merge_s": round(time.perf_counter() - started, 1)}
    (Path(store.root) / "built.json").write_text(json.dumps(built))
    shards = outputs["shards"]
    entries = {
        Path(file.path).stem: ShardEntry(f"{store.root}/{shards.address.path}/{file.path}", file.rows or 0, 0)
        for name in names
        for file in shards.committed[name].files
        if file.path.startswith("shards/")
    }
    finish(outputs, ShardSet(entries, None))


def opened(store: Store) -> dict[str, Output]:
    """Returns the artifacts being written, by kind."""
    kinds = ("documents", "tokenizer", "shards", "plan", "checkpoint")
    return {kind: Output(store, ArtifactId(f"big/{kind}", "dev"), "made") for kind in kinds}


def make_part(store: Store, number: int, name: str) -> float:
    """Writes one part of documents and its shard; returns the seconds spent on its index."""
    outputs = opened(store)
    if name in outputs["shards"].committed:
        return 0.0
    urls = [url_of(index) for index in range(number * PART, number * PART + PART)]
    rows = sorted((document_id(url, DIGEST), url) for url in urls)
    kept = [row for row in rows if not is_rejected(row[1])]
    rejected = [row for row in rows if is_rejected(row[1])]
    with outputs["documents"].part(name, conserved=False) as part:
        part.table("kept", table(kept, KEPT_SCHEMA, {"warc_file": f"{name}.warc.gz", "warc_offset": 1}))
        reasons = {"reason": "gopher_short_doc", "reasons": ["gopher_short_doc"]}
        part.table("rejected", table(rejected, REJECTED, reasons))
        keys = [keys_of(kind, [row[at] for row in rejected]) for at, kind in enumerate((ID, URL))]
        write_part_keys(part, np.concatenate(keys), np.tile(np.arange(len(rejected)), len(keys)))
    sizes = document_sizes(number)
    uids = [bytes.fromhex(doc_id) for doc_id, _ in kept]
    shard = shard_name("web", "train", number, 0)
    tokens = np.split(np.full(int(sizes.sum()), 70, dtype=np.uint16), np.cumsum(sizes)[:-1])
    with outputs["shards"].part(name, conserved=False) as part:
        with ranges.checksummed_file(part, f"shards/{shard}.arrow", len(kept), int(sizes.sum())) as file:
            buffer = buffer_of("web", "train", uids, tokens, sizes.tolist())
            offsets = write_shard(file, buffer, FMT)
        started = time.perf_counter()
        write_index(part, [IndexedShard(shard, buffer.uids, pa.array([url for _, url in kept]), offsets, sizes)])
        return time.perf_counter() - started


def url_of(index: int) -> str:
    """Returns the URL of a synthetic page, on one of 50,000 sites of 10,000 domains."""
    site = index % 50_000
    return f"https://site-{site}.example-{site % 10_000}.org/articles/2026/some-words-in-the-path/page-{index}"


def is_rejected(url: str) -> bool:
    """Returns whether a synthetic page was rejected: three in ten are."""
    return url[-1] in "036"


def document_sizes(part: int) -> np.ndarray:
    """Returns the tokens of each kept document of a part, about 225 each."""
    return np.random.default_rng(part).integers(50, 400, PART * 7 // 10)


def table(rows: list[tuple[str, str]], schema: pa.Schema, constant: Mapping[str, object]) -> pa.Table:
    """Returns (id, url) rows with the same values in all other columns."""
    columns = {"id": pa.array([doc_id for doc_id, _ in rows]), "url": pa.array([url for _, url in rows])}
    for field in schema:
        if field.name not in columns:
            value = constant.get(field.name, "web" if field.type == pa.string() else None)
            columns[field.name] = pa.repeat(pa.scalar(value, field.type), len(rows))
    return pa.table([columns[field.name] for field in schema], schema=schema)


def make_plan(output: Output, shards: ShardSet, records: Iterable[PartRecord]) -> int:
    """Writes a plan of one part; returns its sequences."""
    names, columns = shards.all_names, []
    for number, shard in enumerate(map(shards.shard, names)):
        place = (np.full(shard.rows, number), np.arange(shard.rows))
        columns.append((*place, shard.token_offsets, shard.lengths))
    packed = concat(Documents(*map(np.concatenate, zip(*columns, strict=True))), SEQ_LEN)
    with output.part("web", conserved=False) as part:
        for array, values in arrays_of(packed.slices, packed.lengths):
            with ranges.checksummed_file(part, f"plan/{array_name('web', 0, array)}", len(values)) as file:
                write_array(file, values)
        files = {file.path: file for file in part.record(conserved=False).files}

        def entry(array: str) -> tuple[FileEntry, FileEntry]:
            path = f"plan/{array_name('web', 0, array)}"
            return files[path], files[ranges.checksums_path(path)]

        row = part_row(0, len(packed.lengths), (0, len(names) - 1), entry)
        tables = write_tables(part, shard_rows(records, names), [row])
        with part.file("plan/summary.json") as file:
            summary = {
                "seq_len": SEQ_LEN,
                "by": "source",
                **FMT.__dict__,
                "parts": {"web": [0, 1]},
                "tables": tables,
                "sequences": {"web": len(packed.lengths)},
            }
            file.write(canonical_json(summary).encode())
    return len(packed.lengths)


def finish(outputs: dict[str, Output], shards: ShardSet) -> None:
    """Writes tokenizer, plan and checkpoint, and commits all."""
    with outputs["tokenizer"].part("tokenizer.json", conserved=False) as part, part.file("tokenizer.json") as file:
        file.write(train(["some text"] * 9, TokenizerConfig(vocab_size=300)).to_str().encode())
    sequences = make_plan(outputs["plan"], shards, outputs["shards"].committed.values())
    run = {"weights": {"web": 1.0}, "sequences": {"web": sequences}, "batch_size": BATCH, "seed": 0, "seq_len": SEQ_LEN,
           "order": ORDER, "steps": STEPS, "checkpoint_steps": [STEPS // 2, STEPS]}  # fmt: skip
    with outputs["checkpoint"].part("model", conserved=False) as part:
        with part.file("run.json") as file:
            file.write(canonical_json(run).encode())
        with part.file("loss.parquet") as file:
            ones = dict.fromkeys(("loss", "grad_norm", "lr"), [1.0] * STEPS)
            tokens = np.arange(1, STEPS + 1) * BATCH * SEQ_LEN
            pq.write_table(pa.table({"step": range(STEPS), **ones, "tokens": tokens}), file)
    for output in outputs.values():
        commit(output, "made", 1, Config(), [], Report())
    print(json.dumps({"sequences": sequences, "documents": shards.n_documents("web")}))


QUERIES = {
    "kept page": url_of(1234 * 10 + 1),
    "rejected page": url_of(1234 * 10),
    "unknown page": "https://nowhere.example.org/",
    "document id": document_id(url_of(4321), DIGEST),
    "domain": "domain:example-17.org",
    "step": f"step:{STEPS - 1}",
}
CODE = """
import sys, time
begin = time.perf_counter()
from tasks.run.trace.trace import trace
from tasks.core.store import Store
imported, busy = time.perf_counter(), time.process_time()
found = trace(Store(sys.argv[1]), "big", "dev", sys.argv[2]).to_json()
end, busy = time.perf_counter(), time.process_time() - busy
shown = found.get("documents") or [one for one in found.get("sequences", []) if "slices" in one]
print(imported - begin, end - imported, busy, len(shown), found["requests"])
"""


if __name__ == "__main__":
    main()

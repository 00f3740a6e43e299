"""How long a trace takes in a corpus of 10 M documents.

    python -m benchmarks.trace --documents 10000000 --store /some/empty/folder

Builds artifacts of the shape that the stages write for a made-up corpus of that size (30 % of the captures rejected),
then times traces in fresh processes: kept page, rejected page, unknown page, document id and step. Bar: each below 2 s.
"""

import argparse
import json
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.artifact import ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config, canonical_json
from tasks.core.stage import Output, Report, part_names
from tasks.core.store import Store
from tasks.formats.documents import document_id
from tasks.formats.tokens.index import write_index
from tasks.formats.tokens.plan import array_name, arrays_of, write_array
from tasks.formats.tokens.shard import ShardBuffer, ShardSet, TokenFormat, shard_name, write_shard
from tasks.stages.consolidate.stage import KEPT_SCHEMA, REJECTED
from tasks.stages.tokens.bpe import train
from tasks.stages.tokens.config import TokenizerConfig
from tasks.stages.tokens.packing import Documents, concat

FMT = TokenFormat(300, 0, "none")
SEQ_LEN, PART = 2048, 100_000
STEPS, BATCH = 5000, 256
URL = "https://site-7.example.org/articles/2026/some-words-in-the-path/page-{}"
DIGEST = "sha1:A"


def main() -> None:
    """Builds the corpus if it is not there, then times the traces."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--documents", type=int, default=10_000_000)
    options.add_argument("--store", required=True)
    chosen = options.parse_args()
    store = Store(chosen.store)
    if not store.exists("big/checkpoint/dev/.artifact.json"):
        build(store, chosen.documents)
    queries = {
        "kept page": URL.format(1234 * 10 + 1),
        "rejected page": URL.format(1234 * 10),
        "unknown page": "https://nowhere.example.org/",
        "document id": document_id(URL.format(4321), DIGEST),
        "step": f"step:{STEPS - 1}",
    }
    code = (
        "import sys, time; t = time.perf_counter(); from tasks.run.trace import *; from tasks.core.store import Store;"
        "i = time.perf_counter(); c = time.process_time(); f = trace(Store(sys.argv[1]), 'big', 'dev', sys.argv[2]);"
        "e = time.perf_counter(); c = time.process_time() - c;"
        "print(i - t, e - i, c, len(f.get('documents', f.get('sequences'))))"
    )
    for what, name in queries.items():
        out = subprocess.run(
            [sys.executable, "-c", code, chosen.store, name], capture_output=True, text=True, check=True
        )
        imports, took, busy, found = out.stdout.split()
        times = f"{float(took):6.2f} s, {float(busy):.2f} s of it CPU, and {float(imports):.2f} s of imports"
        print(f"{what:14} {times}; found {found}")


def build(store: Store, documents: int) -> None:
    """Writes extracted, documents, tokenizer, shards, plan and checkpoint of a made-up corpus."""
    names = part_names(-(-documents // PART))
    outputs = {kind: Output(store, ArtifactId(f"big/{kind}", "dev"), "made") for kind in
               ("documents", "tokenizer", "shards", "plan", "checkpoint")}  # fmt: skip
    for number, name in enumerate(names):
        started = time.perf_counter()
        if name not in outputs["shards"].committed:
            make_part(outputs, number, name)
        print(f"{name}: {time.perf_counter() - started:.1f} s", flush=True)
    made = f"{store.root}/{outputs['shards'].address.path}/shards"
    finish(outputs, ShardSet(f"{made}/{shard_name('web', 'train', number, 0)}.arrow" for number in range(len(names))))


def make_part(outputs: dict[str, Output], number: int, name: str) -> None:
    """Writes one part of documents and its shard."""
    urls = [URL.format(index) for index in range(number * PART, number * PART + PART)]
    rows = sorted((document_id(url, DIGEST), url) for url in urls)
    kept = [row for row in rows if not is_rejected(row[1])]
    rejected = [row for row in rows if is_rejected(row[1])]
    with outputs["documents"].part(name, conserved=False) as part:
        part.table("kept", table(kept, KEPT_SCHEMA, {"warc_file": f"{name}.warc.gz", "warc_offset": 1}))
        reasons = {"reason": "gopher_short_doc", "reasons": ["gopher_short_doc"]}
        part.table("rejected", table(rejected, REJECTED, reasons))
    sizes = document_sizes(number)
    uids = [bytes.fromhex(doc_id) for doc_id, _ in kept]
    shard = shard_name("web", "train", number, 0)
    tokens = np.split(np.full(int(sizes.sum()), 70, dtype=np.uint16), np.cumsum(sizes)[:-1])
    with outputs["shards"].part(name, conserved=False) as part:
        with part.file(f"shards/{shard}.arrow") as file:
            write_shard(file, ShardBuffer("web", "train", uids, tokens, sizes.tolist()), FMT)
        with part.file(f"index/{name}.arrow") as file:
            write_index(
                file, [(uid, url, shard, row) for row, (uid, (_, url)) in enumerate(zip(uids, kept, strict=True))]
            )


def is_rejected(url: str) -> bool:
    """Tells whether a made-up page was rejected: three in ten are."""
    return url[-1] in "036"


def document_sizes(part: int) -> np.ndarray:
    """Returns the tokens of each kept document of a part, about 225 each."""
    return np.random.default_rng(part).integers(50, 400, PART * 7 // 10)


def table(rows: list[tuple[str, str]], schema: pa.Schema, constant: dict[str, object]) -> pa.Table:
    """Returns (id, url) rows with the same values in all other columns."""
    columns = {"id": pa.array([doc_id for doc_id, _ in rows]), "url": pa.array([url for _, url in rows])}
    for field in schema:
        if field.name not in columns:
            value = constant.get(field.name, "web" if field.type == pa.string() else None)
            columns[field.name] = pa.repeat(pa.scalar(value, field.type), len(rows))
    return pa.table([columns[field.name] for field in schema], schema=schema)


def make_plan(output: Output, shards: ShardSet) -> int:
    """Writes a plan of one part; returns its sequences."""
    names, columns = shards.all_names, []
    for number, shard in enumerate(map(shards.shard, names)):
        place = (np.full(shard.rows, number), np.arange(shard.rows))
        columns.append((*place, shard.token_offsets, shard.lengths))
    packed = concat(Documents(*map(np.concatenate, zip(*columns, strict=True))), SEQ_LEN)
    parts = {"web": [{"sequences": len(packed.lengths), "first_shard": 0, "last_shard": len(names) - 1}]}
    with output.part("web", conserved=False) as part:
        for array, values in arrays_of(packed.slices, packed.lengths):
            with part.file(f"plan/{array_name('web', 0, array)}") as file:
                write_array(file, values)
        with part.file("plan/summary.json") as file:
            summary = {"seq_len": SEQ_LEN, "shards": names, "parts": parts, "sequences": {"web": len(packed.lengths)}}
            file.write(canonical_json(summary).encode())
    return len(packed.lengths)


def finish(outputs: dict[str, Output], shards: ShardSet) -> None:
    """Writes tokenizer, plan and checkpoint, and commits all."""
    with outputs["tokenizer"].part("tokenizer.json", conserved=False) as part, part.file("tokenizer.json") as file:
        file.write(train(["some text"] * 9, TokenizerConfig(vocab_size=300)).to_str().encode())
    sequences = make_plan(outputs["plan"], shards)
    run = {"weights": {"web": 1.0}, "sequences": {"web": sequences}, "batch_size": BATCH, "seed": 0, "seq_len": SEQ_LEN,
           "steps": STEPS, "checkpoint_steps": [STEPS // 2, STEPS]}  # fmt: skip
    with outputs["checkpoint"].part("model", conserved=False) as part:
        with part.file("run.json") as file:
            file.write(canonical_json(run).encode())
        with part.file("loss.parquet") as file:
            pq.write_table(pa.table({"step": range(STEPS), "loss": [1.0] * STEPS}), file)
    for output in outputs.values():
        commit(output, "made", 1, Config(), [], Report())
    print(json.dumps({"sequences": sequences, "documents": shards.n_documents("web")}))


if __name__ == "__main__":
    main()

"""How long the index for `explain` takes, how large it is, and how long a text of 200 tokens is looked up.

    python -m benchmarks.explain --tokens 100_000_000 --store /some/empty/folder

Makes token shards of that size: documents of passages of some 40 tokens that are drawn, with repetition, from Python
files of this machine. Then runs the stage `spans`, and explains, in fresh processes, five texts of which one half is
copied from a document and the other is put together of short pieces; the figures are medians. Cold: before each text,
shards and index are dropped from memory (POSIX_FADV_DONTNEED); warm: the same text again. Each size has its figures in
benchmarks/results/explain.json. Bar: below 2 s.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.harness import ROOT, keep
from benchmarks.trace import BATCH, SEQ_LEN, STEPS
from tasks.core import ranges
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config, canonical_json
from tasks.core.engine import open_engine
from tasks.core.stage import Inputs, Output, Report
from tasks.core.store import Store
from tasks.formats.documents.key_index import merge
from tasks.formats.tokens.index import Indexed, write_index
from tasks.formats.tokens.shard import ShardBuffer, ShardSet, TokenFormat, shard_name, write_shard
from tasks.stages.spans import SpansConfig, stage
from tasks.stages.tokens import PackConfig, TokenizerConfig, pack
from tasks.stages.tokens.bpe import load, train

KINDS = ("shards", "spans", "plan", "tokenizer")
SHARD, PASSAGE, DOCUMENT, POOL_BYTES = 50_000_000, 40, 700, 80_000_000


def main() -> None:
    """Makes what is not there, then looks texts up."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tokens", type=int, default=100_000_000)
    options.add_argument("--store", required=True)
    options.add_argument("--group-tokens", type=int, default=256_000_000)
    chosen = options.parse_args()
    store = Store(chosen.store)
    shards = Artifact.find(store, ArtifactId("big/shards", "dev")) or make_shards(store, chosen.tokens)
    plan(store, shards)
    figures: dict[str, Any] = {"group_tokens": chosen.group_tokens, **index(store, shards, chosen.group_tokens)}
    texts = [text_of(store, shards, seed) for seed in range(5)]
    runs_of: dict[str, list[dict[str, Any]]] = {"cold": [], "warm": []}
    for text in texts:
        for artifact in KINDS:
            forget(store, artifact)
        for runs in runs_of.values():
            runs.append(looked_up(chosen.store, text))
    for name, runs in runs_of.items():
        figures[name] = {
            "seconds": round(statistics.median(run["seconds"] for run in runs), 3),
            "seconds_most": round(max(run["seconds"] for run in runs), 3),
            "cpu_seconds": round(statistics.median(run["cpu"] for run in runs), 3),
            "page_reads": round(statistics.median(run["reads"] for run in runs)),
        }
    kept = ROOT / "benchmarks" / "results" / "explain.json"
    sizes = json.loads(kept.read_text())["sizes"] if kept.exists() else []
    sizes = [one for one in sizes if one["tokens"] != figures["tokens"]] + [figures]
    keep("explain", {"sizes": sorted(sizes, key=lambda one: one["tokens"])})


def pool() -> list[str]:
    """Returns texts of this machine, in the order of their names."""
    folders = [Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib"))]
    texts, size = [], 0
    for path in (path for folder in folders for path in sorted(folder.rglob("*.py"))):
        texts.append(path.read_text(errors="ignore"))
        size += len(texts[-1])
        if size > POOL_BYTES:
            break
    return texts


def make_shards(store: Store, tokens: int) -> Artifact:
    """Writes tokenizer and shards."""
    texts = pool()
    tokenizer = train(texts[::20], TokenizerConfig(vocab_size=32_000))
    output = Output(store, ArtifactId("big/tokenizer", "dev"), "made")
    with output.part("tokenizer.json", conserved=False) as part, part.file("tokenizer.json") as file:
        file.write(tokenizer.to_str().encode())
    commit(output, "made", 1, Config(), [], Report())
    flat = np.concatenate([np.array(one.ids, np.uint16) for one in tokenizer.encode_batch_fast(texts)])
    words = [tokenizer.id_to_token(token) for token in range(tokenizer.get_vocab_size())]
    begins = np.array([word[:1] == "Ġ" and word[1:2].isalpha() for word in words])
    cuts = np.flatnonzero(begins[flat])  # a passage from here on has the same tokens after any other
    fmt = TokenFormat(tokenizer.get_vocab_size(), 0, "made")  # the first entry is end-of-text
    output = Output(store, ArtifactId("big/shards", "dev"), "made")
    for number in range(-(-tokens // SHARD)):
        write(output, fmt, number, drawn(flat, cuts, number, min(SHARD, tokens - number * SHARD)))
        print(f"shard {number}", flush=True)
    with open_engine(workers=0) as engine:
        merge(output, engine, [output.committed[name] for name in sorted(output.committed)])
    return commit(output, "made", 1, Config(), [], Report())


def drawn(flat: NDArray[np.uint16], cuts: NDArray[np.int64], seed: int, size: int) -> NDArray[np.uint16]:
    """Returns about `size` tokens of passages drawn at random."""
    draw = np.random.default_rng(seed)
    first = draw.choice(cuts[: -PASSAGE * 2], size // PASSAGE)
    end = cuts[np.searchsorted(cuts, first + PASSAGE - 4)]
    lengths = np.minimum(end - first, 4 * PASSAGE)
    inside = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return flat[np.repeat(first, lengths) + inside]


def write(output: Output, fmt: TokenFormat, number: int, flat: NDArray[np.uint16]) -> None:
    """Writes one shard of documents, and their index."""
    name = shard_name("web", "train", number, 0)
    documents = [np.append(one, np.uint16(fmt.eos_id)) for one in np.split(flat, range(DOCUMENT, len(flat), DOCUMENT))]
    uids = [number.to_bytes(8, "big") + row.to_bytes(8, "big") for row in range(len(documents))]
    with output.part(name, conserved=False) as part:
        sizes = [len(one) for one in documents]
        with ranges.checksummed_file(part, f"shards/{name}.arrow", rows=len(documents)) as file:
            offsets = write_shard(file, ShardBuffer("web", "train", uids, documents, sizes), fmt).tolist()
        urls = [f"https://site-{number}.example.org/some/page/{row}" for row in range(len(documents))]
        rows = enumerate(zip(uids, urls, offsets, sizes, strict=True))
        write_index(part, [Indexed(name, row, *rest) for row, rest in rows])


def plan(store: Store, shards: Artifact) -> None:
    """Makes the plan by the stage pack, and a run of it."""
    if Artifact.find(store, ArtifactId("big/checkpoint", "dev")):
        return
    output = Output(store, ArtifactId("big/plan", "dev"), "made")
    with open_engine(workers=0) as engine:
        report = pack.run(PackConfig(seq_len=SEQ_LEN), Inputs({"shards": shards}), output, engine)
    summary = json.loads(commit(output, "pack", 1, Config(), [shards.ref("shards")], report).read("plan/summary.json"))
    run = {"weights": {"web": 1.0}, "sequences": summary["sequences"], "batch_size": BATCH, "seed": 0,
           "seq_len": SEQ_LEN, "steps": STEPS, "checkpoint_steps": [STEPS // 2, STEPS]}  # fmt: skip
    output = Output(store, ArtifactId("big/checkpoint", "dev"), "made")
    with output.part("model", conserved=False) as part:
        with part.file("run.json") as file:
            file.write(canonical_json(run).encode())
        with part.file("loss.parquet") as file:
            pq.write_table(pa.table({"step": range(STEPS), "loss": [1.0] * STEPS}), file)
    commit(output, "made", 1, Config(), [], Report())


def index(store: Store, shards: Artifact, group_tokens: int) -> dict[str, Any]:
    """Runs the stage in this process; returns its time, its size and the memory, with mapped pages of the shards."""
    address = ArtifactId("big/spans", "dev")
    if made := Artifact.find(store, address):
        return dict(made.record.metrics)
    config = SpansConfig(enabled=True, group_tokens=group_tokens)
    output, started, busy = Output(store, address, "made"), time.perf_counter(), time.process_time()
    with open_engine(workers=0) as engine:
        report = stage.run(config, Inputs({"shards": shards}), output, engine)
    took, busy, tokens = time.perf_counter() - started, time.process_time() - busy, report.metrics["tokens"]
    size = sum(entry.bytes for record in output.committed.values() for entry in record.files)
    report.metrics.update(
        index_seconds=round(took, 1),
        index_cpu_seconds=round(busy, 1),
        index_bytes_per_token=round(size / tokens, 3),
        peak_gib=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    )
    return dict(commit(output, "spans", 1, config, [shards.ref("shards")], report).record.metrics)


def text_of(store: Store, shards: Artifact, seed: int) -> str:
    """Returns a text of about 200 tokens: 100 copied from one document, 100 in pieces of five from others."""
    draw, opened = np.random.default_rng(seed), ShardSet.open(shards)
    names = opened.names("web")

    def piece(length: int) -> list[int]:
        shard = names[int(draw.integers(len(names)))]
        row = int(draw.integers(opened.shard(shard).rows - 1))
        return opened.shard(shard).slice(row, int(draw.integers(0, DOCUMENT - length)), length).tolist()

    tokens = [*piece(100), *(token for _ in range(20) for token in piece(5))]
    return str(load(Artifact.open_at(store, ArtifactId("big/tokenizer", "dev"))).decode(tokens))


def forget(store: Store, kind: str) -> None:
    """Drops the files of an artifact from the page cache."""
    for path in Artifact.open_at(store, ArtifactId(f"big/{kind}", "dev")).files():
        with open(f"{store.root}/big/{kind}/dev/{path}", "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def looked_up(store: str, text: str) -> dict[str, Any]:
    """Explains a text in a fresh process; time, processor time and pages read from disk, without imports."""
    code = (
        "import sys, time, json, resource as r; from tasks.run.trace.explain import explain;"
        "from tasks.core.store import Store;"
        "u = lambda: r.getrusage(r.RUSAGE_SELF).ru_majflt; m, t, c = u(), time.perf_counter(), time.process_time();"
        "f = explain(Store(sys.argv[1]), 'big', 'dev', sys.argv[2]); assert f['spans_found'];"
        "print(json.dumps({'seconds': time.perf_counter() - t, 'cpu': time.process_time() - c, 'reads': u() - m}))"
    )
    out = subprocess.run([sys.executable, "-c", code, store, text], capture_output=True, text=True, check=True)
    return dict(json.loads(out.stdout))


if __name__ == "__main__":
    main()

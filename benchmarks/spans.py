"""Suffix arrays of tokens (`spans`): cost of `explain`, and of `repeats` relative to `spans`.

    python -m benchmarks.spans explain --store /some/empty/folder [--tokens 100_000_000] [--group-tokens 256_000_000]
    python -m benchmarks.spans repeats TEXTS.jsonl.zst ... [--vocab 16384] [--groups 1 4]

`explain`: writes token shards of that size, documents of passages of about 40 tokens, drawn with replacement
from Python files of this machine. Then runs the stage `spans`, and explains, in fresh processes, five texts of 200
tokens of which one half is copied from a document and the other is composed of short fragments; the figures are
medians. Cold: before each text, shards and index are dropped from memory (POSIX_FADV_DONTNEED); warm: the same text
again. Each size has its figures in `explain.json`. Goal: below 2 s.

`repeats`: each file is a source, each line a document. The texts are encoded with a tokenizer that is trained on
them; then `spans` sorts their tokens in the given number of groups, and `repeats` searches runs of 50 tokens and more,
each in a separate process for all parts. For each number of groups: CPU time and peak memory of both, their ratio, and
the statistics of repeats; for the first one also the share of repeated tokens by source, and the longest and most
frequent repeats. RSS includes the pages of mapped files; "own" memory does not. Writes `repeats.json`.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import sysconfig
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.harness import Watch, keep, last, last_line, parser, texts_of, watched
from benchmarks.trace import BATCH, SEQ_LEN, STEPS
from tasks.core import ranges
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config, canonical_json
from tasks.core.engine import open_engine
from tasks.core.stage import Inputs, Output, Report
from tasks.core.store import Store
from tasks.formats.documents.document import document_id
from tasks.formats.documents.key_index import merge
from tasks.formats.tokens.index import IndexedShard, write_index
from tasks.formats.tokens.order import VERSION as ORDER
from tasks.formats.tokens.repeats import FREQUENT, KIND, LONGEST
from tasks.formats.tokens.shard import ShardSet, TokenFormat, parse_shard_name, shard_name, write_shard
from tasks.stages.spans import SpansConfig, stage
from tasks.stages.tokens import PackConfig, TokenizerConfig, pack
from tasks.stages.tokens.bpe import load, train
from tests.shards import buffer_of

KINDS = ("shards", "spans", "plan", "tokenizer")
COPIED, PIECES, PIECE = 100, 20, 5
"""Tokens of a text that are copied from one document, and the pieces of others behind them."""
SHARD, PASSAGE, DOCUMENT, POOL_BYTES = 50_000_000, 40, 700, 80_000_000
STAGES = {
    "tokenizer": ("tasks.stages.tokens.bpe", "tokenizer"),
    "shards": ("tasks.stages.tokens.encode", "encode"),
    "spans": ("tasks.stages.spans.stage", "spans"),
    "repeats": ("tasks.stages.repeats.stage", "repeats"),
}
# A separate program, so that other imports of this module are not measured.
RUN = """
import importlib, json, sys
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.engine import open_engine
from tasks.core.stage import Inputs, Output
from tasks.core.store import Store
from tasks.run.recipe import Recipe

folder, module, section, kind, settings, roles, version = sys.argv[1:]
stage, store = importlib.import_module(module), Store(folder)
config = type(getattr(Recipe.model_construct(), section))(**json.loads(settings))
inputs = {role: Artifact.open_at(store, ArtifactId.parse(address)) for role, address in json.loads(roles).items()}
output = Output(store, ArtifactId(f"test/{kind}", version), "f" * 64)
with open_engine(workers=0) as engine:
    report = stage.run(config, Inputs(inputs), output, engine)
commit(output, module, stage.VERSION, config, [], report)
"""
_COLUMNS = ("id", "url", "source", "text", "language", "tier")


def explain(given: argparse.Namespace) -> None:
    """Creates missing artifacts, then looks up texts."""
    store = Store(given.store)
    shards = Artifact.find(store, ArtifactId("big/shards", "dev")) or make_shards(store, given.tokens)
    plan(store, shards)
    figures: dict[str, Any] = {"group_tokens": given.group_tokens, **index_of(store, shards, given.group_tokens)}
    texts = [text_of(store, shards, seed) for seed in range(5)]
    runs_of: dict[str, list[dict[str, Any]]] = {"cold": [], "warm": []}
    for text in texts:
        for artifact in KINDS:
            forget(store, artifact)
        for runs in runs_of.values():
            runs.append(looked_up(given.store, text))
    for name, runs in runs_of.items():
        figures[name] = {
            "seconds": round(statistics.median(run["seconds"] for run in runs), 3),
            "seconds_most": round(max(run["seconds"] for run in runs), 3),
            "cpu_seconds": round(statistics.median(run["cpu"] for run in runs), 3),
            "page_reads": round(statistics.median(run["reads"] for run in runs)),
        }
    sizes = [one for one in last("explain").get("sizes", []) if one["tokens"] != figures["tokens"]] + [figures]
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
    words = [tokenizer.id_to_token(token) or "" for token in range(tokenizer.get_vocab_size())]
    begins = np.array([word[:1] == "Ġ" and word[1:2].isalpha() for word in words])
    cuts = np.flatnonzero(begins[flat])  # from here on a passage has the same tokens after any other one
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
    found: NDArray[np.uint16] = flat[np.repeat(first, lengths) + inside]
    return found


def write(output: Output, fmt: TokenFormat, number: int, flat: NDArray[np.uint16]) -> None:
    """Writes one shard of documents, and their index."""
    name = shard_name("web", "train", number, 0)
    documents = [np.append(one, np.uint16(fmt.eos_id)) for one in np.split(flat, range(DOCUMENT, len(flat), DOCUMENT))]
    uids = [number.to_bytes(8, "big") + row.to_bytes(8, "big") for row in range(len(documents))]
    with output.part(name, conserved=False) as part:
        sizes = [len(one) for one in documents]
        with ranges.checksummed_file(part, f"shards/{name}.arrow", len(documents), sum(sizes)) as file:
            buffer = buffer_of("web", "train", uids, documents, sizes)
            offsets = write_shard(file, buffer, fmt)
        urls = [f"https://site-{number}.example.org/some/page/{row}" for row in range(len(documents))]
        write_index(part, [IndexedShard(name, buffer.uids, pa.array(urls), offsets, np.array(sizes))])


def plan(store: Store, shards: Artifact) -> None:
    """Creates the plan with the stage pack, and a run of it."""
    if Artifact.find(store, ArtifactId("big/checkpoint", "dev")):
        return
    output = Output(store, ArtifactId("big/plan", "dev"), "made")
    with open_engine(workers=0) as engine:
        report = pack.run(PackConfig(seq_len=SEQ_LEN), Inputs({"shards": shards}), output, engine)
    summary = json.loads(commit(output, "pack", 1, Config(), [shards.ref("shards")], report).read("plan/summary.json"))
    run = {"weights": {"web": 1.0}, "sequences": summary["sequences"], "batch_size": BATCH, "seed": 0,
           "seq_len": SEQ_LEN, "order": ORDER, "steps": STEPS, "checkpoint_steps": [STEPS // 2, STEPS]}  # fmt: skip
    output = Output(store, ArtifactId("big/checkpoint", "dev"), "made")
    with output.part("model", conserved=False) as part:
        with part.file("run.json") as file:
            file.write(canonical_json(run).encode())
        with part.file("loss.parquet") as file:
            pq.write_table(pa.table({"step": range(STEPS), "loss": [1.0] * STEPS}), file)
    commit(output, "made", 1, Config(), [], Report())


def index_of(store: Store, shards: Artifact, group_tokens: int) -> dict[str, Any]:
    """Runs the stage in this process; returns time, size and memory, including mapped pages of the shards."""
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
    """Returns a text of about 200 tokens: 100 copied from one document, 100 in fragments of five from others."""
    draw, opened = np.random.default_rng(seed), ShardSet.open(shards)
    names = opened.names("web")

    def piece(length: int) -> list[int]:
        shard = names[int(draw.integers(len(names)))]
        row = int(draw.integers(opened.shard(shard).rows - 1))
        return list(opened.shard(shard).slice(row, int(draw.integers(0, DOCUMENT - length)), length).tolist())

    tokens = [*piece(COPIED), *(token for _ in range(PIECES) for token in piece(PIECE))]
    return str(load(Artifact.open_at(store, ArtifactId("big/tokenizer", "dev"))).decode(tokens))


def forget(store: Store, kind: str) -> None:
    """Drops the files of an artifact from the page cache."""
    for path in Artifact.open_at(store, ArtifactId(f"big/{kind}", "dev")).files():
        with open(f"{store.root}/big/{kind}/dev/{path}", "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def looked_up(store: str, text: str) -> dict[str, Any]:
    """Explains a text in a fresh process; returns time, CPU time and pages read from disk, without imports."""
    code = (
        "import sys, time, json, resource as r; from tasks.run.trace.explain import explain;"
        "from tasks.core.store import Store;"
        "u = lambda: r.getrusage(r.RUSAGE_SELF).ru_majflt; m, t, c = u(), time.perf_counter(), time.process_time();"
        "f = explain(Store(sys.argv[1]), 'big', 'dev', sys.argv[2]); assert f.spans_found;"
        "print(json.dumps({'seconds': time.perf_counter() - t, 'cpu': time.process_time() - c, 'reads': u() - m}))"
    )
    return dict(json.loads(last_line(sys.executable, code, store, text)))


def write_documents(folder: Path, paths: list[str]) -> int:
    """Writes the texts as kept documents, a part per file; returns their number."""
    output = Output(Store(str(folder)), ArtifactId("test/documents", "dev"), "texts")
    rows = 0
    for path in sorted(paths):
        source = Path(path).name.partition(".")[0]
        texts = texts_of(path)
        urls = [f"file://{source}/{number}" for number in range(len(texts))]
        ids = [document_id(url, "sha1:A") for url in urls]
        same = [[value] * len(texts) for value in ("en", "silver")]
        with output.part(source, conserved=False) as part:
            part.table("kept", pa.table([ids, urls, [source] * len(texts), texts, *same], list(_COLUMNS)))
        rows += len(texts)
    commit(output, "texts", 1, Config(), [], Report())
    return rows


def run(folder: Path, kind: str, settings: dict[str, Any], roles: dict[str, str], version: str = "dev") -> Watch:
    """Runs a stage in a separate process."""
    module, section = STAGES[kind]
    given = (str(folder), module, section, kind, json.dumps(settings), json.dumps(roles), version)
    return watched([sys.executable, "-c", RUN, *given])


def cost(watch: Watch) -> dict[str, float]:
    """Returns CPU seconds and memory in MB."""
    return {
        "cpu_s": round(watch.cpu_s, 1),
        "rss_mb": round(watch.largest / 1e6),
        "own_mb": round(watch.largest_own / 1e6),
    }


def measure(folder: Path, tokens: int, groups: int) -> dict[str, Any]:
    """Sorts the tokens in `groups` groups and searches repeats."""
    version, shards = f"g{groups}", "test/shards@dev"
    settings = {"enabled": True, "group_tokens": tokens // groups + 1}
    sorting = cost(run(folder, "spans", settings, {"shards": shards}, version))
    roles = {"shards": shards, "spans": f"test/spans@{version}", "tokenizer": "test/tokenizer@dev"}
    finding = cost(run(folder, "repeats", {"enabled": True}, roles, version))
    made = Artifact.open_at(Store(str(folder)), ArtifactId("test/repeats", version))
    arrays = Artifact.open_at(Store(str(folder)), ArtifactId("test/spans", version))
    return {
        "groups": int(arrays.record.metrics["groups"]),
        "spans": sorting,
        "repeats": finding,
        "cpu_repeats_over_spans": round(finding["cpu_s"] / sorting["cpu_s"], 2),
        "found": {name: round(value, 4) for name, value in made.record.metrics.items()},
        "kept_mb": round(made.record.bytes / 1e6, 1),
    }


def found_in(folder: Path, version: str) -> dict[str, Any]:
    """Returns repeated tokens by source, and the first of both lists."""
    made = Artifact.open_at(Store(str(folder)), ArtifactId("test/repeats", version))
    sums: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0])
    for path in made.files(f"{KIND}/"):
        source, _ = parse_shard_name(Path(path).stem)
        for row in made.table(path, columns=["tokens", "share", "again_share"]).to_pylist():
            values = (1, row["share"], row["again_share"])
            sums[source] = [total + row["tokens"] * value for total, value in zip(sums[source], values, strict=True)]
    shares = {
        source: {"tokens": round(total), "share": round(share / total, 4), "again": round(again / total, 4)}
        for source, (total, share, again) in sorted(sums.items())
    }
    lists = {path: made.table(path).slice(0, 5).to_pylist() for path in (LONGEST, FREQUENT)}
    return {"sources": shares, **{path.partition(".")[0]: rows for path, rows in lists.items()}}


def repeats(given: argparse.Namespace) -> None:
    """Encodes the texts, then sorts and searches their tokens."""
    with tempfile.TemporaryDirectory(prefix="repeats-") as name:
        folder = Path(name)
        rows = write_documents(folder, given.texts)
        roles = {"documents": "test/documents@dev"}
        run(folder, "tokenizer", {"vocab_size": given.vocab}, roles)
        run(folder, "shards", {"shard_tokens": 1_000_000}, roles | {"tokenizer": "test/tokenizer@dev"})
        tokens = round(Artifact.open_at(Store(str(folder)), ArtifactId("test/shards", "dev")).record.metrics["tokens"])
        runs = [measure(folder, tokens, groups) for groups in given.groups]
        keep("repeats", {"documents": rows, "runs": runs, **found_in(folder, f"g{given.groups[0]}")})


def main() -> None:
    options = parser(__doc__)
    commands = options.add_subparsers(required=True)
    one = commands.add_parser("explain", help="look up texts in an index of the given size")
    one.add_argument("--store", required=True)
    one.add_argument("--tokens", type=int, default=100_000_000)
    one.add_argument("--group-tokens", type=int, default=256_000_000)
    one.set_defaults(run=explain)
    one = commands.add_parser("repeats", help="find long repeats of texts")
    one.add_argument("texts", nargs="+", help="JSONL files with a field text, plain or compressed")
    one.add_argument("--vocab", type=int, default=16_384)
    one.add_argument("--groups", type=int, nargs="+", default=[1, 4])
    one.set_defaults(run=repeats)
    given = options.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()

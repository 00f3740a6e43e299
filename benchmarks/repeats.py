"""Long repeats of real text: CPU time and memory of `repeats` beside those of `spans`, whose arrays it reads.

    python -m benchmarks.repeats TEXTS.jsonl.zst ... [--vocab 16384] [--groups 1 4]

Each file is a source, each line of it a document. The texts are encoded with a tokenizer that is trained on them; then
`spans` sorts their tokens in so many groups, and `repeats` looks for runs of 50 tokens and more, each in a process of
its own that does all parts. Of each number of groups: CPU time and largest memory of both, their ratio, and what was
found; of the first one also the share of repeated tokens by source, and the longest and most frequent repeats. RSS
counts the pages of mapped files, too; "own" memory does not.

Writes `benchmarks/results/repeats.json`.
"""

import argparse
import io
import json
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from benchmarks.dedup_scale import Watch
from benchmarks.harness import keep
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.formats.documents.document import document_id
from tasks.formats.tokens.repeats import FREQUENT, KIND, LONGEST
from tasks.formats.tokens.shard import parse_shard_name

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
STAGES = {
    "tokenizer": ("tasks.stages.tokens.bpe", "tokenizer"),
    "shards": ("tasks.stages.tokens.encode", "encode"),
    "spans": ("tasks.stages.spans.stage", "spans"),
    "repeats": ("tasks.stages.repeats.stage", "repeats"),
}
_COLUMNS = ("id", "url", "source", "text", "language", "tier")


def documents(folder: Path, paths: list[str]) -> int:
    """Writes the texts as kept documents, a part per file; returns their number."""
    output = Output(Store(str(folder)), ArtifactId("test/documents", "dev"), "texts")
    rows = 0
    for path in sorted(paths):
        source = Path(path).name.partition(".")[0]
        with pa.input_stream(path, compression="detect") as stream:
            texts = [json.loads(line)["text"] for line in io.TextIOWrapper(stream, encoding="utf-8")]
        urls = [f"file://{source}/{number}" for number in range(len(texts))]
        ids = [document_id(url, "sha1:A") for url in urls]
        same = [[value] * len(texts) for value in ("en", "silver")]
        with output.part(source, conserved=False) as part:
            part.table("kept", pa.table([ids, urls, [source] * len(texts), texts, *same], list(_COLUMNS)))
        rows += len(texts)
    commit(output, "texts", 1, Config(), [], Report())
    return rows


def run(folder: Path, kind: str, settings: dict[str, Any], roles: dict[str, str], version: str = "dev") -> Watch:
    """Runs a stage in a process of its own."""
    module, section = STAGES[kind]
    given = (str(folder), module, section, kind, json.dumps(settings), json.dumps(roles), version)
    child = subprocess.Popen([sys.executable, "-c", RUN, *given])
    watch = Watch(psutil.Process(child.pid))
    if child.wait():
        raise SystemExit(f"{kind} has failed")
    watch.join()
    return watch


def cost(watch: Watch) -> dict[str, float]:
    """Returns CPU seconds and memory in MB."""
    cpu = round(sum(watch.cpu.values()), 1)
    return {"cpu_s": cpu, "rss_mb": round(watch.largest / 1e6), "own_mb": round(watch.largest_own / 1e6)}


def measure(folder: Path, tokens: int, groups: int) -> dict[str, Any]:
    """Sorts the tokens in so many groups and looks for repeats."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--vocab", type=int, default=16_384)
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 4])
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="repeats-"))
    try:
        rows = documents(folder, given.texts)
        roles = {"documents": "test/documents@dev"}
        run(folder, "tokenizer", {"vocab_size": given.vocab}, roles)
        run(folder, "shards", {"shard_tokens": 1_000_000}, roles | {"tokenizer": "test/tokenizer@dev"})
        tokens = round(Artifact.open_at(Store(str(folder)), ArtifactId("test/shards", "dev")).record.metrics["tokens"])
        runs = [measure(folder, tokens, groups) for groups in given.groups]
        keep("repeats", {"documents": rows, "runs": runs, **found_in(folder, f"g{given.groups[0]}")})
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

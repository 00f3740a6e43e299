"""Reads of `encode` with `accumulate` by the number of earlier versions, and bytes that a version stores.

    python -m benchmarks.accumulate [--before CHECKOUT]

8 new parts of 256 documents each, a quarter of which the version before has, after 1, 2, 4, 8 and 16 versions of as
many; ranges have 8,192 keys. `requests` and `bytes` are reads of files or byte ranges by the stage, as a remote store
would get them; those of `keys` are in files of keys, indexes of documents, and runs of merges. `stored` has the
bytes in the folder of the new version.

`--before` also measures the code of another checkout, which must give the same bytes. `exponents` are fits of log
figure against log versions. Writes `accumulate.json`.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import linear_regression
from typing import Any

import pyarrow as pa

from benchmarks.harness import ROOT, keep, parser
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config, sha256_of_json
from tasks.core.digest import sha256_of
from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output, Report, part_names
from tasks.core.store import Store
from tasks.formats.documents import key_index
from tasks.formats.documents.document import document_id
from tasks.stages.consolidate.stage import KEPT_SCHEMA
from tasks.stages.tokens import EncodeConfig, TokenizerConfig, bpe, encode

VERSIONS = (1, 2, 4, 8, 16)
PARTS, DOCUMENTS = 8, 256
RANGE_KEYS = 1 << 13
READS = ("requests", "bytes", "keys_requests", "keys_bytes")
FIGURES = (*READS, "stored")
_KEYS = ("keys/", "index/", "keys-merge", "known")


def documents_of(store: Store, version: int) -> Artifact:
    """Commits the kept documents of a version; a quarter of them are of the one before."""
    output = Output(store, ArtifactId("bench/documents", f"{version:02d}"), "bench")
    for index, name in enumerate(part_names(PARTS)):
        of_before = DOCUMENTS // 4 if version > 1 else 0
        numbers = [(version - 1, row) for row in range(of_before)]
        numbers += [(version, row) for row in range(DOCUMENTS - of_before)]
        rows = [row_of(f"https://h{row % 7}.example.org/{of}/{index}/{row}") for of, row in numbers]
        with output.part(name, conserved=False) as part:
            part.table("kept", pa.Table.from_pylist(rows, schema=KEPT_SCHEMA))
    return commit(output, "bench", 1, Config(), [], Report())


def row_of(url: str) -> dict[str, Any]:
    """Returns a kept document."""
    empty = {field.name: None if field.nullable else "" for field in KEPT_SCHEMA}
    text = f"the text of {url} and of nothing else"
    more = {"url": url, "text": text, "source": "web", "tier": "silver", "language": "en"}
    return {**empty, **more, "id": document_id(url, "sha1:A")}


def count_reads(counts: dict[str, int]) -> None:
    """Makes the store count reads and their bytes."""

    def counting(read: Callable[..., Any], size: Callable[[Any], int]) -> Callable[..., Any]:
        def counted(store: Store, path: str, *args: Any) -> Any:
            result = read(store, path, *args)
            of_keys = "".join(path.rpartition("/shards/")[2:]).partition("/")[2].startswith(_KEYS)
            for name, amount in (("requests", 1), ("bytes", size(result))):
                counts[name] += amount
                counts[f"keys_{name}"] += amount * of_keys
            return result

        return counted

    for name, size in (("read", len), ("read_range", len), ("local", os.path.getsize)):
        setattr(Store, name, counting(getattr(Store, name), size))


def versions() -> dict[str, Any]:
    """Encodes version after version in this process; returns the reads of some, and the content of the last shards."""
    os.fsync = lambda fd: None
    key_index._RANGE_KEYS = RANGE_KEYS
    if known := sys.modules.get("tasks.stages.tokens.known"):
        vars(known)["_RANGE"] = RANGE_KEYS
    counts = dict.fromkeys(READS, 0)
    rows = []
    with tempfile.TemporaryDirectory() as root:
        store, config, earlier = Store(root), EncodeConfig(accumulate=True, heldout_share=0), None
        output = Output(store, ArtifactId("bench/tokenizer", "01"), "bench")
        report = bpe.run(
            made := TokenizerConfig(vocab_size=300), Inputs({"documents": documents_of(store, 1)}), output, Engine()
        )
        tokenizer = commit(output, "tokenizer", bpe.VERSION, made, [], report)
        count_reads(counts)
        for version in range(1, VERSIONS[-1] + 2):
            inputs = {"documents": documents_of(store, version), "tokenizer": tokenizer}
            output = Output(store, ArtifactId("bench/shards", f"{version:02d}"), "bench")
            counts |= dict.fromkeys(counts, 0)
            report = encode.run(config, Inputs(inputs | ({"earlier": earlier} if earlier else {})), output, Engine())
            read = dict(counts)
            earlier = commit(output, "encode", encode.VERSION, config, [], report)
            if version - 1 in VERSIONS:
                sizes = store.sizes(earlier.address.path)
                rows.append({"earlier": version - 1, **read, "stored": sum(sizes.values())})
        assert earlier
        # The content of records is not compared, because a checkout may define it in another way.
        files = [(path, sha256_of(earlier.read(path))) for path in earlier.files()]
        return {"content": sha256_of_json(files), "rows": rows}


def measured(tree: Path, *arguments: str) -> dict[str, Any]:
    """Runs this file with the code of a checkout."""
    command = [sys.executable, str(Path(__file__).resolve()), *arguments]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(tree)}, cwd=tree, check=True, capture_output=True, text=True
    )
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def exponent(rows: Sequence[dict[str, Any]], figure: str) -> float:
    """Returns the slope of log figure over log versions."""
    x, y = ([math.log(row[name]) for row in rows] for name in ("earlier", figure))
    return round(linear_regression(x, y).slope, 3)


def main() -> None:
    """Measures this checkout, and another one in turn."""
    arguments = parser(__doc__)
    arguments.add_argument("--before", type=Path, help="another checkout")
    arguments.add_argument("--one", action="store_true", help="one run in this process")
    options = arguments.parse_args()
    if options.one:
        print(json.dumps(versions()))
        return
    trees = {"after": ROOT, **({"before": options.before.resolve()} if options.before else {})}
    keep_figures({name: measured(tree, "--one") for name, tree in trees.items()})


def keep_figures(runs: Mapping[str, dict[str, Any]]) -> None:
    """Writes the runs of all checkouts with their exponents; raises RuntimeError if their bytes differ."""
    if len({run["content"] for run in runs.values()}) > 1:
        raise RuntimeError("the other checkout gives other bytes")
    figures = {
        name: {"rows": run["rows"], "exponents": {figure: exponent(run["rows"], figure) for figure in FIGURES}}
        for name, run in runs.items()
    }
    keep("accumulate", figures)


if __name__ == "__main__":
    main()

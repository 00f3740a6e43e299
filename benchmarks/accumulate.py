"""Reads of `encode` with `accumulate` by earlier versions; memory of the tokenizer's process by documents.

    python -m benchmarks.accumulate [--before CHECKOUT]

Versions: 8 new parts of 256 documents each, a quarter of which the version before has, after 1, 2, 4, 8 and 16 versions
of as many; ranges have 8,192 keys. `requests` and `bytes` are reads of files or byte ranges by the stage, as a remote
store would get them; `keys` those in files of keys, indexes of documents, and runs of merges. Copies of earlier shards
are on the server and not counted. Sample: parts of 1,024 documents with a sample of 4,096 of them; `held` is the peak
memory of the stage's process above its start, per kept document, and `sent` the pickled results of the parts; each
part is a process of its own.

`--before` also measures the code of another checkout, in turn. `exponent` is the fit of log figure against log
versions, or log documents. Writes `accumulate.json`.
"""

import json
import math
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import linear_regression
from typing import Any

import pyarrow as pa

from benchmarks.harness import ROOT, keep, parser
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
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
SAMPLE_PARTS, SAMPLE_DOCUMENTS = (256, 512, 1024), 1024
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
    counts = dict.fromkeys(("requests", "bytes", "keys_requests", "keys_bytes"), 0)
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
            if version - 1 in VERSIONS:
                rows.append({"earlier": version - 1, **counts})
            earlier = commit(output, "encode", encode.VERSION, config, [], report)
        assert earlier
        return {"content": earlier.record.content, "rows": rows}


class Drawn:
    """Documents that are drawn when a part is read, with texts of 100 bytes."""

    def __init__(self, parts: int) -> None:
        self.address, self.folder = "drawn", self
        self._parts = parts

    def files(self, _: str) -> list[str]:
        """Returns the numbers of the parts."""
        return list(map(str, range(self._parts)))

    def table(self, path: str, columns: list[str], filters: Any = None) -> pa.Table:
        """Returns columns of a part."""
        rows = range(int(path) * SAMPLE_DOCUMENTS, (int(path) + 1) * SAMPLE_DOCUMENTS)
        ids = [document_id(str(row), "") for row in rows]
        values = {
            "id": ids,
            "text": ["x" * 100] * len(ids),
            "language": ["en"] * len(ids),
            "source": ["web"] * len(ids),
        }
        table = pa.table({name: values[name] for name in dict.fromkeys([*columns, "id"])})
        return (table if filters is None else table.filter(filters)).select(columns)


class Forked(Engine):
    """Runs each item in a process of its own; counts the pickled results."""

    sent = 0

    def map(self, fn: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """See `Engine.map`."""
        for index, item in enumerate(items):
            reader, writer = os.pipe()
            if not os.fork():
                with open(writer, "wb") as file:
                    pickle.dump(fn(item), file)
                os._exit(0)
            os.close(writer)
            with open(reader, "rb") as file:
                data = file.read()
            os.wait()
            self.sent += len(data)
            yield index, pickle.loads(data)


def sample(parts: int) -> dict[str, Any]:
    """Draws the sample in this process; returns memory and sent bytes."""
    config, engine = TokenizerConfig(sample_bytes=100 * 4096), Forked()
    draw: Any = getattr(sys.modules.get("tasks.stages.tokens.sample", bpe), "draw")  # noqa: B009
    draw(Drawn(2), Engine(), config)  # builds tables
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_bytes()
    drawn = draw(Drawn(parts), engine, config)
    documents = parts * SAMPLE_DOCUMENTS
    held = max(0, peak_bytes() - before)
    return {
        "documents": documents,
        "held_mb": round(held / 1e6, 1),
        "held": round(held / documents, 1),
        "sent": round(engine.sent / documents, 1),
        "content": f"{len(drawn)} {hash(tuple(one.rank for one in drawn))}",
    }


def peak_bytes() -> int:
    """Returns the peak memory of this process, without that of its children."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def measured(tree: Path, *arguments: str) -> dict[str, Any]:
    """Runs this file with the code of a checkout."""
    command = [sys.executable, str(Path(__file__).resolve()), *arguments]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(tree)}, cwd=tree, check=True, capture_output=True, text=True
    )
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def exponent(rows: Sequence[dict[str, Any]], figure: str, by: str) -> float:
    """Returns the slope of log figure over the log of `by`."""
    x, y = ([math.log(max(1, row[name])) for row in rows] for name in (by, figure))
    return round(linear_regression(x, y).slope, 3)


def main() -> None:
    """Measures this checkout, and another one in turn."""
    arguments = parser(__doc__)
    arguments.add_argument("--before", type=Path, help="another checkout")
    arguments.add_argument("--one", nargs="*", help="one run in this process")
    options = arguments.parse_args()
    if options.one is not None:
        print(json.dumps(versions() if options.one[0] == "versions" else sample(int(options.one[1]))))
        return
    trees = {"after": ROOT, **({"before": options.before.resolve()} if options.before else {})}
    figures: dict[str, Any] = {"versions": {}, "sample": {}}
    for name, tree in trees.items():
        figures["versions"][name] = {**(run := measured(tree, "--one", "versions"))}
        figures["versions"][name]["exponents"] = {
            figure: exponent(run["rows"], figure, "earlier")
            for figure in ("requests", "bytes", "keys_requests", "keys_bytes")
        }
    for name in trees:
        rows = [measured(trees[name], "--one", "sample", str(parts)) for parts in SAMPLE_PARTS]
        figures["sample"][name] = {
            "rows": rows,
            "exponents": {figure: exponent(rows, figure, "documents") for figure in ("held_mb",)},
        }
    for what in (figures["versions"], figures["sample"]):
        contents = [
            json.dumps([row.pop("content") for row in of["rows"]]) if "content" not in of else of.pop("content")
            for of in what.values()
        ]
        if len({*contents}) > 1:
            raise RuntimeError("the other checkout gives other bytes")
    keep("accumulate", figures)


if __name__ == "__main__":
    main()

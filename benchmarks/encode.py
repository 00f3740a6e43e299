"""Encoding: the stage from Parquet to shards, the bare encoder, and datatrove's tokenizer stage, in one run.

    python -m benchmarks.encode [--texts FILE.jsonl.zst ...] [--rounds 3]

All start with the same tokenizer (trained on a sample, 32,000 entries). The stage reads kept documents from Parquet and
writes shards and index; datatrove reads the same Parquet and writes its token files, not shuffled; the bare encoder is
one call of `encode_batch` of gigatoken for the texts of each part, which are strings in memory, and keeps nothing.
Stage and encoder also run with `tokenizers` alone, as where `gigatoken` is not installed. One process and one thread
each, CPU seconds without loading of the tokenizer, best of the rounds, taken in turn so that load on the machine
affects all alike; every text is new to each process. datatrove has a separate environment (under
`.sluice/benchmarks/encode`, created on the first run). Writes `encode.json`. Goals: the stage at least 0.8 of the bare
encoder, and 20 times datatrove.
"""

import importlib.metadata
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.harness import keep, last_line, least, parser, peer_python, python_sources, texts_of
from tasks.core.artifact import ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output, Report, part_names
from tasks.core.store import Store
from tasks.formats.documents.document import document_id
from tasks.stages.consolidate.stage import KEPT_SCHEMA
from tasks.stages.tokens import TokenizerConfig, bpe

PEERS = ("datatrove[processing]==0.10.1", "tokenizers==0.23.3", "pyarrow==25.0.1")
PARTS = 4

OPEN = """
import sys, time
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.store import Store
from tasks.formats.documents.text import words
from tasks.formats.web.domain import registered_domain
from tasks.stages.tokens.encoder import open_encoder

words("ein Fünftel"), registered_domain("example.org")  # build their tables

documents, tokenizer = (
    Artifact.open_at(Store(sys.argv[1]), ArtifactId(f"bench/{kind}", "dev")) for kind in ("documents", "tokenizer")
)
encoder = open_encoder(tokenizer.read("tokenizer.json").decode())
"""

WITHOUT = """
import sys
sys.modules["gigatoken"] = None  # cannot be imported
"""

STAGE = """
import tempfile
from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output
from tasks.stages.tokens import EncodeConfig
from tasks.stages.tokens.encode import run

with tempfile.TemporaryDirectory() as folder:
    output = Output(Store(folder), ArtifactId("bench/shards", "dev"), "bench")
    begin = time.process_time()
    run(EncodeConfig(), Inputs({"documents": documents, "tokenizer": tokenizer}), output, Engine())
    print(time.process_time() - begin)
"""

GIGATOKEN = """
import gigatoken
bare = gigatoken.Tokenizer.from_json(tokenizer.read("tokenizer.json").decode())
parts = [documents.table(path, ["text"])["text"].to_pylist() for path in documents.files("kept/")]
begin = time.process_time()
for texts in parts:
    bare.encode_batch(texts, parallel=False)
print(time.process_time() - begin)
"""

TOKENIZERS = """
from tasks.stages.tokens.encoder import open_reference
bare = open_reference(tokenizer.read("tokenizer.json").decode()).tokenizer
texts = [text for path in documents.files("kept/") for text in documents.table(path, ["text"])["text"].to_pylist()]
begin = time.process_time()
for first in range(0, len(texts), 512):
    [encoding.ids for encoding in bare.encode_batch_fast(texts[first : first + 512], add_special_tokens=False)]
print(time.process_time() - begin)
"""

DATATROVE = """
import sys, tempfile, time
from loguru import logger
logger.remove()
from datatrove.data import Document
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.tokens import DocumentTokenizer

store = sys.argv[1]
reader = ParquetReader(f"{store}/bench/documents/dev/kept", text_key="text", id_key="id", file_progress=False)
with tempfile.TemporaryDirectory() as folder:
    tokenizer = f"{store}/bench/tokenizer/dev/tokenizer.json"
    options = dict(tokenizer_name_or_path=tokenizer, eos_token="<|endoftext|>", shuffle_documents=False)
    step = DocumentTokenizer(folder, **options)
    step.run(iter([Document(text="a text", id="0")]), 1, 2)  # loads the tokenizer
    begin = time.process_time()
    step.run(reader.run(), 0, 2)
    print(time.process_time() - begin)
"""


def read_texts(paths: list[str]) -> dict[str, list[str]]:
    """Returns texts by source: of JSONL files, or the source files of this Python's standard library."""
    return {Path(path).name.partition(".")[0]: texts_of(path) for path in paths} or {"code": python_sources()}


def build(store: Store, texts: dict[str, list[str]]) -> None:
    """Creates the artifacts `documents`, one source in parts of equal size, as from a crawl, and `tokenizer`."""
    rows = [
        {**row_of(f"https://{source}.example.org/{number}", text), "source": "web"}
        for source, found in texts.items()
        for number, text in enumerate(found)
    ]
    output = Output(store, ArtifactId("bench/documents", "dev"), "bench")
    rows.sort(key=lambda row: row["id"])
    for index, name in enumerate(part_names(PARTS)):
        with output.part(name, conserved=False) as part:
            part.table("kept", pa.Table.from_pylist(rows[index::PARTS], schema=KEPT_SCHEMA))
    documents = commit(output, "bench", 1, Config(), [], Report())
    config = TokenizerConfig(vocab_size=32_000, sample_bytes=8_000_000)
    output = Output(store, ArtifactId("bench/tokenizer", "dev"), "bench")
    report = bpe.run(config, Inputs({"documents": documents}), output, Engine())
    commit(output, "tokenizer", bpe.VERSION, config, [], report)


def row_of(url: str, text: str) -> dict[str, Any]:
    empty = {field.name: None if field.nullable else "" for field in KEPT_SCHEMA}
    return {**empty, "id": document_id(url, "sha1:A"), "url": url, "text": text, "tier": "silver", "language": "en"}


def measure(store: str, rounds: int) -> dict[str, float]:
    """Returns the least CPU seconds of each contender."""
    contenders = {
        "bare": (sys.executable, OPEN + GIGATOKEN),
        "stage": (sys.executable, OPEN + STAGE),
        "bare, tokenizers": (sys.executable, WITHOUT + OPEN + TOKENIZERS),
        "stage, tokenizers": (sys.executable, WITHOUT + OPEN + STAGE),
        "datatrove": (peer_python("encode", PEERS), DATATROVE),
    }

    def seconds(python: str, program: str) -> float:
        return float(last_line(python, program, store))

    return least({name: partial(seconds, *how) for name, how in contenders.items()}, rounds)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--texts", nargs="*", default=[], help="JSONL with a field text, plain or compressed")
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    begin = time.monotonic()
    texts = read_texts(given.texts)
    megabytes = sum(len(text.encode("utf-8", "replace")) for found in texts.values() for text in found) / 1e6
    with tempfile.TemporaryDirectory() as folder:
        build(Store(folder), texts)
        best = measure(folder, given.rounds)
    speed = {name: round(megabytes / value, 2) for name, value in best.items()}
    try:
        encoder = f"gigatoken {importlib.metadata.version('gigatoken')}"
    except importlib.metadata.PackageNotFoundError:
        encoder = "tokenizers"
    result = {
        "corpus": sorted(texts) if given.texts else "Python standard library",
        "documents": sum(map(len, texts.values())),
        "megabytes": round(megabytes, 2),
        "encoder": encoder,
        "peers": PEERS,
        "megabytes_per_cpu_second": speed,
        "ratio": {
            "stage/bare": round(best["bare"] / best["stage"], 2),
            "stage/bare, both tokenizers": round(best["bare, tokenizers"] / best["stage, tokenizers"], 2),
            "stage/datatrove": round(best["datatrove"] / best["stage"], 1),
        },
        "wall_seconds": round(time.monotonic() - begin, 1),
    }
    keep("encode", result)


if __name__ == "__main__":
    main()

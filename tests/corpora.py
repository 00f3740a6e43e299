"""Small artificial corpora, and their artifacts of the token stages."""

import random
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.engine import open_engine
from tasks.core.stage import Output, Report, part_names
from tasks.core.store import Store
from tasks.formats.documents.document import DOCUMENT, document_id
from tasks.formats.documents.key_index import ID, URL, keys_of, merge, write_part_keys
from tasks.formats.documents.tombstones import page_term
from tasks.stages.consolidate.stage import REJECTED
from tasks.stages.tokens import EncodeConfig, PackConfig, TokenizerConfig
from tests.conftest import run_stage_in

WORDS = [
    "water",
    "river",
    "stone",
    "light",
    "valley",
    "über",
    "naïve",
    "строка",
    "数据",
    "return",
    "import",
    "the",
    "of",
]
_SCORES = [("language", pa.string()), ("prose_score", pa.float32()), ("tier", pa.string())]
_KEPT = pa.schema([*DOCUMENT, *(pa.field(name, kind) for name, kind in _SCORES)])


def kept_document(url: str, text: str, source: str = "web", language: str = "en", **more: object) -> dict:
    """Returns a row of `kept/` for a page at `url`."""
    digest = f"sha1:{url[-32:].upper()}"
    row = {
        "id": document_id(url, digest), "record_id": f"<urn:uuid:{url}>", "url": url, "host": url.split("/")[2],
        "fetched_at": None, "title": "", "language_hint": "", "text": text, "source": source,
        "payload_digest": digest, "warc_file": "a.warc.gz", "warc_offset": 7, "language": language,
        "prose_score": 0.5, "tier": "silver",
    }  # fmt: skip
    return {**row, **more}


def corpus(count: int = 120) -> list[dict]:
    """Returns documents of the sources web, code and my-books, in random words."""
    draw = random.Random(5)
    rows = []
    for index in range(count):
        text = " ".join(draw.choices(WORDS, k=draw.randint(5, 200)))
        source = ("web", "code", "my-books")[index % 3]
        rows.append(kept_document(f"https://h{index % 7}.org/{index}", text, source, ("en", "de")[index % 2]))
    return rows


def documents_in(
    folder: Path | str, rows: Iterable[dict], parts: int = 2, rejected: Iterable[dict] = (), version: str = "dev"
) -> Artifact:
    """Commits rows as the artifact test/documents."""
    tables = {"kept": (_KEPT, list(rows)), "rejected": (REJECTED, list(rejected))}
    return by_hand(folder, "documents", parts, tables, version)


def by_hand(
    folder: Path | str, kind: str, parts: int, tables: dict[str, tuple[pa.Schema, list[dict]]], version: str = "dev"
) -> Artifact:
    """Commits tables as the artifact test/<kind>, with parts assigned by id."""
    output = Output(Store(str(folder)), ArtifactId(f"test/{kind}", version), "by-hand")
    for index, part_name in enumerate(part_names(parts)):
        with output.part(part_name, conserved=False) as part:
            for name, (schema, rows) in tables.items():
                mine = [row for row in rows if int(row.get("id", "0"), 16) % parts == index]
                mine.sort(key=lambda row: row.get("id", row["url"]))
                part.table(name, pa.Table.from_pylist(mine, schema=schema))
                if (kind, name) == ("documents", "rejected"):
                    pages = [page_term(row["url"]) for row in mine]
                    keys = [keys_of(ID, [row["id"] for row in mine]), keys_of(URL, pages)]
                    write_part_keys(part, np.concatenate(keys), np.tile(np.arange(len(mine)), 2))
    if kind == "documents":
        with open_engine(workers=0) as engine:
            merge(output, engine, [output.committed[name] for name in part_names(parts)])
    return commit(output, "by hand", 1, Config(), [], Report())


class Made(NamedTuple):
    documents: Artifact
    tokenizer: Artifact
    shards: Artifact
    plan: Artifact


def tokens_in(
    folder: Path,
    rows: list[dict] | None = None,
    parts: int = 3,
    workers: int = 0,
    encode: EncodeConfig | None = None,
    seq_len: int = 32,
    method: Literal["concat", "best_fit"] = "concat",
    version: str = "dev",
    tokenizer_file: str = "",
    by: str = "source",
) -> Made:
    """Runs tokenizer, encode and pack over test/documents, which `rows` create; writes artifacts test/<kind>."""
    run = partial(run_stage_in, folder, workers=workers, version=version)
    made = Artifact.find(Store(str(folder)), ArtifactId("test/documents", version))
    documents = made or documents_in(folder, corpus() if rows is None else rows, parts, version=version)
    inputs = {"documents": documents}
    config = TokenizerConfig(vocab_size=300, file=tokenizer_file)
    tokenizer = run("tasks.stages.tokens.bpe", config, inputs, kind="tokenizer")
    inputs = {**inputs, "tokenizer": tokenizer}
    shards = run("tasks.stages.tokens.encode", encode or EncodeConfig(), inputs, kind="shards")
    pack = PackConfig(seq_len=seq_len, method=method, by=by)
    plan = run("tasks.stages.tokens.pack", pack, {"shards": shards}, kind="plan")
    return Made(documents, tokenizer, shards, plan)

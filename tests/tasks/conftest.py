"""Small artifacts made by hand, for the stages that read them."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from tasks.artifact import Address, Artifact
from tasks.commit import commit
from tasks.config import Config
from tasks.documents import DOCUMENT, document_id
from tasks.stage import Output, Report, part_names
from tasks.store import Store

_KEPT = pa.schema([*DOCUMENT, pa.field("language", pa.string()), pa.field("quality_score", pa.float32())])


def kept_document(url: str, text: str, source: str = "web", language: str = "en", **more: object) -> dict:
    """Returns a row of `kept/` for a page at `url`."""
    digest = f"sha1:{url[-32:].upper()}"
    row = {
        "id": document_id(url, digest), "record_id": f"<urn:uuid:{url}>", "url": url, "host": url.split("/")[2],
        "fetched_at": None, "title": "", "language_hint": "", "text": text, "source": source,
        "payload_digest": digest, "warc_file": "a.warc.gz", "warc_offset": 7, "language": language,
        "quality_score": 0.5,
    }  # fmt: skip
    return {**row, **more}


@pytest.fixture
def make_documents(tmp_path: Path) -> Callable[..., Artifact]:
    """Commits rows (see `kept_document`) as a `documents` artifact of some parts."""

    def make(rows: Iterable[dict], parts: int = 2, name: str = "test/documents", folder: Path = tmp_path) -> Artifact:
        output = Output(Store(str(folder)), Address(name, "dev"), "by-hand")
        rows = list(rows)
        for index, part_name in enumerate(part_names(parts)):
            with output.part(part_name) as part:
                mine = sorted((row for row in rows if int(row["id"], 16) % parts == index), key=lambda row: row["id"])
                part.count_in(len(mine))
                part.table("kept", pa.Table.from_pylist(mine, schema=_KEPT))
        return commit(output, "by hand", 1, Config(), [], Report())

    return make


@pytest.fixture
def page() -> Callable[..., dict]:
    """See `kept_document`."""
    return kept_document

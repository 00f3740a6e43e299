"""Pages as a finished crawl of Sluice holds them: one WARC file, its index, and the artifact that names both."""

from collections.abc import Iterable
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.formats.warc.archive import MANIFEST, MANIFEST_SCHEMA
from tasks.stages.crawl.http.client import Answer
from tasks.stages.crawl.storage.warc import WarcWriter
from tasks.stages.extract.config import ExtractConfig


def published(store: str, recipe: str, captures: Iterable[tuple[str, bytes]]) -> tuple[Artifact, int, int]:
    """Writes captures as the crawler does; returns the `warc` artifact, its pages, and the bytes of their HTML.

    Args:
        store: root of the store.
        recipe: the name under which the artifact stands.
        captures: addresses and pages.
    """
    output = Output(Store(store), ArtifactId(f"{recipe}/warc", "dev"), "fingerprint")
    path = f"{recipe}/warc/dev/pages.warc.gz"
    pages = size = 0
    with output.part("crawl", conserved=False) as part:
        with part.file("pages.warc.gz") as file:
            writer = WarcWriter(file, "pages.warc.gz", "benchmark", "benchmark")
            for url, html in captures:
                writer.capture(url, datetime(2026, 1, 1, tzinfo=UTC), _answer(html), {})
                pages, size = pages + 1, size + len(html)
            lines = writer.finish()
        with part.file("pages.cdxj") as file:
            file.write("".join(f"{line}\n" for line in lines).encode())
        row = {"segment": "", "sha256": "", "bytes": writer.bytes, "records": pages, "path": path}
        row["index"] = path.replace(".warc.gz", ".cdxj")
        with part.file(MANIFEST) as file:
            pq.write_table(pa.Table.from_pylist([row], MANIFEST_SCHEMA), file)
    return commit(output, "tasks.stages.crawl.publish", 1, ExtractConfig(), [], Report()), pages, size


def _answer(html: bytes) -> Answer:
    return Answer(200, "OK", (("Content-Type", "text/html"),), html, "", "", b"GET / HTTP/1.1\r\n\r\n", 0)

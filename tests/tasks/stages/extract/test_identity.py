"""Contract of extract.first_pass.identity: the index of a crawl replaces a first reading of its WARC files."""

import io
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.formats.documents.external_files import SourceFile
from tasks.formats.warc.archive import MANIFEST, MANIFEST_SCHEMA
from tasks.formats.web.url import MAX_CAPTURED_URL
from tasks.stages.crawl.http.client import Response
from tasks.stages.crawl.storage.fetchlist import EarlierCapture
from tasks.stages.crawl.storage.warc import WarcWriter
from tasks.stages.extract.captures import read_warc
from tasks.stages.extract.config import ExtractConfig, FileSource
from tasks.stages.extract.first_pass.identity import indexed_identities, row_identities
from tasks.stages.extract.sources import InputUnit
from tests.tasks.stages.extract.conftest import page, record

MODULE = "tasks.stages.extract.stage"
WHEN = datetime(2026, 11, 20, 10, tzinfo=UTC)
Files = list[tuple[bytes, list[str]]]
Publish = Callable[..., Artifact]


def answer(body: bytes, status: int = 200, kind: str = "text/html") -> Response:
    headers = (("Content-Type", kind), ("Transfer-Encoding", "chunked"))
    return Response(status, "words", headers, body, "", "", b"GET / HTTP/1.1\r\n\r\n", 0.1)


def written(number: int, fill: Callable[[WarcWriter], object]) -> tuple[bytes, list[str]]:
    """A WARC file as the crawler writes it, and the lines of its index."""
    file = io.BytesIO()
    writer = WarcWriter(file, f"{number:05d}.warc.gz", "test", "test")
    fill(writer)
    return file.getvalue(), writer.finish()


def captures(writer: WarcWriter) -> None:
    """Captures of all kinds that a crawl stores, some of them twice, in random order."""
    for url, held in (
        ("http://z.example/", answer(page())),
        ("http://a.example/", answer(page())),
        ("http://z.example/", answer(page())),
        ("http://z.example/", answer(page(head="<meta name=x>"))),
        ("http://a.example/gone", answer(page(), 404)),
        ("http://a.example/robots.txt", answer(b"User-agent: *\n", kind="text/plain")),
        ("http://a.example/" + "x" * MAX_CAPTURED_URL, answer(page())),
        ("http://a.example/large", answer(page() + b" " * 20_000)),
        ("http://a.example/large", answer(page() + b" " * 20_000)),
        ("http://a.example/chunks", answer(b"4\r\nabcd\r\n0\r\n\r\n" + page())),
        ("http://ä.example/ö", answer(page())),
    ):
        writer.capture(url, WHEN, held, {})
    earlier = EarlierCapture("http://a.example/", WHEN, "urn:uuid:1", "sha1:" + "A" * 32)
    writer.revisit("http://a.example/", WHEN, answer(b"", 304), earlier, {})


def drawn(writer: WarcWriter) -> None:
    """Two pages as rendered by a browser, one of them too large."""
    for url, body in (("http://z.example/", page("Drawn. " * 60)), ("http://a.example/", page() + b" " * 20_000)):
        writer.conversion(url, WHEN, body, "text/html; charset=utf-8", "urn:uuid:1", {})


CONFIG = ExtractConfig(max_payload_bytes=10_000)


@pytest.fixture
def publish(tmp_path: Path) -> Publish:
    """Commits WARC files as a `warc` artifact, with or without their indexes."""

    def make(files: Files, *, indexed: bool, cut: int = 0) -> Artifact:
        folder = tmp_path / ("indexed" if indexed else "plain")
        output = Output(Store(str(folder)), ArtifactId("test/warc", "dev"), "fingerprint")
        rows = []
        with output.part("warc", conserved=False) as part:
            for number, (data, lines) in enumerate(files):
                path, index = f"{number:05d}.warc.gz", f"{number:05d}.cdxj"
                with part.file(path) as file:
                    file.write(data)
                with part.file(index) as file:
                    file.write("".join(f"{line}\n" for line in lines[cut:]).encode())
                row = {"segment": "test/warc@dev", "path": f"test/warc/dev/{path}", "sha256": "0" * 64}
                row |= {"bytes": len(data), "records": len(lines)}
                rows.append(row | ({"index": f"test/warc/dev/{index}"} if indexed else {}))
            with part.file(MANIFEST) as file:
                pq.write_table(pa.Table.from_pylist(rows, MANIFEST_SCHEMA), file)
        return commit(output, "tasks.stages.crawl.publish", 1, ExtractConfig(), [], Report())

    return make


def test_identities_from_the_index_equal_those_of_the_rows() -> None:
    data, lines = written(0, captures)
    small = ExtractConfig()  # nothing is too large for it
    rows = read_warc(io.BytesIO(data), "x", "web", small)
    unit = InputUnit(SourceFile("x", "x", 1), FileSource(name="web", kind="warc", path="/x"))
    read = list(row_identities(unit, rows, Counter()))
    assert indexed_identities(io.BytesIO("\n".join(lines).encode()), len(lines)) == read


def test_an_incomplete_index_is_not_used() -> None:
    _, lines = written(0, captures)
    _, conversions = written(1, drawn)
    assert indexed_identities(io.BytesIO("\n".join(lines[1:]).encode()), len(lines)) is None
    assert indexed_identities(io.BytesIO("\n".join(conversions).encode()), len(conversions)) is None
    whole = "\n".join(lines).encode()
    for damaged in (
        whole[:-9],
        whole.replace(b'"offset"', b'"offs"'),
        b"\xff" + whole,
        whole.replace(b" ", b"", 2),
        b"[]",
    ):
        assert indexed_identities(io.BytesIO(damaged), len(lines)) is None


@pytest.mark.parametrize("parts", [1, 3])
def test_documents_and_reasons_are_the_same_with_an_index_and_without(
    run_stage: Callable[..., Artifact], publish: Publish, tmp_path: Path, parts: int
) -> None:
    # Foreign captures of the same pages, whose digests must be comparable with those of the index.
    foreign = [record("http://a.example/", page(), ident="f1"), record("http://z.example/", page(), ident="f2")]
    (tmp_path / "foreign.warc.gz").write_bytes(b"".join(foreign))
    source = FileSource(name="web-archive", kind="warc", path=f"{tmp_path}/foreign.warc.gz")
    files = [written(0, captures), written(1, drawn), written(2, captures)]
    config = CONFIG.model_copy(update={"files": (source,), "parts": parts})
    made = [
        run_stage(MODULE, config, {"warc": publish(files, indexed=indexed)}, version=f"i{indexed}")
        for indexed in (True, False)
    ]
    # A declared digest in one, a computed one in the other.
    assert made[0].record.content == made[1].record.content
    assert made[0].record.rejected == made[1].record.rejected
    assert made[0].record.rejected["duplicate_capture"] == 4
    assert made[0].record.rejected["rendered"] == 6
    assert made[0].record.rejected["too_large"] == 5


@pytest.mark.parametrize(("indexed", "times"), [(True, 1), (False, 2)])
def test_captures_with_an_index_are_read_once(
    run_stage: Callable[..., Artifact],
    publish: Publish,
    monkeypatch: pytest.MonkeyPatch,
    indexed: bool,
    times: int,
) -> None:
    published = publish([written(0, captures)], indexed=indexed)
    opened: Counter[str] = Counter()
    real = Store.open

    def counted(store: Store, path: str, *args: object, **options: object) -> BinaryIO:
        opened[path] += 1
        return real(store, path, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "open", counted)
    run_stage(MODULE, CONFIG, {"warc": published})
    assert opened["test/warc/dev/00000.warc.gz"] == times


def test_an_index_with_an_unexpected_length_is_ignored(run_stage: Callable[..., Artifact], publish: Publish) -> None:
    made = run_stage(MODULE, CONFIG, {"warc": publish([written(0, captures)], indexed=True, cut=2)})
    assert made.record.rejected["duplicate_capture"] == 1

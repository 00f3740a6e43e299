"""The extract stage: each row gives a document or a reason, and the bytes do not depend on the workers."""

import gzip
import json
import uuid
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.formats.documents.document import DOCUMENT, document_id
from tasks.stages.extract import stage
from tasks.stages.extract.config import ExtractConfig, FileSource
from tests.tasks.stages.extract.conftest import conversion, page

MODULE = "tasks.stages.extract.stage"
Make = Callable[..., bytes]
Run = Callable[..., Artifact]


@pytest.fixture
def sources(tmp_path: Path) -> tuple[FileSource, ...]:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.txt").write_text(f"Text number {number}. " + "It goes on for a while. " * 20)
    (folder / "short.txt").write_text("short")
    return (FileSource(name="notes", kind="text", path=f"{folder}/*.txt"),)


def documents(artifact: Artifact) -> list[dict[str, object]]:
    return [row for path in artifact.files("documents/") for row in artifact.table(path).to_pylist()]


def rejected(artifact: Artifact) -> list[tuple[str, str]]:
    tables = [artifact.table(path) for path in artifact.files("rejected/")]
    return [(row["url"], row["reason"]) for row in pa.concat_tables(tables).to_pylist()]


def test_captures_and_files_become_documents_or_reasons(
    run_stage: Run, warc_artifact: Callable[..., Artifact], warc: Make, sources: tuple[FileSource, ...]
) -> None:
    captured = warc_artifact(
        [warc("http://a.example/1", ident="1"), warc("http://a.example/gone", status="404 Not Found")],
        [warc("http://b.example/2", body=b"<p>tiny</p>"), warc("http://b.example/3", kind="revisit")],
    )
    made = run_stage(MODULE, ExtractConfig(files=sources), {"warc": captured})
    assert (made.record.rows_in, made.record.rows_out) == (11, 7)
    assert made.record.rejected == {"http_404": 1, "revisit": 1, "too_short": 2}
    assert dict(rejected(made)) == {
        "http://a.example/gone": "http_404",
        "http://b.example/2": "too_short",
        "http://b.example/3": "revisit",
        "file://notes/short.txt": "too_short",
    }
    web = next(row for row in documents(made) if row["source"] == "web")
    assert web["id"] == document_id("http://a.example/1", str(web["payload_digest"]))
    assert (web["host"], web["title"], web["record_id"]) == ("a.example", "A page", "urn:uuid:1")
    assert (web["warc_file"], web["warc_offset"]) == ("test/warc/dev/00000.warc.gz", 0)


def test_every_record_of_a_wacz_file_becomes_a_document_or_is_rejected_by_its_type(
    run_stage: Run, tmp_path: Path, warc: Make
) -> None:
    def resource(url: str, ident: str) -> bytes:
        one = gzip.decompress(conversion(page("Another page. " * 30), url=url, ident=ident))
        return one.replace(b"WARC-Type: conversion", b"WARC-Type: resource")

    first = warc("http://a.example/1", ident="1", compressed=False)
    others = [resource("http://a.example/2", "2"), resource("urn:text:http://a.example/1", "3")]
    with zipfile.ZipFile(tmp_path / "site.wacz", "w") as archive:
        archive.writestr("archive/data.warc", first + b"".join(others))
        archive.writestr("archive/more.warc.gz", warc("http://a.example/3", kind="revisit"))
    source = FileSource(name="site", kind="warc", path=str(tmp_path / "site.wacz"))
    made = run_stage(MODULE, ExtractConfig(files=(source,)))
    assert (made.record.rows_in, made.record.rows_out) == (4, 2)
    assert made.record.rejected == {"resource_urn_text": 1, "revisit": 1}
    found = {row["url"]: (row["record_id"], row["warc_file"], row["warc_offset"]) for row in documents(made)}
    assert found == {
        "http://a.example/1": ("urn:uuid:1", "site/site.wacz/archive/data.warc", 0),
        "http://a.example/2": ("urn:uuid:2", "site/site.wacz/archive/data.warc", len(first)),
    }


def test_parts_have_the_schema_and_are_sorted_by_id(run_stage: Run, sources: tuple[FileSource, ...]) -> None:
    made = run_stage(MODULE, ExtractConfig(files=sources, parts=2))
    assert [part.name for part in made.parts] == ["part-00000-of-00002", "part-00001-of-00002"]
    for path in made.files("documents/"):
        table = made.table(path)
        assert table.schema.equals(DOCUMENT)
        assert table["id"].to_pylist() == sorted(table["id"].to_pylist())


def test_the_same_bytes_on_any_number_of_workers(
    run_stage: Run, warc_artifact: Callable[..., Artifact], warc: Make, sources: tuple[FileSource, ...]
) -> None:
    captured = warc_artifact(*([warc(f"http://a.example/{i // 2}")] for i in range(8)))
    config = ExtractConfig(files=sources, parts=4)
    made = [run_stage(MODULE, config, {"warc": captured}, workers=n, version=f"w{n}") for n in (0, 3)]
    assert {one.record.content for one in made} == {made[0].record.content}
    assert made[0].record.rejected == {"duplicate_capture": 4, "too_short": 1}


def test_a_page_captured_twice_is_one_document_across_parts(
    run_stage: Run, warc_artifact: Callable[..., Artifact], warc: Make, html: Make
) -> None:
    same, other = html(), html("Something else was written here. " * 20)
    captured = warc_artifact(
        [warc("http://a.example/", same, ident="first")],
        [warc("http://a.example/", same, ident="second"), warc("http://a.example/", other, ident="third")],
    )
    made = run_stage(MODULE, ExtractConfig(parts=2), {"warc": captured})
    assert sorted(str(row["record_id"]) for row in documents(made)) == ["urn:uuid:first", "urn:uuid:third"]
    assert rejected(made) == [("http://a.example/", "duplicate_capture")]


@pytest.mark.parametrize("jsonl", [False, True])
def test_a_capture_with_an_impossible_date_does_not_fail_the_part(
    run_stage: Run, warc_artifact: Callable[..., Artifact], warc: Make, html: Make, jsonl: bool
) -> None:
    published = html() + b"<meta property='article:published_time' content='2019-11-20'>"
    records = [warc("http://good.example/", ident="good")]
    for number, date in enumerate((b"9999-12-31T23:59:59Z", b"0001-01-01T00:00:00+05:00")):
        plain = warc(f"http://{number}.example/", published, ident=str(number), compressed=False)
        records.append(gzip.compress(plain.replace(b"2026-11-20T10:00:00.250Z", date), mtime=0))
    made = run_stage(MODULE, ExtractConfig(jsonl=jsonl), {"warc": warc_artifact(records)})
    assert {row["host"]: row["fetched_at"] is None for row in documents(made)} == {
        "good.example": False,
        "0.example": True,
        "1.example": True,
    }


def test_a_rejected_capture_does_not_shadow_a_good_one(
    run_stage: Run, warc_artifact: Callable[..., Artifact], warc: Make
) -> None:
    captured = warc_artifact([warc(status="503 Busy", ident="bad"), warc(ident="good"), warc(kind="revisit")])
    made = run_stage(MODULE, ExtractConfig(), {"warc": captured})
    assert [row["record_id"] for row in documents(made)] == ["urn:uuid:good"]


def test_a_page_that_takes_too_long_is_quarantined_and_the_part_continues(
    run_stage: Run, warc_artifact: Callable[..., Artifact], warc: Make, html: Make
) -> None:
    # The maximum depth: about 0.3 s, where other pages take one or two milliseconds.
    slow = html("<div>" * 3_900 + "deep" * 100)
    captured = warc_artifact([warc("http://a.example/slow", slow), warc("http://a.example/ok")])
    config = ExtractConfig(max_page_cpu_s=0.1)
    with pytest.raises(InputError, match="1 of 2 rows could not be processed"):
        run_stage(MODULE, config, {"warc": captured})
    made = run_stage(MODULE, config, {"warc": captured}, max_bad_share=0.5)
    assert made.record.rejected == {"poison": 1}
    assert [row["url"] for row in documents(made)] == ["http://a.example/ok"]
    assert rejected(made) == [("http://a.example/slow", "poison")]
    assert b"Poison: timeout: it exceeded the limit of CPU seconds" in made.read(made.files("quarantine/")[0])


def test_metadata_of_a_page_is_stored_with_its_text(
    run_stage: Run, warc_artifact: Callable[..., Artifact], warc: Make, html: Make
) -> None:
    head = (
        '<meta property="article:published_time" content="2019-11-20T09:22:35+01:00">'
        '<link rel=canonical href="/story?id=1"><link rel=license href="https://creativecommons.org/licenses/by/4.0/">'
        '<meta name=author content="Eva Röth"><meta property="og:site_name" content="A Paper">'
    )
    future = html(head='<meta name=date content="2041-01-01">')
    captured = warc_artifact([warc("http://a.example/x", html(head=head)), warc("http://b.example/", future)])
    told, silent = sorted(
        documents(run_stage(MODULE, ExtractConfig(), {"warc": captured})), key=lambda row: row["host"]
    )
    assert told["published"] == datetime(2019, 11, 20, 8, 22, 35, tzinfo=UTC)
    assert told["canonical"] == "http://a.example/story?id=1"
    assert told["licence"] == "https://creativecommons.org/licenses/by/4.0/"
    assert json.loads(told["metadata"]) == {"author": "Eva Röth", "site": "A Paper"}
    # A page cannot be published after it was fetched.
    assert [silent[name] for name in ("published", "canonical", "licence", "metadata")] == [None] * 4


def test_a_published_file_that_lost_captures_is_an_error_with_its_path(
    run_stage: Run, warc_artifact: Callable[..., Artifact], warc: Make
) -> None:
    captured = warc_artifact([warc(), b"\0" * 100], published=2)
    with pytest.raises(InputError, match=r"00000\.warc\.gz: 2 captures were published, 1 can be read"):
        run_stage(MODULE, ExtractConfig(), {"warc": captured})


def test_a_truncated_published_file_is_an_error_even_within_its_last_capture(
    run_stage: Run, warc_artifact: Callable[..., Artifact], warc: Make
) -> None:
    captured = warc_artifact([warc(), warc("http://a.example/2", bytes(range(256)) * 60)[:-60]])
    with pytest.raises(InputError, match=r"2 captures were published, 1 can be read"):
        run_stage(MODULE, ExtractConfig(), {"warc": captured})


def drawn(text: str, url: str, ident: str = "c") -> bytes:
    return conversion(f"<html><p>{text}</p>".encode() * 20, url=url, ident=ident)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_a_rendered_page_replaces_its_captures_across_parts(
    run_stage: Run, warc_artifact: Callable[..., Artifact], warc: Make, html: Make, parts: int
) -> None:
    captured = warc_artifact(
        [warc("http://a.example/1", ident="thin"), warc("http://b.example/", ident="other")],
        [drawn("Drawn by a browser. ", "http://a.example/1", "full")],
        [warc("http://a.example/1", html("Another time it was thin too. "), ident="thin2")],
        [warc("http://a.example/1", status="404 Not Found", ident="gone")],
    )
    made = run_stage(MODULE, ExtractConfig(parts=parts), {"warc": captured}, version=f"p{parts}")
    assert sorted(str(row["record_id"]) for row in documents(made)) == ["urn:uuid:full", "urn:uuid:other"]
    assert made.record.rejected == {"rendered": 2, "http_404": 1}
    page = next(row for row in documents(made) if row["record_id"] == "urn:uuid:full")
    assert (page["url"], page["host"], page["source"]) == ("http://a.example/1", "a.example", "web")
    assert (page["warc_file"], page["warc_offset"]) == ("test/warc/dev/00001.warc.gz", 0)
    assert str(page["text"]).startswith("Drawn by a browser.")


def test_a_rendered_page_equal_to_its_capture_is_not_lost(
    run_stage: Run, warc_artifact: Callable[..., Artifact], warc: Make, html: Make
) -> None:
    captured = warc_artifact([warc("http://a.example/", html()), conversion(html(), url="http://a.example/")])
    made = run_stage(MODULE, ExtractConfig(), {"warc": captured})
    assert [row["record_id"] for row in documents(made)] == ["urn:uuid:c"]
    assert made.record.rejected == {"rendered": 1}


def test_an_unreadable_rendered_page_replaces_nothing(
    run_stage: Run, warc_artifact: Callable[..., Artifact], warc: Make
) -> None:
    big = conversion(b"<p>" + b"a" * 5000, url="http://a.example/")
    captured = warc_artifact([warc("http://a.example/", ident="kept"), big])
    made = run_stage(MODULE, ExtractConfig(max_payload_bytes=4000), {"warc": captured})
    assert [row["record_id"] for row in documents(made)] == ["urn:uuid:kept"]
    assert made.record.rejected == {"too_large": 1}


def test_texts_of_common_crawl_are_a_source_with_their_lineage(run_stage: Run, tmp_path: Path) -> None:
    language = "WARC-Identified-Content-Language: deu\r\n"
    first, second = (
        conversion(f"Satz {i}. ".encode() * 50, "text/plain", language, f"https://{i}.example/x", ident=f"w{i}")
        for i in range(2)
    )
    (tmp_path / "CC-MAIN-1.warc.wet.gz").write_bytes(first + second)
    source = FileSource(name="cc", kind="warc", path=f"{tmp_path}/*.warc.wet.gz")
    made = run_stage(MODULE, ExtractConfig(files=(source,)))
    found = sorted(documents(made), key=lambda row: str(row["url"]))
    assert [row["url"] for row in found] == ["https://0.example/x", "https://1.example/x"]
    assert [row["record_id"] for row in found] == ["urn:uuid:w0", "urn:uuid:w1"]
    assert [row["warc_offset"] for row in found] == [0, len(first)]
    assert {(row["source"], row["warc_file"], row["language_hint"]) for row in found} == {
        ("cc", "cc/CC-MAIN-1.warc.wet.gz", "deu")
    }
    assert all(str(row["payload_digest"]).startswith("sha1:") for row in found)


@pytest.mark.parametrize("packed", [False, True])
def test_archives_from_before_warc_are_a_source_like_others(
    run_stage: Run, tmp_path: Path, html: Make, packed: bool
) -> None:
    pages = [html(f"Page {number} of the old web. " * 20) for number in range(3)]
    parts = [b"filedesc://old.arc 0.0.0.0 20061115092114 text/plain 76\n1 0 InternetArchive\n" + b"URL IP-address Arch"]
    parts[0] += b"ive-date Content-type Archive-length\n\n"
    for number, content in enumerate(pages):
        block = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + content
        line = f"http://{number}.example/ 207.241.229.39 2006111509210{number} text/html {len(block)}\n"
        parts.append(line.encode() + block + b"\n")
    data = [gzip.compress(part, mtime=0) if packed else part for part in parts]
    name = "old.arc.gz" if packed else "old.arc"
    (tmp_path / name).write_bytes(b"".join(data))
    config = ExtractConfig(files=(FileSource(name="ia", kind="warc", path=f"{tmp_path}/*.arc*"),))
    found = sorted(documents(run_stage(MODULE, config)), key=lambda row: str(row["url"]))
    assert [row["url"] for row in found] == [f"http://{number}.example/" for number in range(3)]
    assert [row["fetched_at"].second for row in found] == [0, 1, 2]
    assert found[1]["text"].startswith("Page 1 of the old web.")
    assert (found[0]["warc_file"], found[0]["warc_offset"]) == (f"ia/{name}", len(data[0]))
    assert found[0]["record_id"] == "urn:uuid:" + str(
        uuid.uuid5(uuid.NAMESPACE_URL, "arc:" + parts[1].partition(b"\n")[0].decode())
    )


def test_a_text_and_a_capture_of_one_url_are_two_documents(run_stage: Run, tmp_path: Path, warc: Make) -> None:
    url = "http://a.example/"
    (tmp_path / "a.warc.gz").write_bytes(warc(url) + conversion(b"The text of the page. " * 20, "text/plain", url=url))
    made = run_stage(MODULE, ExtractConfig(files=(FileSource(name="cc", kind="warc", path=f"{tmp_path}/*.gz"),)))
    assert len(documents(made)) == 2


def lines(artifact: Artifact, path: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in gzip.decompress(artifact.read(path)).splitlines()]


def test_documents_are_written_as_json_lines_on_request(
    run_stage: Run, warc_artifact: Callable[..., Artifact], warc: Make, html: Make, sources: tuple[FileSource, ...]
) -> None:
    captured = warc_artifact(
        [warc("http://a.example/\u00e9", html("Gr\u00fc\u00dfe \U0001f600 an alle. " * 20), ident="1")]
    )
    config = ExtractConfig(files=sources, parts=2, jsonl=True)
    made = run_stage(MODULE, config, {"warc": captured})
    paths = made.files("jsonl/")
    assert paths == ["jsonl/part-00000-of-00002.jsonl.gz", "jsonl/part-00001-of-00002.jsonl.gz"]
    names = (
        "id",
        "url",
        "title",
        "language_hint",
        "canonical",
        "licence",
        "text",
        "source",
        "record_id",
        "warc_file",
        "warc_offset",
    )
    for path, parquet in zip(paths, made.files("documents/"), strict=True):
        expected = made.table(parquet).to_pylist()
        found = lines(made, path)
        assert [{name: row[name] for name in names} for row in found] == [
            {name: row[name] for name in names} for row in expected
        ]
        for row, document in zip(found, expected, strict=True):
            fetched = document["fetched_at"]
            assert row["fetched_at"] == (fetched and fetched.isoformat(timespec="milliseconds")[:-6] + "Z")
            assert set(row) == {*names, "fetched_at", "published", "metadata"}
    again = run_stage(MODULE, config, {"warc": captured}, version="again", workers=2)
    assert [again.read(path) for path in paths] == [made.read(path) for path in paths]
    assert made.read(paths[0])[4:8] == bytes(4)  # no time of day in the header


def test_json_lines_are_not_written_by_default(run_stage: Run, sources: tuple[FileSource, ...]) -> None:
    assert run_stage(MODULE, ExtractConfig(files=sources)).files("jsonl/") == []


def test_no_inputs_and_no_documents_are_errors(
    run_stage: Run, warc_artifact: Callable[..., Artifact], warc: Make
) -> None:
    with pytest.raises(InputError, match="there is no WARC file and no local file"):
        run_stage(MODULE, ExtractConfig())
    captured = warc_artifact([warc(status="404 Not Found"), warc(status="500 Oops")])
    with pytest.raises(InputError, match=r"no row gave a document \(http_404 1, http_500 1\)"):
        run_stage(MODULE, ExtractConfig(), {"warc": captured})


def test_external_names_every_local_file_by_source(sources: tuple[FileSource, ...]) -> None:
    found = stage.external(ExtractConfig(files=sources))
    assert list(found) == ["files:notes"]
    assert [Path(path).name for path in found["files:notes"]] == [*(f"{i}.txt" for i in range(6)), "short.txt"]


def test_sources_need_unique_names() -> None:
    twice = FileSource(name="a", kind="text", path="/x/*")
    with pytest.raises(ValueError, match="must be unique"):
        ExtractConfig(files=(twice, twice))
    with pytest.raises(ValueError, match="must be unique"):
        ExtractConfig(files=(FileSource(name="web", kind="text", path="/x/*"),))

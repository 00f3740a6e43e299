"""Contract of the extract stage: rows in are documents or reasons, and the bytes do not depend on the workers."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import tasks.extract.captures
from tasks.artifact import Artifact
from tasks.documents import DOCUMENT, document_id
from tasks.errors import InputError
from tasks.extract import stage
from tasks.extract.config import ExtractConfig, FileSource

MODULE = "tasks.extract.stage"
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
    made = [run_stage(MODULE, config, {"warc": captured}, workers=n, version=f"w{n}") for n in (0, 1, 2)]
    assert {one.record.content for one in made} == {made[0].record.content}
    assert made[0].record.rejected == {"duplicate_capture": 4, "too_short": 1}


def test_a_page_captured_twice_is_one_document_wherever_the_captures_lie(
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


def test_a_refused_capture_does_not_shadow_a_good_one(
    run_stage: Run, warc_artifact: Callable[..., Artifact], warc: Make
) -> None:
    captured = warc_artifact([warc(status="503 Busy", ident="bad"), warc(ident="good"), warc(kind="revisit")])
    made = run_stage(MODULE, ExtractConfig(), {"warc": captured})
    assert [row["record_id"] for row in documents(made)] == ["urn:uuid:good"]


def test_a_poison_capture_is_set_aside_and_the_part_goes_on(
    run_stage: Run, warc_artifact: Callable[..., Artifact], warc: Make, html: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_page = tasks.extract.captures.read_page

    def fragile(text: str, **options: object) -> object:
        if "poison" in text:
            raise RecursionError("parser gave up")
        return read_page(text, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(tasks.extract.captures, "read_page", fragile)
    captured = warc_artifact([warc("http://a.example/p", html("poison")), warc("http://a.example/ok")])
    with pytest.raises(InputError, match="1 of 2 rows could not be processed"):
        run_stage(MODULE, ExtractConfig(), {"warc": captured})
    made = run_stage(MODULE, ExtractConfig(), {"warc": captured}, max_bad_share=0.5)
    assert made.record.rejected == {"poison": 1}
    assert [row["url"] for row in documents(made)] == ["http://a.example/ok"]
    assert rejected(made) == [("http://a.example/p", "poison")]
    assert b"RecursionError: parser gave up" in made.read(made.files("quarantine/")[0])


def test_a_published_file_that_lost_captures_is_an_error_with_its_path(
    run_stage: Run, warc_artifact: Callable[..., Artifact], warc: Make
) -> None:
    captured = warc_artifact([warc(), b"\0" * 100], published=2)
    with pytest.raises(InputError, match=r"00000\.warc\.gz: 2 captures were published, 1 can be read"):
        run_stage(MODULE, ExtractConfig(), {"warc": captured})


def test_nothing_to_read_and_nothing_found_are_errors(
    run_stage: Run, warc_artifact: Callable[..., Artifact], warc: Make
) -> None:
    with pytest.raises(InputError, match="no WARC file and no local file"):
        run_stage(MODULE, ExtractConfig())
    captured = warc_artifact([warc(status="404 Not Found"), warc(status="500 Oops")])
    with pytest.raises(InputError, match=r"no row gave a document \(http_404 1, http_500 1\)"):
        run_stage(MODULE, ExtractConfig(), {"warc": captured})


def test_external_names_every_local_file_by_source(sources: tuple[FileSource, ...]) -> None:
    found = stage.external(ExtractConfig(files=sources))
    assert list(found) == ["files:notes"]
    assert [Path(path).name for path in found["files:notes"]] == [*(f"{i}.txt" for i in range(6)), "short.txt"]


def test_sources_need_names_of_their_own() -> None:
    twice = FileSource(name="a", kind="text", path="/x/*")
    with pytest.raises(ValueError, match="names of their own"):
        ExtractConfig(files=(twice, twice))
    with pytest.raises(ValueError, match="names of their own"):
        ExtractConfig(files=(FileSource(name="web", kind="text", path="/x/*"),))

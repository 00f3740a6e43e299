"""Contract of chunks: traced to documents and pages, kept or rejected with a reason, for any number of workers."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.stages.chunks import ChunksConfig
from tasks.stages.extract.config import ExtractConfig
from tests.conftest import SCATTERED, run_stage_in
from tests.corpora import corpus, kept_document
from tests.soak import soak_but
from tests.taken_down import take_down
from tests.tasks.stages.chunks.made import WORDS, chunked, rows_of
from tests.tasks.stages.extract.made_pdf import COURIER, lines, pdf, show

FOOTER = "Every right of the old harbour museum is reserved; write to the office for a licence to copy."


def own(number: int) -> str:
    return " ".join(f"Door {number} of the museum has sign {n} beside its {n * number}th lock." for n in range(12))


def pages() -> list[dict[str, Any]]:
    """Five pages of several chunks each, whose last section is the same; the last page is gold."""
    tiers = ["silver"] * 4 + ["gold"]
    return [
        kept_document(f"https://m{n}.org/doors", f"# Door {n}\n\n{own(n)}\n\n# Rights\n\n{FOOTER}", tier=tier)
        for n, tier in enumerate(tiers)
    ]


def test_a_chunk_is_a_substring_of_its_document_and_all_chunks_are_accounted_for(tmp_path: Path) -> None:
    rows = {row["id"]: row for row in pages()}
    made = chunked(tmp_path, list(rows.values()))
    kept, gone = rows_of(made), rows_of(made, "rejected/")
    assert made.record.rows_in == made.record.metrics["cut"] == len(kept) + len(gone)
    assert made.record.rejected == Counter(row["reason"] for row in gone)
    assert {row["document"] for row in kept} == rows.keys()
    for row in kept:
        document = rows[row["document"]]
        assert row["text"] == document["text"][row["start"] : row["end"]]
        assert (row["url"], row["tier"], row["source"]) == (document["url"], document["tier"], "web")
        assert row["tokens"] <= 128
        assert row["pages"] is row["boxes"] is None
    assert made.record.metrics["gold"] == sum(row["tier"] == "gold" for row in kept) > 0
    assert all(path.startswith(("chunks/", "rejected/")) for path in made.files())


def test_of_equal_chunks_the_one_of_a_gold_document_is_kept_and_named_by_the_others(tmp_path: Path) -> None:
    made = chunked(tmp_path, pages(), parts=3)
    (keeper,) = (row for row in rows_of(made) if FOOTER in row["text"])
    assert keeper["url"] == "https://m4.org/doors"
    copies = [row for row in rows_of(made, "rejected/") if row["reason"] == "duplicate"]
    assert {row["url"] for row in copies} == {f"https://m{n}.org/doors" for n in range(4)}
    assert {row["duplicate_of"] for row in copies} == {keeper["id"]}


def test_text_is_compared_by_words_and_code_by_characters(tmp_path: Path) -> None:
    shouted = kept_document("https://a.org/1", f"# RIGHTS\n\n{FOOTER.upper().replace(';', ' -')}")
    plus, minus = (f"```\ntotal = first {sign} second  # of all the doors\n```" for sign in "+-")
    rows = [shouted, *pages()[:1], *(kept_document(f"https://{n}.org/", text) for n, text in enumerate((plus, minus)))]
    made = chunked(tmp_path, rows, min_tokens=1)
    assert made.record.rejected == {"duplicate": 1}
    assert {row["text"] for row in rows_of(made) if row["kind"] == "code"} == {plus, minus}


GARBAGE = {
    "heading_only": "# A heading, and nothing but this heading",
    "few_words": "Home | Next",
    "few_letters": "12 34 56 78 90 -- 12:30 ++ 13:45 ** 99 %% 3.14159 2.71828",
    "few_distinct_words": "buy now " * 40,
    "contents": "Doors and locks ........ 3\nWindows . . . . . . . 14\nThe roof ...... 15",
}


@pytest.mark.parametrize("reason", GARBAGE)
def test_garbage_is_rejected_with_its_reason(tmp_path: Path, reason: str) -> None:
    made = chunked(tmp_path, [*pages()[:1], kept_document("https://g.org/", GARBAGE[reason])], max_tokens=256)
    assert [row["reason"] for row in rows_of(made, "rejected/")] == [reason]


def test_tables_drawn_lines_and_prose_in_any_script_are_not_garbage(tmp_path: Path) -> None:
    table = "| 1 | 2 |\n|---|---|\n" + "\n".join(f"| {n} | {n * n} |" for n in range(9))
    scripts = [
        "दरवाज़े सुबह नौ बजे खुलते हैं और शाम को बंद होते हैं।",
        "博物館的門早上九點打開，晚上關閉。",
        "Двери музея открываются в девять часов.",
    ]
    drawn = f"The doors of the museum\n{'=' * 90}\n\nThey open at nine."
    rows = [kept_document(f"https://{n}.org/", text) for n, text in enumerate([table, drawn, *scripts])]
    assert chunked(tmp_path, rows, max_tokens=512).record.rejected == {}


def test_sources_of_code_have_no_headings(tmp_path: Path) -> None:
    script = "# Count all of the doors\n\nfor door in doors:\n    print(door)\n" * 12
    row = kept_document("file://code/doors", script, source="code")
    assert {one["kind"] for one in rows_of(chunked(tmp_path / "plain", [row], min_tokens=1))} == {"text"}
    found = rows_of(chunked(tmp_path / "code", [row], min_tokens=1, code_sources=("code",)))
    assert {(one["kind"], len(one["headings"])) for one in found} == {("code", 0)}


def test_documents_taken_down_give_no_chunk_and_leave_no_text(tmp_path: Path) -> None:
    gone, *others = pages()
    made = chunked(tmp_path, [gone, *others], takedown=take_down(tmp_path, urls=(gone["url"],)))
    rejected = [row for row in rows_of(made, "rejected/") if row["document"] == gone["id"]]
    assert {row["reason"] for row in rejected} == {"takedown"}
    assert gone["id"] not in {row["document"] for row in rows_of(made)}
    assert sum(FOOTER in row["text"] for row in rows_of(made)) == 1


def extracted_from(folder: Path, file: bytes) -> Artifact:
    """The extracted document of a PDF file."""
    folder.mkdir()
    (folder / "a.pdf").write_bytes(file)
    source = {"name": "papers", "kind": "pdf", "path": f"{folder}/*.pdf"}
    config = ExtractConfig.model_validate({"files": (source,), "min_chars": 1, "parsers": {"pdf": {}}})
    return run_stage_in(folder, "tasks.stages.extract.stage", config)


def papers(folder: Path) -> Artifact:
    """The extracted document of a two-page file with an address on the second page."""
    body = [f"The door number {n} of the old museum opens at nine in the" for n in range(8)]
    first = show(60, 780, "1 Doors", size=18, font="F2") + lines(60, 740, body)
    second = show(60, 780, "2 Windows", size=18, font="F2") + lines(
        60,
        740,
        ["Windows are opened by ann@example.org in the morning, as soon as", "the sun has come up over the sea."],
    )
    return extracted_from(folder, pdf([first, second]))


def test_a_listing_of_a_pdf_file_is_code_and_its_contents_are_garbage(tmp_path: Path) -> None:
    said = [f"The door number {n} of the old museum opens at nine in the" for n in range(8)]
    code = "".join(show(60 + 16 * (n % 3), 560 - 11 * n, f"door_{n}.open(hour={n})", 9, "F3") for n in range(9))
    contents = lines(60, 740, [f"{n} Of the doors {'. ' * 20}{n * 3}" for n in range(1, 12)])
    extracted = extracted_from(tmp_path / "papers", pdf([contents, lines(60, 740, said) + code], fonts=COURIER))
    (path,) = extracted.files("documents/")
    (document,), (layout,) = extracted.table(path).to_pylist(), rows_of(extracted, "layout/")
    kept = kept_document(document["url"], document["text"], **{name: document[name] for name in ("id", "source")})
    settings = {"parts": 1, "min_tokens": 8, "max_tokens": 256}
    made = chunked(tmp_path / "made", [kept], layouts=[layout], before=[document], **settings)
    assert {row["reason"] for row in rows_of(made, "rejected/")} == {"contents"}
    (listing,) = [row for row in rows_of(made) if row["kind"] == "code"]
    assert "door_0.open(hour=0)\n   door_1.open(hour=1)\n      door_2.open(hour=2)\ndoor_3" in listing["text"]
    assert listing["pages"] == [2]


@pytest.mark.parametrize("masked", [False, True])
def test_chunks_of_a_pdf_file_have_the_pages_and_boxes_of_their_text(tmp_path: Path, masked: bool) -> None:
    extracted = papers(tmp_path / "papers")
    (path,) = extracted.files("documents/")
    (document,), (layout,) = extracted.table(path).to_pylist(), rows_of(extracted, "layout/")
    text = document["text"].replace("ann@example.org", "<email>") if masked else document["text"]
    kept = kept_document(document["url"], text, **{name: document[name] for name in ("id", "source")})
    settings = {"parts": 1, "min_tokens": 8, "max_tokens": 1024}
    made = chunked(tmp_path / "made", [kept], layouts=[layout], before=[document], **settings)
    first, second = rows_of(made)
    assert ("<email>" in second["text"]) is masked
    assert [row["pages"] for row in (first, second)] == [[1], [2]]
    for row in (first, second):
        expected = [
            {name: one[name] for name in ("page", "x0", "y0", "x1", "y1")}
            for one in layout["layout"]
            if one["page"] == row["pages"][0]
        ]
        assert row["boxes"] == expected
    assert second["text"].startswith("2 Windows"), "a heading by its size begins a chunk"


@pytest.mark.parametrize("several", soak_but({0}, [SCATTERED, 2]))
def test_bytes_do_not_depend_on_workers_and_chunks_not_on_parts(tmp_path: Path, several: int) -> None:
    rows = [*corpus(20), *pages()]
    settings = {"bucket_chunks": 7, "overlap_tokens": 16}
    one, two = (chunked(tmp_path / f"{n}", rows, parts=3, workers=n, **settings) for n in (0, several))
    assert one.record.content == two.record.content
    other = chunked(tmp_path / "other", rows, parts=1, **settings)
    assert sorted(row["id"] for row in rows_of(one)) == sorted(row["id"] for row in rows_of(other))


def test_zero_documents_and_impossible_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no kept document"):
        chunked(tmp_path, [])
    with pytest.raises(ValueError, match="overlap_tokens = 200 is more than 128, the maximum for max_tokens = 512"):
        ChunksConfig(overlap_tokens=200)
    with pytest.raises(ValueError, match="min_tokens = 90 is more than 64"):
        ChunksConfig(max_tokens=64, min_tokens=90)
    assert WORDS

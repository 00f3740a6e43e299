"""PDF files as a source: text in reading order with its places; pages without text are reported.

Texts of real files have the words of the gold, and two columns in order.
"""

import re
import stat
import sys
import textwrap
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.formats.documents.text import clean
from tasks.formats.pdf.document import PdfText, read_pdf
from tasks.stages.extract.config import ExtractConfig
from tests.conftest import SCATTERED
from tests.soak import soak_but
from tests.tasks.stages.extract.made_pdf import ANY, IMAGE, SCANNED, Letters, image, lines, pdf, show, stream
from tests.tasks.stages.extract.test_stage import documents, rejected

ROOT = Path(__file__).parents[4]
MODULE = "tasks.stages.extract.stage"
Run = Callable[..., Artifact]

LEFT = (
    "The ship went to sea with a crew of nine, and none of them had seen the ice before that winter. They had been "
    "told that the harbour would be open until the first week of November, and that was what the owners believed as "
    "well."
)
RIGHT = (
    "When the wind turned on the third day, the captain gave up the northern route and followed the coast instead. It "
    "was the longer way, but there were villages on it, and in every one of them somebody who could mend a sail."
)
SCAN = {"resources": IMAGE, "others": {1000: image()}}


def column(x: float, y: float, text: str, width: int = 46) -> list[tuple[float, float, str]]:
    return [(x, y - 12 * number, line) for number, line in enumerate(textwrap.wrap(text, width))]


def by_rows(*columns: list[tuple[float, float, str]]) -> str:
    """All lines from top to bottom over all columns, as some programs write them."""
    return "".join(show(*line) for line in sorted((line for one in columns for line in one), key=lambda line: -line[1]))


def extracted(
    run_stage: Run,
    folder: Path,
    files: Mapping[str, bytes],
    run: Mapping[str, object] | None = None,
    **settings: object,
) -> Artifact:
    """Output of the stage for the files with these parser settings."""
    place = folder / "papers"
    place.mkdir(exist_ok=True)
    for name, data in files.items():
        (place / f"{name}.pdf").write_bytes(data)
    source = {"name": "papers", "kind": "pdf", "path": f"{place}/*.pdf", "max_file_bytes": 100_000_000}
    config = ExtractConfig.model_validate({"files": (source,), "min_chars": 1, "parsers": {"pdf": settings}})
    return run_stage(MODULE, config, **(run or {}))


def beside(artifact: Artifact, folder: str) -> list[dict]:
    return [row for path in artifact.files(folder) for row in artifact.table(path).to_pylist()]


def blocks(artifact: Artifact) -> list[tuple[str, int, str]]:
    """Kind, page and text of the blocks of the only document."""
    (document,), (layout,) = documents(artifact), beside(artifact, "layout/")
    assert layout["id"] == document["id"]
    text = str(document["text"])
    assert clean(text) == text
    return [(one["kind"], one["page"], text[one["start"] : one["end"]]) for one in layout["layout"]]


def test_the_left_column_is_read_before_the_right_one(run_stage: Run, tmp_path: Path) -> None:
    title = show(160, 780, "A voyage along the northern coast", size=18, font="F2")
    page = title + by_rows(column(50, 700, LEFT), column(310, 700, RIGHT))
    made = extracted(run_stage, tmp_path, {"a": pdf([page])})
    assert blocks(made) == [
        ("heading", 1, "A voyage along the northern coast"),
        ("paragraph", 1, LEFT),
        ("paragraph", 1, RIGHT),
    ]
    (document,) = documents(made)
    assert (document["title"], document["url"]) == ("A voyage along the northern coast", "file://papers/a.pdf")
    boxes = [(round(one["x0"]), round(one["y0"])) for one in beside(made, "layout/")[0]["layout"]]
    assert [x for x, _ in boxes] == [160, 50, 310]
    assert all(0 < y < 842 for _, y in boxes)
    assert boxes[0][1] < boxes[1][1] == boxes[2][1]


def test_a_paragraph_continues_across_columns_and_pages_with_whole_words(run_stage: Run, tmp_path: Path) -> None:
    first = by_rows(column(50, 700, LEFT + " The well-known naviga-"))
    second = by_rows(
        column(50, 700, "tor stayed on board. He was a well-"), column(50, 688, "known man in every port.")
    )
    made = extracted(run_stage, tmp_path, {"a": pdf([first, second])})
    assert [number for _, number, _ in blocks(made)] == [1, 2]
    (document,) = documents(made)
    assert (
        document["text"] == f"{LEFT} The well-known navigator stayed on board. He was a well-known man in every port."
    )


def test_running_headers_and_page_numbers_are_removed_and_footnotes_come_last(run_stage: Run, tmp_path: Path) -> None:
    def page(number: int) -> str:
        said = ("So the log of the harbour says.", "Or in the week after it.", "Only Vardo had none.")
        note = show(50, 90, f"{number} {said[number - 1]}", size=7)
        head = show(50, 810, f"Journal of coasts {number}") + show(290, 30, str(number + 10))
        return head + by_rows(column(50, 700, f"Page {number} begins here. {LEFT}")) + note

    made = extracted(run_stage, tmp_path, {"a": pdf([page(number) for number in (1, 2, 3)])})
    assert [(kind, number) for kind, number, _ in blocks(made)] == [
        (kind, number) for number in (1, 2, 3) for kind in ("paragraph", "footnote")
    ]
    (document,) = documents(made)
    assert "Journal" not in str(document["text"])
    assert "11" not in str(document["text"])


def test_tables_are_rows_and_headings_are_separate_lines(run_stage: Run, tmp_path: Path) -> None:
    cells = [("port", "days", "sails"), ("Bergen", "12", "3"), ("Vardo", "7", "1"), ("Hammerfest", "", "2")]
    table = "".join(
        show(x, 600 - 14 * row, cell)
        for row, texts in enumerate(cells)
        for x, cell in zip((60, 200, 300), texts, strict=True)
        if cell
    )
    page = show(50, 720, "Ports of call", font="F2") + by_rows(column(50, 700, LEFT, 90)) + table
    assert blocks(extracted(run_stage, tmp_path, {"a": pdf([page])})) == [
        ("heading", 1, "Ports of call"),
        ("paragraph", 1, LEFT),
        ("table", 1, "port\tdays\tsails\nBergen\t12\t3\nVardo\t7\t1\nHammerfest\t\t2"),
    ]


PROSE = by_rows(column(50, 700, LEFT, 90), column(50, 600, RIGHT, 90))
# A permutation of the alphabet under which no vowel stays one.
GARBLED = str.maketrans("abcdefghijklmnopqrstuvwxyz", "qfghklmnbpqrstvwxdzaceiouy")
UNREADABLE = {
    "scanned": (pdf([SCANNED], **SCAN), 1.0),
    "read_by_a_scanner": (
        pdf([SCANNED + lines(50, 700, textwrap.wrap(LEFT, 90)).replace("0 Tr", "3 Tr")], **SCAN),
        1.0,
    ),
    "text_under_the_scan": (pdf([PROSE + SCANNED], **SCAN), 1.0),
    "outlines": (pdf(["0 0 m 99 99 l S\n" * 50]), 1.0),
    "garbled": (pdf([lines(50, 700, textwrap.wrap(f"{LEFT} {RIGHT}".lower().translate(GARBLED), 90))]), 0.6),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_pages_without_text_need_ocr_and_have_a_score(run_stage: Run, tmp_path: Path, name: str) -> None:
    data, least = UNREADABLE[name]
    made = extracted(run_stage, tmp_path, {name: data, "prose": pdf([PROSE])})
    assert rejected(made) == [(f"file://papers/{name}.pdf", "needs_ocr")]
    scores = {row["url"]: (row["page"], row["needs_ocr"], row["score"]) for row in beside(made, "pages/")}
    assert scores[f"file://papers/{name}.pdf"] == (1, True, pytest.approx(scores[f"file://papers/{name}.pdf"][2]))
    assert scores[f"file://papers/{name}.pdf"][2] >= least
    assert scores["file://papers/prose.pdf"] == (1, False, 0.0)


OFFICE = "the officer offered a different office to the staff of the harbour"


@pytest.mark.parametrize(
    ("to", "read", "counted"),
    [
        ("0000", "\ufffd", True),
        ("0001", "\ufffd", True),
        ("fffd", "\ufffd", True),
        ("d835", "\ufffd", True),
        ("200b", "\ufffd", True),
        ("feff", "\ufffd", True),
        ("e000", "\ue000", True),
        ("00660000", "f", False),
        ("d835dc53", "\U0001d453", False),
        ("fb00", "ff", False),
    ],
)
def test_a_glyph_that_a_map_makes_invisible_is_marked_and_counted(to: str, read: str, counted: bool) -> None:
    font = Letters(OFFICE, {"f": to})
    found = read_pdf(pdf([font.show(50, 700, OFFICE)], fonts=ANY, others=font.others))
    assert found.text == OFFICE.replace("f", read)
    share = OFFICE.count("f") / len(OFFICE.replace(" ", ""))
    assert found.pages[0].score == pytest.approx(2 * share if counted else 0, abs=0.001)


def test_a_blank_glyph_that_is_mapped_to_nul_is_a_space() -> None:
    to_unicode = stream(b"1 begincodespacerange <00> <ff> endcodespacerange 1 beginbfchar <20> <0000> endbfchar")
    font = "/F4 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding /ToUnicode 1000 0 R >>"
    found = read_pdf(pdf([show(50, 700, OFFICE, font="F4")], fonts=font, others={1000: to_unicode}))
    assert (found.text, found.pages[0].score) == (OFFICE, 0.0)


def test_a_scanned_page_among_others_is_a_rejected_row_of_its_own(run_stage: Run, tmp_path: Path) -> None:
    made = extracted(run_stage, tmp_path, {"a": pdf([PROSE, SCANNED, PROSE], **SCAN)})
    assert (made.record.rows_in, made.record.rows_out) == (2, 1)
    assert rejected(made) == [("file://papers/a.pdf#page=2", "needs_ocr")]
    assert list(beside(made, "pages/")[0]) == ["url", "source", "page", "score", "needs_ocr"]
    assert {number for _, number, _ in blocks(made)} == {1, 3}


OCR = """#!{python}
import json, pathlib, sys
assert pathlib.Path(sys.argv[1]).read_bytes().startswith(b"%PDF-")
if sys.argv[2] == "3":
    sys.exit(1)
print(json.dumps({{"text": "What the page\\nshows", "kind": "heading", "box": [1, 2, 3, 4]}}))
print(json.dumps({{"text": "of page " + sys.argv[2]}}))
"""


def test_a_command_reads_the_pages_that_need_ocr(run_stage: Run, tmp_path: Path) -> None:
    program = tmp_path / "ocr"
    program.write_text(OCR.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    files = {"a": pdf([PROSE, SCANNED, SCANNED], **SCAN)}
    made = extracted(run_stage, tmp_path, files, page_command=[str(program), "{file}", "{page}"])
    assert blocks(made)[2:] == [("heading", 2, "What the page shows"), ("paragraph", 2, "of page 2")]
    assert rejected(made) == [("file://papers/a.pdf#page=3", "needs_ocr")]


def test_a_missing_command_stops_the_stage_by_name(run_stage: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="page_command: /no/such/ocr cannot be run"):
        extracted(run_stage, tmp_path, {"a": pdf([SCANNED], **SCAN)}, page_command=["/no/such/ocr", "{file}"])


def test_captures_are_read_like_files_if_the_recipe_says_so(
    run_stage: Run, warc_artifact: Callable[..., Artifact], warc: Callable[..., bytes]
) -> None:
    data = pdf([PROSE])
    records = [
        warc("http://a.example/a.pdf", body=data, http="Content-Type: application/pdf\r\n", ident="1"),
        warc("http://a.example/b", body=data, http="Content-Type: application/octet-stream\r\n", ident="2"),
        warc("http://a.example/c", ident="3"),
    ]
    made = run_stage(MODULE, ExtractConfig(parsers={"pdf": {}}), {"warc": warc_artifact(records)})
    texts = {str(row["url"]): row["text"] for row in documents(made)}
    assert texts["http://a.example/a.pdf"] == texts["http://a.example/b"] == f"{LEFT}\n\n{RIGHT}"
    assert len(beside(made, "layout/")) == len(beside(made, "pages/")) == 2
    plain = run_stage(MODULE, ExtractConfig(), {"warc": warc_artifact(records)}, version="plain")
    assert ("http://a.example/a.pdf", "mime_application_pdf") in rejected(plain)
    assert plain.files("layout/") == plain.files("pages/") == []


def test_limits_come_from_the_recipe(run_stage: Run, tmp_path: Path) -> None:
    files = {"long": pdf([PROSE] * 3), "short": pdf([PROSE])}
    made = extracted(run_stage, tmp_path, files, max_pages=2)
    assert rejected(made) == [("file://papers/long.pdf", "pdf_too_many_pages")]
    assert len(documents(made)) == 1


@pytest.mark.parametrize("several", soak_but({0}, [SCATTERED, 2]))
def test_any_number_of_workers_writes_the_same_bytes(tmp_path: Path, run_stage: Run, several: int) -> None:
    files = {str(number): pdf([PROSE, SCANNED], **SCAN) + b"%" * number for number in range(6)}
    made = [
        extracted(run_stage, tmp_path, files, run={"workers": workers, "version": f"w{workers}"})
        for workers in (0, several)
    ]
    found = [[(entry.path, entry.sha256) for part in one.parts for entry in part.files] for one in made]
    assert found[0] == found[1]
    assert any(path.startswith("layout/") for path, _ in found[0])


def test_the_documented_settings_are_valid(tmp_path: Path) -> None:
    found = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "pdf.md").read_text(), re.S)
    configs = [ExtractConfig.model_validate(tomllib.loads(block)["extract"]) for block in found]
    assert [config.parsers["pdf"]["max_pages"] for config in configs] == [2_000] * 4
    assert configs[1].parsers["pdf"]["ocr"] == "rapidocr"
    assert configs[2].parsers["pdf"]["endpoint"]["key"] == "env:VISION_KEY"
    assert configs[3].parsers["pdf"]["page_command"] == ["/opt/ocr/read-page", "{file}", "{page}"]


NAMES = ("dolma-datasheet", "earth", "granite-docling", "icwsm-poster", "mars", "pii-invoice", "spam", "lorem-ipsum")


def words(text: str) -> Counter[str]:
    """Words in lower case; a hyphen at a line end (PDFium writes U+FFFE) is undone."""
    return Counter(re.findall(r"\w+", text.replace("\ufffe", "").lower()))


def read(shared_data: Path, name: str) -> PdfText:
    return read_pdf((shared_data / "pdf" / "files" / f"{name}.pdf").read_bytes())


@pytest.mark.parametrize("name", NAMES)
def test_nearly_all_words_are_extracted_and_no_others(shared_data: Path, name: str) -> None:
    found, gold = (
        words(read(shared_data, name).text),
        words((shared_data / "pdf" / "silver_text" / f"{name}.txt").read_text()),
    )
    assert 2 * (found & gold).total() / (found.total() + gold.total()) >= 0.97


def test_two_columns_of_a_paper_are_read_in_order(shared_data: Path) -> None:
    text = read(shared_data, "granite-docling").text
    # Section headings, and sentences that continue from the bottom of a column to the top of the next.
    marks = [
        "Abstract",
        "1 Introduction",
        "proprietary solutions.",
        "With Docling, we recently",
        "2 State of the Art",
        "Additionally, Docling offers",
        "3 Design and Architecture",
        "3.1 Docling Document",
        "3.2 Parser Backends",
        "(e.g., pymupdf (pym 2024))",
        "3.3 Pipelines",
        "4 PDF Conversion Pipeline",
        "4.1 AI Models",
        "5 Performance",
        "5.4 Results",
        "6 Applications",
    ]
    places = [text.find(mark) for mark in marks]
    assert -1 not in places
    assert places == sorted(places)

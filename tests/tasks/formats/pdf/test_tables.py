"""Tables are rows of cells, with rulings and without; exponents and the levels of headings are kept."""

import textwrap
from collections.abc import Sequence

import pytest

from tasks.formats.documents.structure import Block
from tasks.formats.pdf import document
from tasks.formats.pdf.blocks import PdfBlock
from tasks.formats.pdf.document import read_pdf
from tests.tasks.stages.extract.made_pdf import lines, pdf, show

PROSE = textwrap.wrap(
    "The ship went to sea with a crew of nine, and none of them had seen the ice before that winter. They had been "
    "told that the harbour would be open until the first week of November, and that was what the owners believed.",
    70,
)
Cells = Sequence[tuple[float, float, str]]
PORTS: Cells = [
    *[(70, 600, "port"), (200, 600, "days"), (300, 600, "remark")],
    *[(70, 580, "Bergen"), (200, 580, "12"), (300, 580, "ice in the outer")],
    *[(300, 568, "harbour"), (70, 548, "Vardo"), (200, 548, "7"), (300, 548, "none")],
]
ROWS = (("port", "days", "remark"), ("Bergen", "12", "ice in the outer harbour"), ("Vardo", "7", "none"))
HEIGHTS = (612, 594, 562, 542)
ACROSS = "".join(f"65 {y} m 400 {y} l S\n" for y in HEIGHTS)
DOWN = "".join(f"{x} 542 m {x} 612 l S\n" for x in (65, 190, 290, 400))
FILLED = "".join(f"65 {y} 335 0.5 re f\n" for y in HEIGHTS) + "".join(f"{x} 542 0.5 70 re f\n" for x in (65, 190, 290))
ONE_PATH = (
    "".join(f"65 {y} m 400 {y} l " for y in HEIGHTS) + "".join(f"{x} 542 m {x} 612 l " for x in (190, 290)) + "S\n"
)


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[PdfBlock]:
    """The blocks of the file that is read next."""
    found: list[PdfBlock] = []
    join = document.structure

    def kept(read: Sequence[PdfBlock]) -> list[Block]:
        found.extend(read)
        return join(read)

    monkeypatch.setattr(document, "structure", kept)
    return found


def written(cells: Cells) -> str:
    return "".join(show(x, y, text) for x, y, text in cells)


@pytest.mark.parametrize("rulings", [ACROSS, ACROSS + DOWN, FILLED, ONE_PATH], ids=["rules", "grid", "filled", "path"])
def test_a_ruled_table_has_its_rows_with_wrapped_cells_and_its_head(rulings: str, blocks: list[PdfBlock]) -> None:
    text = read_pdf(pdf([lines(60, 760, PROSE) + rulings + written(PORTS) + lines(60, 500, PROSE)])).text
    (table,) = [block for block in blocks if block.kind == "table"]
    assert (table.rows, table.header_rows) == (ROWS, 1)
    assert "port\tdays\tremark\nBergen\t12\tice in the outer harbour\nVardo\t7\tnone" in text
    assert [block.kind for block in blocks] == ["paragraph", "table", "paragraph"]


def test_a_table_without_rulings_has_the_same_rows(blocks: list[PdfBlock]) -> None:
    more: Cells = [(70, 528, "Hull"), (200, 528, "31"), (300, 528, "fog")]
    read_pdf(pdf([lines(60, 760, PROSE) + written([*PORTS, *more])]))
    (table,) = [block for block in blocks if block.kind == "table"]
    assert table.rows == (*ROWS, ("Hull", "31", "fog"))


def test_rows_of_numbers_between_two_rulings_are_rows_of_their_own(blocks: list[PdfBlock]) -> None:
    body: Cells = [(x, 580 - 12 * row, f"{row}{x}") for row in range(4) for x in (70, 200, 300)]
    frame = "".join(f"65 {y} m 400 {y} l S\n" for y in (612, 594, 540)) + DOWN
    read_pdf(pdf([frame + written([*PORTS[:3], *body])]))
    assert [len(block.rows) for block in blocks] == [5]


def test_a_frame_around_text_is_no_table(blocks: list[PdfBlock]) -> None:
    frame = "50 600 500 180 re S\n300 600 m 300 780 l S\n"
    read_pdf(pdf([frame + lines(60, 760, PROSE)]))
    assert "table" not in [block.kind for block in blocks]


def test_formulas_with_numbers_at_the_margin_are_no_table(blocks: list[PdfBlock]) -> None:
    symbols = "/F8 << /Type /Font /Subtype /Type1 /BaseFont /CMMI10 >>"
    rows = "".join(
        show(200, 600 - 24 * at, f"x = y + {at}", font="F8") + show(500, 600 - 24 * at, f"({at})") for at in range(4)
    )
    read_pdf(pdf([lines(60, 760, PROSE) + rows], fonts=symbols))
    assert {block.kind for block in blocks} == {"paragraph", "formula"}


def test_headings_have_the_level_of_their_size(blocks: list[PdfBlock]) -> None:
    titles = show(60, 790, "Of the sea", 20) + show(60, 765, "Of the ice", 16) + show(60, 640, "Of the cold", 16)
    read_pdf(pdf([titles + lines(60, 740, PROSE) + lines(60, 600, PROSE)]))
    assert [block.level for block in blocks] == [1, 2, 0, 2, 0]


@pytest.mark.parametrize(
    ("before", "raised", "read"),
    [
        ("E=mc", "2", "E=mc²"),
        ("about 10", "-7", "about 10⁻⁷"),
        ("an area of 9 km", "2", "an area of 9 km²"),
        ("the harbour", "2", "the harbour2"),
        ("the harbour.", "2", "the harbour.2"),
        ("in 1998", "2", "in 19982"),
        ("the 19", "th", "the 19th"),
        ("what it is", "3", "what it is3"),
    ],
)
def test_an_exponent_is_raised_and_the_mark_of_a_note_is_not(before: str, raised: str, read: str) -> None:
    shown = f"BT /F3 10 Tf 60 700 Td ({before}) Tj /F3 7 Tf 4 Ts ({raised}) Tj ET\n"
    font = "/F3 << /Type /Font /Subtype /Type1 /BaseFont /Courier >>"
    assert read_pdf(pdf([shown], fonts=font)).text == read


def test_an_exponent_of_letters_in_a_formula_is_in_braces() -> None:
    font = "/F8 << /Type /Font /Subtype /Type1 /BaseFont /CMMI10 >>"
    shown = "BT /F8 10 Tf 60 700 Td (e) Tj /F8 7 Tf 4 Ts (ab) Tj ET\n"
    assert read_pdf(pdf([shown], fonts=font)).text == "e^{ab}"

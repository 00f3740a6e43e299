"""Manuals as PDF files for the demo of fine-tuning: topics of the language reference that comes with this Python.

Reads `pydoc_data`, which every CPython has; writes one small PDF file per topic: pages of A4 in Helvetica, with the
headings of the topic in larger type. Equal Pythons give equal bytes.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

PAGE_WIDTH, PAGE_HEIGHT, MARGIN = 595, 842, 60
SMALLEST, LARGEST = 350, 900
"""Characters of a topic that becomes a manual."""

_TITLE, _SECTION, _BODY = 18, 14, 10
_UNDERLINE = re.compile(r"([*=~\-])\1{3,}")
_SPACING = 1.4


class Line(NamedTuple):
    """A line of a page, its size in points, and the room above it."""

    text: str
    size: int
    above: float


def write_manuals(folder: Path) -> list[Path]:
    """Writes the manuals that are not there yet; returns the paths of all, sorted."""
    from pydoc_data.topics import topics

    folder.mkdir(parents=True, exist_ok=True)
    for name, text in sorted(topics.items()):
        path = folder / f"{name}.pdf"
        if SMALLEST <= len(text) <= LARGEST and not path.exists():
            path.write_bytes(manual(text))
    return sorted(folder.glob("*.pdf"))


def manual(text: str) -> bytes:
    """Returns a topic as a PDF file."""
    pages, used = [list[str]()], 0.0
    for line in _topic_lines(text):
        height = line.size * _SPACING
        if used + line.above + height > PAGE_HEIGHT - 2 * MARGIN:
            pages.append([])
            used = 0.0
        used += (line.above if pages[-1] else 0) + height
        font = "F2" if line.size > _BODY else "F1"
        place = f"{MARGIN} {PAGE_HEIGHT - MARGIN - used:.0f}"
        pages[-1].append(f"BT /{font} {line.size} Tf {place} Td ({_escaped(line.text)}) Tj ET\n")
    return _pdf_file(["".join(page) for page in pages])


def _topic_lines(text: str) -> Iterator[Line]:
    """Yields the lines of a topic, a heading for each that is underlined."""
    rows, number, blank = text.split("\n"), 0, False
    while number < len(rows):
        row, following = rows[number], rows[number + 1] if number + 1 < len(rows) else ""
        if row.strip() and _UNDERLINE.fullmatch(following):
            yield Line(row.strip(), _TITLE if following[0] == "*" else _SECTION, 2.0 * _BODY)
            number += 1
        elif row.strip():
            yield Line(row.rstrip(), _BODY, float(_BODY) if blank else 0.0)
        blank = not row.strip()
        number += 1


def _escaped(text: str) -> str:
    """Returns a text of Windows' Latin alphabet for a string of PDF, in octal where it is not ASCII."""
    codes = text.encode("cp1252", "replace")
    return "".join(chr(code) if 32 <= code < 127 and chr(code) not in r"\()" else f"\\{code:03o}" for code in codes)


def _pdf_file(pages: list[str]) -> bytes:
    """Returns a PDF file with a catalog, fonts, and pages of these contents."""
    objects: dict[int, bytes] = {}
    first = 5
    kids = " ".join(f"{first + 2 * number} 0 R" for number in range(len(pages)))
    objects[1] = b"<< /Type /Catalog /Pages 2 0 R >>"
    objects[2] = f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode()
    for number, font in ((3, "Helvetica"), (4, "Helvetica-Bold")):
        objects[number] = f"<< /Type /Font /Subtype /Type1 /BaseFont /{font} /Encoding /WinAnsiEncoding >>".encode()
    for number, content in enumerate(pages):
        page = first + 2 * number
        resources = "<< /Font << /F1 3 0 R /F2 4 0 R >> >>"
        objects[page] = (
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {PAGE_WIDTH} {PAGE_HEIGHT}] /Resources {resources} "
            f"/Contents {page + 1} 0 R >>"
        ).encode()
        objects[page + 1] = f"<< /Length {len(content)} >>\nstream\n{content}endstream".encode()
    return _assembled(objects)


def _assembled(objects: Mapping[int, bytes]) -> bytes:
    out, places = bytearray(b"%PDF-1.4\n"), []
    for number, body in sorted(objects.items()):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start)
    return bytes(out)

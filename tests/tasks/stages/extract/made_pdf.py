"""PDF files made by hand: the smallest writer that gives every object its place."""

import zlib
from collections.abc import Mapping, Sequence

A4 = (595, 842)


def show(x: float, y: float, text: str, size: float = 10, font: str = "F1", mode: int = 0) -> str:
    """The operators that show one line; x and y in points from the lower left corner."""
    escaped = text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
    return f"BT {mode} Tr /{font} {size} Tf {x} {y} Td ({escaped}) Tj ET\n"


def lines(x: float, y: float, texts: Sequence[str], size: float = 10, font: str = "F1") -> str:
    """Lines below one another."""
    return "".join(show(x, y - 1.2 * size * number, text, size, font) for number, text in enumerate(texts))


def stream(data: bytes, entries: str = "", *, packed: bool = False) -> bytes:
    """A stream object, deflated if `packed`."""
    if packed:
        data, entries = zlib.compress(data, 1), entries + " /Filter /FlateDecode"
    return b"<< /Length %d %s >>\nstream\n%s\nendstream" % (len(data), entries.encode(), data)


def assembled(objects: Mapping[int, bytes], trailer: str = "") -> bytes:
    """A file of the objects by number, of which 1 is the catalog."""
    out = bytearray(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n")
    places = {}
    for number, body in sorted(objects.items()):
        places[number] = len(out)
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start, size = len(out), max(objects) + 1
    out += b"xref\n0 %d\n0000000000 65535 f \n" % size
    for number in range(1, size):
        out += b"%010d 00000 n \n" % places[number] if number in places else b"0000000000 65535 f \n"
    out += b"trailer\n<< /Size %d /Root 1 0 R %s >>\nstartxref\n%d\n%%%%EOF\n" % (size, trailer.encode(), start)
    return bytes(out)


FONTS = (
    "/Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    " /F2 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica-Bold >> {more} >>"
)


def pdf(
    pages: Sequence[str | bytes],
    *,
    others: Mapping[int, bytes] | None = None,
    resources: str = "",
    fonts: str = "",
    page: str = "",
    packed: bool = False,
    trailer: str = "",
) -> bytes:
    """A file with these contents of pages.

    `others` are further objects by number, from 1000 on; `resources`, `fonts` and `page` further entries of all pages.
    """
    objects = {1: b"<< /Type /Catalog /Pages 2 0 R >>", **(others or {})}
    kids = []
    for number, content in enumerate(pages):
        data = content if isinstance(content, bytes) else content.encode("latin-1")
        at = 10 + 2 * number
        kids.append(f"{at} 0 R")
        objects[at] = (
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {A4[0]} {A4[1]}] /Contents {at + 1} 0 R {page}"
            f" /Resources << {FONTS.format(more=fonts)} {resources} >> >>"
        ).encode()
        objects[at + 1] = stream(data, packed=packed)
    objects[2] = f"<< /Type /Pages /Count {len(kids)} /Kids [{' '.join(kids)}] >>".encode()
    return assembled(objects, trailer)


def image(width: int = 8, height: int = 8) -> bytes:
    """A grey image."""
    entries = (
        f"/Type /XObject /Subtype /Image /Width {width} /Height {height} /ColorSpace /DeviceGray /BitsPerComponent 8"
    )
    return stream(b"\x80" * width * height, entries)


SCANNED = "q 595 0 0 842 0 0 cm /Im Do Q\n"
"""Draws the image `/Im` over the page; needs `resources=IMAGE, others={1000: image()}`."""
IMAGE = "/XObject << /Im 1000 0 R >>"


COURIER = "/F3 << /Type /Font /Subtype /Type1 /BaseFont /Courier >>"
ANY = "/FU 1100 0 R"
"""The font of `Letters`."""


class Letters:
    """A font of any letters, each of them a box half a size wide, and what is written with it."""

    def __init__(self, letters: str) -> None:
        self._codes = {letter: code for code, letter in enumerate(sorted(set(letters)), 0x21)}

    @property
    def others(self) -> dict[int, bytes]:
        """Its objects, for `pdf(..., fonts=ANY, others=...)`."""
        pairs = "\n".join(f"<{code:02x}> <{ord(letter):04x}>" for letter, code in self._codes.items())
        to_unicode = (
            "/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapType 2 def\n"
            "1 begincodespacerange <00> <ff> endcodespacerange\n"
            f"{len(self._codes)} beginbfchar\n{pairs}\nendbfchar\nendcmap end end"
        )
        count = len(self._codes)
        names = " ".join(f"/g{code}" for code in self._codes.values())
        procs = " ".join(f"/g{code} 1101 0 R" for code in self._codes.values())
        return {
            1100: f"<< /Type /Font /Subtype /Type3 /FontBBox [0 -200 500 800] /FontMatrix [0.001 0 0 0.001 0 0]"
            f" /FirstChar 33 /LastChar {32 + count} /Widths [{'500 ' * count}] /CharProcs << {procs} >>"
            f" /Encoding << /Type /Encoding /Differences [33 {names}] >> /ToUnicode 1103 0 R >>".encode(),
            1101: stream(b"500 0 0 -200 500 800 d1 0 -200 500 1000 re f"),
            1103: stream(to_unicode.encode()),
        }

    def show(self, x: float, y: float, text: str, size: float = 10) -> str:
        """The operators that show a line of letters as they stand from left to right; spaces are left out."""
        return "".join(
            f"BT /FU {size} Tf {x + 0.5 * size * at} {y} Td <{self._codes[letter]:02x}> Tj ET\n"
            for at, letter in enumerate(text)
            if letter != " "
        )

"""Hand-made PDF files; some are broken, or hang or crash their reader."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache

A4 = (595, 842)


def show(x: float, y: float, text: str, size: float = 10, font: str = "F1", mode: int = 0) -> str:
    """The operators that show one line; x and y in points from the lower left corner."""
    escaped = text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
    return f"BT {mode} Tr /{font} {size} Tf {x} {y} Td ({escaped}) Tj ET\n"


def lines(x: float, y: float, texts: Sequence[str], size: float = 10, font: str = "F1") -> str:
    """Lines, one below the other."""
    return "".join(show(x, y - 1.2 * size * number, text, size, font) for number, text in enumerate(texts))


def stream(data: bytes, entries: str = "", *, packed: bool = False) -> bytes:
    """A stream object, deflated if `packed`."""
    if packed:
        data, entries = zlib.compress(data, 1), entries + " /Filter /FlateDecode"
    return b"<< /Length %d %s >>\nstream\n%s\nendstream" % (len(data), entries.encode(), data)


def assembled(objects: Mapping[int, bytes], trailer: str = "") -> bytes:
    """A file of numbered objects; 1 is the catalog."""
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
    """A file with these page contents.

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
    """A font of any letters, each a box half a size wide, and operators that write with it."""

    def __init__(self, letters: str, wrong: Mapping[str, str] | None = None) -> None:
        """Makes the font; `wrong` has UTF-16 in hexadecimal digits to which its map takes some of the letters."""
        self._codes = {letter: code for code, letter in enumerate(sorted(set(letters)), 0x21)}
        self._wrong = wrong or {}

    @property
    def others(self) -> dict[int, bytes]:
        """Its objects, for `pdf(..., fonts=ANY, others=...)`."""
        pairs = "\n".join(
            f"<{code:02x}> <{self._wrong.get(letter, f'{ord(letter):04x}')}>" for letter, code in self._codes.items()
        )
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
        """The operators that show a line of letters from left to right, without spaces."""
        return "".join(
            f"BT /FU {size} Tf {x + 0.5 * size * at} {y} Td <{self._codes[letter]:02x}> Tj ET\n"
            for at, letter in enumerate(text)
            if letter != " "
        )


_CATALOG = b"<< /Type /Catalog /Pages 2 0 R >>"
_GOOD = pdf([show(72, 700, "A line of text.")])
_FORMS = "/XObject << /X 1000 0 R >>"


def _one_page(page: str, others: dict[int, bytes] | None = None, trailer: str = "") -> bytes:
    pages = b"<< /Type /Pages /Count 1 /Kids [3 0 R] >>"
    return assembled({1: _CATALOG, 2: pages, 3: page.encode(), **(others or {})}, trailer)


def _encrypted(handler: str) -> bytes:
    entries = f"/Filter /{handler} /V 1 /R 2 /P -4 /O <{'41' * 32}> /U <{'42' * 32}>"
    return pdf([show(72, 700, "x")], trailer=f"/Encrypt << {entries} >> /ID [<00> <00>]")


def _pages_that_are_their_own_kids() -> bytes:
    return assembled({1: _CATALOG, 2: b"<< /Type /Pages /Count 5 /Kids [2 0 R 2 0 R] >>"})


def _deep_page_tree(depth: int) -> bytes:
    levels = {at: b"<< /Type /Pages /Count 1 /Kids [%d 0 R] >>" % (at + 1) for at in range(2, depth)}
    return assembled({1: _CATALOG, **levels, depth: b"<< /Type /Page /MediaBox [0 0 9 9] >>"})


def _one_page_many_times(count: int) -> bytes:
    kids = b"<< /Type /Pages /Count %d /Kids [%s] >>" % (count, b"3 0 R " * count)
    return assembled({1: _CATALOG, 2: kids, 3: b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] >>"})


def _false_count() -> bytes:
    return assembled({1: _CATALOG, 2: b"<< /Type /Pages /Count 2000000000 /Kids [] >>"})


@cache
def _spaces(size: int) -> bytes:
    """A deflated stream of spaces made of one repeated block; readers ignore its wrong checksum."""
    packer = zlib.compressobj(9)
    head = packer.compress(b" " * (1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(b" " * (1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + block * ((size >> 20) - 1) + packer.flush()


def _bomb(layers: int = 1, size: int = 3 << 30) -> bytes:
    data = _spaces(size)
    for _ in range(layers - 1):
        data = zlib.compress(data, 9)
    return _one_page(
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 4 0 R >>",
        {4: stream(data, f"/Filter [{'/FlateDecode ' * layers}]")},
    )


def _packed_page(content: bytes, **options: str) -> bytes:
    return pdf([content], packed=True, **options)  # type: ignore[arg-type]


def _many_objects(count: int) -> bytes:
    return _GOOD + b"".join(b"%d 0 obj\n1\nendobj\n" % number for number in range(100, 100 + count))


def _object_stream(count: int) -> bytes:
    """A million objects in a compressed stream, with a compressed table."""
    places = b" ".join(b"%d %d" % (10 + number, 2 * number) for number in range(count)) + b" "
    held = stream(places + b"1 " * count, f"/Type /ObjStm /N {count} /First {len(places)}", packed=True)
    head = b"%PDF-1.5\n"
    parts = {1: _CATALOG, 2: b"<< /Type /Pages /Count 1 /Kids [3 0 R] >>", 4: held}
    parts[3] = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 10 0 R >>"
    out, places_of = bytearray(head), {}
    for number, body in parts.items():
        places_of[number] = len(out)
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    rows = bytearray()
    for number in range(10 + count):
        if number >= 10:
            rows += b"\2" + (4).to_bytes(4, "big") + (number - 10).to_bytes(4, "big")
        else:
            rows += b"\1" + places_of.get(number, 0).to_bytes(4, "big") + bytes(4)
    start = len(out)
    entries = f"/Type /XRef /Size {10 + count} /W [1 4 4] /Root 1 0 R"
    out += b"9 0 obj\n%s\nendobj\nstartxref\n%d\n%%%%EOF\n" % (stream(bytes(rows), entries, packed=True), start)
    return bytes(out)


def _form(body: bytes, entries: str = "") -> bytes:
    return stream(body, f"/Type /XObject /Subtype /Form /BBox [0 0 9 9] {entries}")


def _form_in_itself() -> bytes:
    return pdf(["/X Do"], resources=_FORMS, others={1000: _form(b"/X Do", f"/Resources << {_FORMS} >>")})


def _forms_in_forms(levels: int = 9) -> bytes:
    """Each form draws the next one ten times."""
    forms = {
        1000 + at: _form(b"/X Do\n" * 10, f"/Resources << /XObject << /X {1001 + at} 0 R >> >>") for at in range(levels)
    }
    return pdf(["/X Do"], resources=_FORMS, others={**forms, 1000 + levels: _form(b"0 0 m 1 1 l S")})


def _map_bomb() -> bytes:
    ranges = b"100 beginbfrange\n" + b"<0000> <FFFF> <0000>\n" * 100 + b"endbfrange\n"
    cmap = b"/CIDInit /ProcSet findresource begin begincmap\n" + ranges * 2_000 + b"endcmap end end"
    font = (
        "/F3 << /Type /Font /Subtype /Type0 /BaseFont /A /Encoding /Identity-H /ToUnicode 1000 0 R /DescendantFonts"
        " [<< /Type /Font /Subtype /CIDFontType2 /BaseFont /A"
        " /CIDSystemInfo << /Registry (A) /Ordering (I) /Supplement 0 >> >>] >>"
    )
    content = "BT /F3 9 Tf 9 9 Td <00010002> Tj ET"
    return pdf([content], fonts=font, others={1000: stream(cmap, packed=True)})


def _glyph_in_itself() -> bytes:
    font = (
        "/F3 << /Type /Font /Subtype /Type3 /FontBBox [0 0 9 9] /FontMatrix [1 0 0 1 0 0] /FirstChar 97 /LastChar 97"
        " /Widths [9] /Encoding << /Differences [97 /a] >> /CharProcs << /a 1000 0 R >> /Resources 1001 0 R >>"
    )
    proc = stream(b"9 0 d0 BT /F3 9 Tf (aaaaaaaaaa) Tj ET")
    resources = f"<< /Font << {font} >> >>".encode()
    return pdf(["BT /F3 9 Tf 9 9 Td (a) Tj ET"], fonts=font, others={1000: proc, 1001: resources})


def _content(entries: str, data: bytes = b"x") -> bytes:
    body = b"<< %s >>\nstream\n%s\nendstream" % (entries.encode(), data)
    return _one_page("<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 4 0 R >>", {4: body})


HOSTILE: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "no_pdf": lambda: b"<html><body>Not found</body></html>",
    "header_alone": lambda: b"%PDF-1.7\n",
    "noise": lambda: b"%PDF-1.4\n" + bytes(range(256)) * 4_000,
    "truncated": lambda: _GOOD[:150],
    "no_pages": lambda: assembled({1: b"<< /Type /Catalog >>"}),
    "start_beyond_the_end": lambda: _GOOD[:60] + b"startxref\n99999999999\n%%EOF\n",
    "table_before_itself": lambda: assembled({1: _CATALOG, 2: b"<< /Type /Pages /Count 0 /Kids [] >>"}, "/Prev 15"),
    "huge_table": lambda: (
        b"%PDF-1.4\nxref\n0 2000000000\n0000000000 65535 f \ntrailer\n<< /Root 1 0 R >>\nstartxref\n9\n%%EOF"
    ),
    "password": lambda: _encrypted("Standard"),
    "unknown_handler": lambda: _encrypted("Strange"),
    "own_kids": _pages_that_are_their_own_kids,
    "deep_page_tree": lambda: _deep_page_tree(50_000),
    "many_pages": lambda: _one_page_many_times(100_000),
    "false_count": _false_count,
    "bomb": lambda: _bomb(),
    "bomb_in_bomb": lambda: _bomb(2),
    "million_objects": lambda: _many_objects(1_000_000),
    "million_objects_packed": lambda: _object_stream(1_000_000),
    "million_paths": lambda: _packed_page(b"0 0 m 9 9 l S\n" * 1_000_000),
    "many_characters": lambda: _packed_page(b"BT /F1 9 Tf 9 9 Td " + (b"(" + b"x" * 30_000 + b") Tj ") * 1_000 + b"ET"),
    "spelt_out_bomb": lambda: _packed_page(
        b"BT /F1 9 Tf 9 9 Td " + (b"/Span << /ActualText (" + b"x" * 30_000 + b") >> BDC (a) Tj EMC ") * 1_000 + b"ET"
    ),
    "million_states": lambda: _packed_page(b"q " * 3_000_000),
    "million_arrays": lambda: _packed_page(b"[" * 3_000_000),
    "deep_arrays": lambda: _one_page("[" * 1_000_000 + "]" * 1_000_000),
    "deep_dictionaries": lambda: _one_page("<< /A " * 500_000 + ">>" * 500_000),
    "form_in_itself": _form_in_itself,
    "forms_in_forms": _forms_in_forms,
    "map_bomb": _map_bomb,
    "glyph_in_itself": _glyph_in_itself,
    "negative_length": lambda: _content("/Length -5"),
    "huge_length": lambda: _content("/Length 4294967295"),
    "length_is_the_stream": lambda: _content("/Length 4 0 R"),
    "predictor": lambda: _content(
        "/Length 11 /Filter /FlateDecode /DecodeParms << /Predictor 15 /Colors 2147483647 /Columns 2147483647 >>",
        zlib.compress(b"abc"),
    ),
    "huge_image": lambda: pdf(
        [SCANNED], resources=IMAGE, others={1000: image().replace(b"Width 8", b"Width 2147483647")}
    ),
    "no_area": lambda: _one_page("<< /Type /Page /Parent 2 0 R /MediaBox [9 9 9 9] >>"),
}

"""Characters of the pages of a PDF file, with their boxes and fonts.

Reads the bytes of a file with PDFium (pypdfium2). Boxes are in points, from the upper left corner of the page as most
of its text runs (`turn_of`). The face of a character has the size and direction of its text object, and what the font
says of itself.
"""

import ctypes
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import pypdfium2.raw as pdfium

from tasks.formats.pdf.characters import NAMED, Char, Face, RawPage, turn_of, upright

_INVISIBLE = (pdfium.FPDF_TEXTRENDERMODE_INVISIBLE, pdfium.FPDF_TEXTRENDERMODE_CLIP)
_BOLD_NAMES = ("bold", "black", "heavy", "cmb1", "bx", "-medi", "demi")
_MATH_NAMES = ("cmmi", "cmsy", "cmex", "msbm", "msam", "symbol", "math", "eufm")
_MONO_NAMES = (
    "mono",
    "courier",
    "cmtt",
    "ectt",
    "sftt",
    "xtt",
    "sltt",
    "nimbusmon",
    "typewriter",
    "consol",
    "menlo",
    "inconsolata",
    "sourcecode",
)
_FIXED_PITCH = 1
"""Flag of a font descriptor (ISO 32000-1, table 123)."""

_EVERY = 4
"""Whether a character has a Unicode value is asked of so many, and taken for those between: a call takes 0.4 µs."""
_MOST_NOTES = 1_000
_FLATTENED = pdfium.FLATTEN_SUCCESS
_IMAGE, _FORM, _TEXT = pdfium.FPDF_PAGEOBJ_IMAGE, pdfium.FPDF_PAGEOBJ_FORM, pdfium.FPDF_PAGEOBJ_TEXT


class _Font(NamedTuple):
    weight: int
    math: bool
    mono: bool


class Faces:
    """Faces of one page, each made once."""

    def __init__(self) -> None:
        self._equal: dict[Face, Face] = {}
        self._fonts: dict[int, _Font] = {}
        self._spelt: dict[int, int] = {}

    def of(self, drawn: Any) -> tuple[Face, bool]:
        """Returns the face of a text object, and whether its text has been given already.

        A text for several objects (ActualText of marked content) is given by PDFium with each of them.
        """
        mark, address = _spelling(drawn), ctypes.addressof(drawn.contents)
        again = mark != 0 and self._spelt.setdefault(mark, address) != address
        size, matrix = ctypes.c_float(), pdfium.FS_MATRIX()
        pdfium.FPDFTextObj_GetFontSize(drawn, size)
        pdfium.FPDFPageObj_GetMatrix(drawn, matrix)
        scale = math.hypot(matrix.c, matrix.d) or 1.0
        turn = round(math.atan2(matrix.b, matrix.a) / (math.pi / 2)) % 4
        font = self._font(pdfium.FPDFTextObj_GetFont(drawn))
        invisible = pdfium.FPDFTextObj_GetTextRenderMode(drawn) in _INVISIBLE
        made = Face(abs(size.value * scale), font.weight, font.math, font.mono, invisible, bool(mark), turn)
        return self._equal.setdefault(made, made), again

    def _font(self, font: Any) -> _Font:
        if not font:
            return _Font(weight=0, math=False, mono=False)
        address = ctypes.addressof(font.contents)
        if address not in self._fonts:
            name = _name(font)
            weight = max(0, pdfium.FPDFFont_GetWeight(font)) + NAMED * any(word in name for word in _BOLD_NAMES)
            fixed = pdfium.FPDFFont_GetFlags(font) & _FIXED_PITCH or any(word in name for word in _MONO_NAMES)
            self._fonts[address] = _Font(weight, any(word in name for word in _MATH_NAMES), bool(fixed))
        return self._fonts[address]


def _spelling(drawn: Any) -> int:
    """Returns the address of the mark that spells the text of an object out, 0 without one."""
    for at in range(pdfium.FPDFPageObj_CountMarks(drawn)):
        mark = pdfium.FPDFPageObj_GetMark(drawn, at)
        if mark and pdfium.FPDFPageObjMark_GetParamValueType(mark, b"ActualText") == pdfium.FPDF_OBJECT_STRING:
            return ctypes.addressof(mark.contents)
    return 0


def _name(font: Any) -> str:
    buffer = ctypes.create_string_buffer(256)
    size = pdfium.FPDFFont_GetBaseFontName(font, buffer, 256)
    name = buffer.value.decode("utf-8", "replace").lower() if 0 < size <= 256 else ""
    return name[7:] if name[6:7] == "+" else name  # without the tag of a subset


class Unreadable(Exception):
    """A file gives no text, for a reason in machine words."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Limits:
    """What one file may take.

    Attributes:
        pages: pages of a file.
        objects: indirect objects of a file, as they are written in it, and objects of a page.
        chars: characters of a file.
        cpu_s: CPU seconds, checked between pages.
    """

    pages: int = 2_000
    objects: int = 500_000
    chars: int = 20_000_000
    cpu_s: float = 60.0


@contextmanager
def opened(data: bytes, limits: Limits) -> Iterator[Any]:
    """Yields PDFium's handle of a file.

    Raises:
        Unreadable: `pdf_encrypted`, `pdf_damaged`, `pdf_too_many_objects` or `pdf_too_many_pages`.
    """
    if data.count(b" obj") > limits.objects:
        raise Unreadable("pdf_too_many_objects")
    pdfium.FPDF_InitLibrary()
    document = pdfium.FPDF_LoadMemDocument64(data, len(data), None)
    if not document:
        locked = pdfium.FPDF_GetLastError() in (pdfium.FPDF_ERR_PASSWORD, pdfium.FPDF_ERR_SECURITY)
        raise Unreadable("pdf_encrypted" if locked else "pdf_damaged")
    try:
        count = pdfium.FPDF_GetPageCount(document)
        if count > limits.pages:
            raise Unreadable("pdf_too_many_pages")
        if count < 1:
            raise Unreadable("pdf_damaged")
        yield document
    finally:
        pdfium.FPDF_CloseDocument(document)


def title_of(document: Any) -> str:
    """Returns the title that the file names for itself, or ""."""
    size = pdfium.FPDF_GetMetaText(document, b"Title", None, 0)
    if not 2 < size <= 2_000:
        return ""
    buffer = ctypes.create_string_buffer(size)
    pdfium.FPDF_GetMetaText(document, b"Title", buffer, size)
    return buffer.raw[: size - 2].decode("utf-16-le", "replace").strip()


def pages(document: Any, limits: Limits) -> Iterator[RawPage]:
    """Yields the pages of a file in order; one that cannot be read has no characters.

    Raises:
        Unreadable: `pdf_timeout`, `pdf_too_many_objects` or `pdf_too_many_chars`.
    """
    started, chars = time.process_time(), 0
    for index in range(pdfium.FPDF_GetPageCount(document)):
        handle = _loaded(document, index)
        if not handle:
            yield RawPage(index + 1, 0, 0)
            continue
        try:
            page = _page(handle, index + 1, limits, chars)
        finally:
            pdfium.FPDF_ClosePage(handle)
        chars += len(page.chars)
        if time.process_time() - started > limits.cpu_s:
            raise Unreadable("pdf_timeout")
        yield page


def _page(handle: Any, number: int, limits: Limits, chars: int) -> RawPage:
    objects = pdfium.FPDFPage_CountObjects(handle)
    if objects > limits.objects:
        raise Unreadable("pdf_too_many_objects")
    left, bottom, right, top = _media_box(handle)
    turn = pdfium.FPDFPage_GetRotation(handle) % 4
    page = RawPage(number, right - left, top - bottom, objects=objects, rotation=turn)
    page.chars = _text(handle, left, top, limits.chars - chars)
    if (reading := turn_of(page.chars)) != turn:  # PDFium makes lines of what stands upright as a viewer shows it
        pdfium.FPDFPage_SetRotation(handle, reading)
        page.chars = _text(handle, left, top, limits.chars - chars)
    _images(handle, page)
    return upright(page)


def _loaded(document: Any, index: int) -> Any:
    """Returns the handle of a page, what is filled into its form and typed over it included."""
    handle = pdfium.FPDF_LoadPage(document, index)
    if handle and _has_fields(handle) and pdfium.FPDFPage_Flatten(handle, pdfium.FLAT_NORMALDISPLAY) == _FLATTENED:
        pdfium.FPDF_ClosePage(handle)
        handle = pdfium.FPDF_LoadPage(document, index)
    return handle


def _has_fields(handle: Any) -> bool:
    for at in range(min(pdfium.FPDFPage_GetAnnotCount(handle), _MOST_NOTES)):
        note = pdfium.FPDFPage_GetAnnot(handle, at)
        kind = pdfium.FPDFAnnot_GetSubtype(note)
        pdfium.FPDFPage_CloseAnnot(note)
        if kind in (pdfium.FPDF_ANNOT_WIDGET, pdfium.FPDF_ANNOT_FREETEXT):
            return True
    return False


def _text(handle: Any, left: float, top: float, most: int) -> list[Char]:
    text = pdfium.FPDFText_LoadPage(handle)
    if not text:
        return []
    try:
        if pdfium.FPDFText_CountChars(text) > most:
            raise Unreadable("pdf_too_many_chars")
        return _chars(text, left, top)
    finally:
        pdfium.FPDFText_ClosePage(text)


def _media_box(handle: Any) -> tuple[float, float, float, float]:
    box = pdfium.FS_RECTF()
    if pdfium.FPDF_GetPageBoundingBox(handle, box) and box.right > box.left and box.top > box.bottom:
        return box.left, box.bottom, box.right, box.top
    return 0.0, 0.0, pdfium.FPDF_GetPageWidthF(handle), pdfium.FPDF_GetPageHeightF(handle)


def _chars(text: Any, left: float, top: float) -> list[Char]:
    code_of, object_of = pdfium.FPDFText_GetUnicode, pdfium.FPDFText_GetTextObject
    box_of, unmapped_of = pdfium.FPDFText_GetLooseCharBox, pdfium.FPDFText_HasUnicodeMapError
    addressof, new = ctypes.addressof, tuple.__new__
    unmapped = left_out = False
    made = Faces()
    faces: dict[int, tuple[Face, bool]] = {}
    box = pdfium.FS_RECTF()
    place = ctypes.byref(box)
    found = []
    for at in range(pdfium.FPDFText_CountChars(text)):
        code = code_of(text, at)
        drawn = object_of(text, at)
        if not drawn:
            if not left_out:  # a space that PDFium has put behind what is left out says nothing
                found.append(Char(code, 0, 0, 0, 0, None))
            continue
        address = addressof(drawn.contents)
        if address not in faces:
            faces[address] = made.of(drawn)
        face, left_out = faces[address]
        if left_out:
            continue
        box_of(text, at, place)
        x0, x1 = box.left - left, box.right - left
        if at % _EVERY == 0:
            unmapped = unmapped_of(text, at) == 1
        found.append(new(Char, (code, x0, top - box.top, x1, top - box.bottom, face, unmapped)))
    return found


def _images(handle: Any, page: RawPage) -> None:
    """Sets `image_share` and `covered`."""
    area = page.width * page.height
    last_text = cover = -1
    edges = [ctypes.c_float() for _ in range(4)]
    for at in range(page.objects):
        drawn = pdfium.FPDFPage_GetObject(handle, at)
        kind = pdfium.FPDFPageObj_GetType(drawn)
        if kind == _TEXT:
            last_text = at
        elif kind == _IMAGE or (kind == _FORM and _is_image(drawn)):
            if not pdfium.FPDFPageObj_GetBounds(drawn, *edges):
                continue
            x0, y0, x1, y1 = (edge.value for edge in edges)
            share = min(1.0, max(0.0, x1 - x0) * max(0.0, y1 - y0) / area) if area else 0.0
            page.image_share = max(page.image_share, share)
            cover = at if share > 0.8 else cover
    page.covered = cover > last_text >= 0


def _is_image(form: Any) -> bool:
    """Returns whether a form consists of images alone."""
    count = pdfium.FPDFFormObj_CountObjects(form)
    kinds = {pdfium.FPDFPageObj_GetType(pdfium.FPDFFormObj_GetObject(form, at)) for at in range(min(count, 100))}
    return kinds == {_IMAGE}

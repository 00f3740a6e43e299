"""Reader of the pages of a PDF file: characters with their boxes and fonts.

Reads the bytes of a file with PDFium (pypdfium2). Boxes are in points from the upper left corner of the page, in the
orientation of most of its text (`turn_of`). The face of a character has the size and direction of its text object, and
properties of the font.
"""

import ctypes
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import pypdfium2.raw as pdfium

from tasks.formats.documents.layout import Box
from tasks.formats.pdf.characters import NAMED, REPLACEMENT, TEX, Char, Face, RawPage, turn_of, upright
from tasks.formats.pdf.rulings import THIN

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

_UNMAPPED_STRIDE = 4
"""PDFium is queried for the Unicode value of every fourth character only, because a call takes 0.4 µs."""
_WIDTHLESS = (0x200B, 0x2060, 0xFEFF)
_VANISHING = frozenset((*range(0x20), *range(0xD800, 0xE000), *_WIDTHLESS)) - TEX.keys() - {0x02, 0x09, 0x0A, 0x0D}
"""Codes without a visible character: control codes except PDFium's for hyphens and breaks, halves of surrogate pairs,
and spaces without width."""
_LEAST_INK = 0.02
"""Height of visible ink in font sizes; a hyphen is at least 0.04 high."""
_MAX_ANNOTATIONS = 1_000
_FLATTENED = pdfium.FLATTEN_SUCCESS
_IMAGE, _FORM, _TEXT = pdfium.FPDF_PAGEOBJ_IMAGE, pdfium.FPDF_PAGEOBJ_FORM, pdfium.FPDF_PAGEOBJ_TEXT
_PATH, _MOVE, _LINE = pdfium.FPDF_PAGEOBJ_PATH, pdfium.FPDF_SEGMENT_MOVETO, pdfium.FPDF_SEGMENT_LINETO
_MOST_OBJECTS, _MOST_PATHS, _MOST_STEPS = 20_000, 3_000, 200
"""Maximum number of objects of a page that are searched for rulings, of its paths and of their lines together, and of
the lines of one path; more are drawings."""


class _Font(NamedTuple):
    weight: int
    math: bool
    mono: bool


class FaceCache:
    """Faces of one page; equal faces share one object."""

    def __init__(self) -> None:
        self._equal: dict[Face, Face] = {}
        self._fonts: dict[int, _Font] = {}
        self._marks: dict[int, int] = {}

    def of(self, text_object: Any) -> tuple[Face, bool, float]:
        """Returns the face of a text object, whether its text repeats that of an earlier object, and its baseline.

        PDFium returns a text for several objects (ActualText of marked content) with each of them.
        """
        mark, address = _actual_text_mark(text_object), ctypes.addressof(text_object.contents)
        is_repeat = mark != 0 and self._marks.setdefault(mark, address) != address
        size, matrix = ctypes.c_float(), pdfium.FS_MATRIX()
        pdfium.FPDFTextObj_GetFontSize(text_object, size)
        pdfium.FPDFPageObj_GetMatrix(text_object, matrix)
        scale = math.hypot(matrix.c, matrix.d) or 1.0
        turn = round(math.atan2(matrix.b, matrix.a) / (math.pi / 2)) % 4
        font = self._font(pdfium.FPDFTextObj_GetFont(text_object))
        invisible = pdfium.FPDFTextObj_GetTextRenderMode(text_object) in _INVISIBLE
        face = Face(abs(size.value * scale), font.weight, font.math, font.mono, invisible, bool(mark), turn)
        return self._equal.setdefault(face, face), is_repeat, matrix.f

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


def _actual_text_mark(text_object: Any) -> int:
    """Returns the address of the mark with the ActualText of an object, or 0 if it has none."""
    for index in range(pdfium.FPDFPageObj_CountMarks(text_object)):
        mark = pdfium.FPDFPageObj_GetMark(text_object, index)
        if mark and pdfium.FPDFPageObjMark_GetParamValueType(mark, b"ActualText") == pdfium.FPDF_OBJECT_STRING:
            return ctypes.addressof(mark.contents)
    return 0


def _name(font: Any) -> str:
    buffer = ctypes.create_string_buffer(256)
    size = pdfium.FPDFFont_GetBaseFontName(font, buffer, 256)
    name = buffer.value.decode("utf-8", "replace").lower() if 0 < size <= 256 else ""
    return name[7:] if name[6:7] == "+" else name  # without the tag of a font subset


class PdfError(Exception):
    """A file cannot be read; `reason` is one of the rejection reasons `pdf_*`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Limits:
    """Resource limits for one file.

    Attributes:
        pages: maximum number of pages.
        objects: maximum number of indirect objects in the file, and of objects on a page.
        chars: maximum number of characters in the file.
        cpu_s: maximum CPU seconds, checked between pages.
    """

    pages: int = 2_000
    objects: int = 500_000
    chars: int = 20_000_000
    cpu_s: float = 60.0


@contextmanager
def open_pdf(data: bytes, limits: Limits) -> Iterator[Any]:
    """Opens a file and yields PDFium's handle.

    Raises:
        PdfError: `pdf_encrypted`, `pdf_damaged`, `pdf_too_many_objects` or `pdf_too_many_pages`.
    """
    if data.count(b" obj") > limits.objects:
        raise PdfError("pdf_too_many_objects")
    pdfium.FPDF_InitLibrary()
    document = pdfium.FPDF_LoadMemDocument64(data, len(data), None)
    if not document:
        locked = pdfium.FPDF_GetLastError() in (pdfium.FPDF_ERR_PASSWORD, pdfium.FPDF_ERR_SECURITY)
        raise PdfError("pdf_encrypted" if locked else "pdf_damaged")
    try:
        count = pdfium.FPDF_GetPageCount(document)
        if count > limits.pages:
            raise PdfError("pdf_too_many_pages")
        if count < 1:
            raise PdfError("pdf_damaged")
        yield document
    finally:
        pdfium.FPDF_CloseDocument(document)


def title_of(document: Any) -> str:
    """Returns the title in the metadata of the file, or ""."""
    size = pdfium.FPDF_GetMetaText(document, b"Title", None, 0)
    if not 2 < size <= 2_000:
        return ""
    buffer = ctypes.create_string_buffer(size)
    pdfium.FPDF_GetMetaText(document, b"Title", buffer, size)
    return buffer.raw[: size - 2].decode("utf-16-le", "replace").strip()


def pages(document: Any, limits: Limits) -> Iterator[RawPage]:
    """Yields the pages of a file in order; a page that cannot be read has no characters.

    Raises:
        PdfError: `pdf_timeout`, `pdf_too_many_objects` or `pdf_too_many_chars`.
    """
    started, chars = time.process_time(), 0
    for index in range(pdfium.FPDF_GetPageCount(document)):
        handle = _load_page(document, index)
        if not handle:
            yield RawPage(index + 1, 0, 0)
            continue
        try:
            page = _page(handle, index + 1, limits, chars)
        finally:
            pdfium.FPDF_ClosePage(handle)
        chars += len(page.chars)
        if time.process_time() - started > limits.cpu_s:
            raise PdfError("pdf_timeout")
        yield page


def _page(handle: Any, number: int, limits: Limits, chars: int) -> RawPage:
    objects = pdfium.FPDFPage_CountObjects(handle)
    if objects > limits.objects:
        raise PdfError("pdf_too_many_objects")
    left, bottom, right, top = _media_box(handle)
    turn = pdfium.FPDFPage_GetRotation(handle) % 4
    page = RawPage(number, right - left, top - bottom, objects=objects, rotation=turn)
    page.chars = _text(handle, left, top, limits.chars - chars)
    if (text_turn := turn_of(page.chars)) != turn:  # PDFium detects lines only in text that a viewer shows upright
        pdfium.FPDFPage_SetRotation(handle, text_turn)
        page.chars = _text(handle, left, top, limits.chars - chars)
        pdfium.FPDFPage_SetRotation(handle, turn)  # the document keeps it, and `render` draws the page later
    _images(handle, page)
    page.rulings = list(_rulings(handle, page.objects, left, top))
    return upright(page)


def _load_page(document: Any, index: int) -> Any:
    """Returns the handle of a page, with form fields and free text annotations flattened into it."""
    handle = pdfium.FPDF_LoadPage(document, index)
    if handle and _has_fields(handle) and pdfium.FPDFPage_Flatten(handle, pdfium.FLAT_NORMALDISPLAY) == _FLATTENED:
        pdfium.FPDF_ClosePage(handle)
        handle = pdfium.FPDF_LoadPage(document, index)
    return handle


def _has_fields(handle: Any) -> bool:
    for index in range(min(pdfium.FPDFPage_GetAnnotCount(handle), _MAX_ANNOTATIONS)):
        annotation = pdfium.FPDFPage_GetAnnot(handle, index)
        kind = pdfium.FPDFAnnot_GetSubtype(annotation)
        pdfium.FPDFPage_CloseAnnot(annotation)
        if kind in (pdfium.FPDF_ANNOT_WIDGET, pdfium.FPDF_ANNOT_FREETEXT):
            return True
    return False


def _text(handle: Any, left: float, top: float, most: int) -> list[Char]:
    text = pdfium.FPDFText_LoadPage(handle)
    if not text:
        return []
    try:
        if pdfium.FPDFText_CountChars(text) > most:
            raise PdfError("pdf_too_many_chars")
        return _chars(text, left, top)
    finally:
        pdfium.FPDFText_ClosePage(text)


def _media_box(handle: Any) -> tuple[float, float, float, float]:
    box = pdfium.FS_RECTF()
    if pdfium.FPDF_GetPageBoundingBox(handle, box) and box.right > box.left and box.top > box.bottom:
        return box.left, box.bottom, box.right, box.top
    return 0.0, 0.0, pdfium.FPDF_GetPageWidthF(handle), pdfium.FPDF_GetPageHeightF(handle)


def _chars(text: Any, left: float, top: float) -> list[Char]:
    object_of = pdfium.FPDFText_GetTextObject
    box_of, unmapped_of = pdfium.FPDFText_GetLooseCharBox, pdfium.FPDFText_HasUnicodeMapError
    addressof, new = ctypes.addressof, tuple.__new__
    unmapped = skipped = False
    cache = FaceCache()
    faces: dict[int, tuple[Face, bool, float]] = {}
    box = pdfium.FS_RECTF()
    box_pointer = ctypes.byref(box)
    chars = []
    for index, code in _codes(text):
        text_object = object_of(text, index)
        if not text_object:
            if not skipped:  # PDFium also inserts spaces after skipped objects
                chars.append(Char(code, 0, 0, 0, 0, None))
            continue
        address = addressof(text_object.contents)
        if address not in faces:
            faces[address] = cache.of(text_object)
            box_of(text, index, box_pointer)
            face, skipped, base = faces[address]
            # The baseline of an object within a form is in the coordinates of the form.
            faces[address] = face, skipped, top - base if box.bottom <= base <= box.top else 0.0
        face, skipped, base = faces[address]
        if skipped:
            continue
        box_of(text, index, box_pointer)
        x0, x1 = box.left - left, box.right - left
        if code in _VANISHING and not face.actual_text:
            if chars and (x0, x1) == (chars[-1].x0, chars[-1].x1):
                continue  # the map gives several codes for one glyph, and the one before is read
            code = _visible(text, index, code, _LEAST_INK * face.size)
        if index % _UNMAPPED_STRIDE == 0:
            unmapped = unmapped_of(text, index) == 1
        chars.append(new(Char, (code, x0, top - box.top, x1, top - box.bottom, face, unmapped, base)))
    return chars


def _codes(text: Any) -> Iterator[tuple[int, int]]:
    """Yields index and Unicode value of each character; PDFium gives the halves of a surrogate pair one by one."""
    code_of, count = pdfium.FPDFText_GetUnicode, pdfium.FPDFText_CountChars(text)
    high = 0
    for index in range(count):
        code = code_of(text, index)
        if 0xD800 <= code < 0xDC00 and index + 1 < count:
            if 0xDC00 <= code_of(text, index + 1) < 0xE000:
                high = code
                continue
        elif high:
            code = 0x10000 + ((high - 0xD800) << 10) + (code - 0xDC00)
        high = 0
        yield index, code


def _visible(text: Any, index: int, code: int, least: float) -> int:
    """Returns the code of a glyph that its map makes invisible: one with ink is unknown, one without a space.

    Args:
        text: PDFium's handle of the text.
        index: index of the glyph.
        code: the code in its map, one of _VANISHING.
        least: height of ink in points from which it can be seen.
    """
    left, right, bottom, top = (ctypes.c_double() for _ in range(4))
    pdfium.FPDFText_GetCharBox(text, index, left, right, bottom, top)
    if top.value - bottom.value > least:
        return REPLACEMENT
    return code if code in _WIDTHLESS else 0x20


def _images(handle: Any, page: RawPage) -> None:
    """Sets `image_share` and `covered` of a page."""
    area = page.width * page.height
    last_text = cover = -1
    edges = [ctypes.c_float() for _ in range(4)]
    for index in range(page.objects):
        page_object = pdfium.FPDFPage_GetObject(handle, index)
        kind = pdfium.FPDFPageObj_GetType(page_object)
        if kind == _TEXT:
            last_text = index
        elif kind == _IMAGE or (kind == _FORM and _is_image(page_object)):
            if not pdfium.FPDFPageObj_GetBounds(page_object, *edges):
                continue
            x0, y0, x1, y1 = (edge.value for edge in edges)
            share = min(1.0, max(0.0, x1 - x0) * max(0.0, y1 - y0) / area) if area else 0.0
            page.image_share = max(page.image_share, share)
            cover = index if share > 0.8 else cover
    page.covered = cover > last_text >= 0


def _rulings(handle: Any, objects: int, left: float, top: float) -> Iterator[Box]:
    """Yields the boxes of the horizontal and vertical lines of a page; none if it has too many paths."""
    found = (pdfium.FPDFPage_GetObject(handle, at) for at in range(min(objects, _MOST_OBJECTS)))
    paths = [one for one in found if pdfium.FPDFPageObj_GetType(one) == _PATH]
    if len(paths) > _MOST_PATHS:
        return
    edges, steps = [ctypes.c_float() for _ in range(4)], 0
    for path in paths:
        steps += max(0, pdfium.FPDFPath_CountSegments(path))
        if steps > _MOST_PATHS:
            return
        if pdfium.FPDFPageObj_GetBounds(path, *edges):
            x0, y0, x1, y1 = (edge.value for edge in edges)
            lines = [(x0, y0, x1, y1)] if min(x1 - x0, y1 - y0) <= THIN else _drawn_lines(path)
            yield from ((x0 - left, top - y1, x1 - left, top - y0) for x0, y0, x1, y1 in lines)


def _drawn_lines(path: Any) -> list[Box]:
    """Returns the horizontal and vertical lines of a stroked path, in points from the lower left corner."""
    fill, stroke, matrix = ctypes.c_int(), ctypes.c_int(), pdfium.FS_MATRIX()
    count = pdfium.FPDFPath_CountSegments(path)
    drawn = pdfium.FPDFPath_GetDrawMode(path, fill, stroke) and stroke.value
    if not drawn or not 1 < count <= _MOST_STEPS or not pdfium.FPDFPageObj_GetMatrix(path, matrix):
        return []
    lines: list[Box] = []
    first = now = (0.0, 0.0)
    x, y = ctypes.c_float(), ctypes.c_float()
    for index in range(count):
        step = pdfium.FPDFPath_GetPathSegment(path, index)
        kind = pdfium.FPDFPathSegment_GetType(step)
        pdfium.FPDFPathSegment_GetPoint(step, x, y)
        to = (
            matrix.a * x.value + matrix.c * y.value + matrix.e,
            matrix.b * x.value + matrix.d * y.value + matrix.f,
        )
        if kind == _MOVE:
            first = to
        elif kind != _LINE:
            return []
        else:
            lines.append(_between(now, to))
        if pdfium.FPDFPathSegment_GetClose(step):
            lines.append(_between(to, first))
        now = to
    return [box for box in lines if min(box[2] - box[0], box[3] - box[1]) <= THIN]


def _between(one: tuple[float, float], other: tuple[float, float]) -> Box:
    (x0, x1), (y0, y1) = (sorted(pair) for pair in zip(one, other, strict=True))
    return x0, y0, x1, y1


def _is_image(form: Any) -> bool:
    """Returns whether a form consists only of images."""
    count = pdfium.FPDFFormObj_CountObjects(form)
    kinds = {pdfium.FPDFPageObj_GetType(pdfium.FPDFFormObj_GetObject(form, at)) for at in range(min(count, 100))}
    return kinds == {_IMAGE}

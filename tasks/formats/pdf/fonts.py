"""Faces of the text objects of a page: size, direction, and what the font of each tells of itself.

Reads text objects through PDFium.
"""

import ctypes
import math
from typing import Any, NamedTuple

import pypdfium2.raw as pdfium

from tasks.formats.pdf.characters import NAMED, Face

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

"""Pages of a PDF file as bitmaps, for recognition of their text.

Reads a page of a document that `reader.open_pdf` has opened. The bitmap shows the page as a viewer does, with its
rotation, annotations and form fields.
"""

import ctypes
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pypdfium2.raw as pdfium

Pixels = npt.NDArray[np.uint8]
"""Height x width x 3, blue, green and red."""

MAX_PIXELS = 16_000_000
"""Pixels of a bitmap; a page that is larger has fewer dots per inch. A page of A4 has 3.9 million at 200."""
_MAX_SIDE = 10_000
_POINTS_PER_INCH = 72
_WHITE = 0xFFFFFFFF


@dataclass(frozen=True)
class Bitmap:
    """A page of `width` x `height` points, as displayed, and its pixels; `scale` is pixels per point."""

    pixels: Pixels
    width: float
    height: float
    scale: float


def render_page(document: Any, number: int, dpi: int) -> Bitmap | None:
    """Draws a page on white.

    Args:
        document: PDFium's handle.
        number: page number, from 1.
        dpi: dots per inch; fewer are drawn if the bitmap would have more than `MAX_PIXELS`, or a side of `_MAX_SIDE`.

    Returns:
        the bitmap; None if the page cannot be read, or has no area.
    """
    page = pdfium.FPDF_LoadPage(document, number - 1)
    if not page:
        return None
    try:
        width, height = pdfium.FPDF_GetPageWidthF(page), pdfium.FPDF_GetPageHeightF(page)
        if not (0 < width < math.inf and 0 < height < math.inf):
            return None
        fits = min(math.sqrt(MAX_PIXELS / (width * height)), _MAX_SIDE / max(width, height))
        scale = min(dpi / _POINTS_PER_INCH, fits)
        pixels = _drawn(page, max(1, int(width * scale)), max(1, int(height * scale)))
    finally:
        pdfium.FPDF_ClosePage(page)
    return None if pixels is None else Bitmap(pixels, width, height, scale)


def _drawn(page: Any, columns: int, rows: int) -> Pixels | None:
    bitmap = pdfium.FPDFBitmap_CreateEx(columns, rows, pdfium.FPDFBitmap_BGR, None, 0)
    if not bitmap:
        return None
    try:
        pdfium.FPDFBitmap_FillRect(bitmap, 0, 0, columns, rows, _WHITE)
        pdfium.FPDF_RenderPageBitmap(bitmap, page, 0, 0, columns, rows, 0, pdfium.FPDF_ANNOT)
        stride = pdfium.FPDFBitmap_GetStride(bitmap)
        buffer = ctypes.cast(pdfium.FPDFBitmap_GetBuffer(bitmap), ctypes.POINTER(ctypes.c_ubyte * (stride * rows)))
        lines = np.frombuffer(buffer.contents, dtype=np.uint8).reshape(rows, stride)
        return lines[:, : 3 * columns].reshape(rows, columns, 3).copy()
    finally:
        pdfium.FPDFBitmap_Destroy(bitmap)

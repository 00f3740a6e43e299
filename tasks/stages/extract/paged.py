"""Layout and pages of the paged files of one part, beside its documents.

Writes `layout/<part>.parquet` and `pages/<part>.parquet` (tasks.formats.documents.document), in parts with such files only.
"""

from typing import Any

import pyarrow as pa

from tasks.core.stage import Part
from tasks.formats.documents.document import LAYOUT, PAGES, layout_row
from tasks.formats.documents.layout import PageScore
from tasks.stages.extract.guard import Outcome
from tasks.stages.extract.row import Content, Poison, Row

NEEDS_OCR = "needs_ocr"
_AT_ONCE = 256


class PagedFiles:
    """Gathers what is known of the files of a part with pages; in memory as Arrow, some 40 bytes per block."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._tables: list[pa.Table] = []
        self._pages: list[dict[str, Any]] = []

    def rejected(self, row: Row, outcome: Outcome) -> None:
        """Adds the pages of a file that gave no document."""
        if not isinstance(outcome, Poison):
            self._add_pages(row, outcome.pages)

    def kept(self, part: Part, row: Row, document: str, content: Content) -> list[dict[str, str]]:
        """Adds layout and pages of a document; counts its pages that need OCR as rows, and returns their rejections."""
        if content.layout:
            self._rows.append(layout_row(document, content.layout))
            if len(self._rows) >= _AT_ONCE:
                self._pack()
        self._add_pages(row, content.pages)
        missing = [page for page in content.pages if page.needs_ocr]
        if missing:
            part.count_in(len(missing))
            part.reject(NEEDS_OCR, len(missing))
        return [
            {
                "record_id": row.record_id,
                "url": f"{row.url}#page={page.page}",  # RFC 8118, section 3
                "source": row.source,
                "reason": NEEDS_OCR,
            }
            for page in missing
        ]

    def write(self, part: Part) -> None:
        """Writes the files of the part, none without a paged file."""
        self._pack()
        if self._tables:
            part.table("layout", pa.concat_tables(self._tables).sort_by("id").combine_chunks(), out=False)
        if self._pages:
            self._pages.sort(key=lambda page: (page["url"], page["source"], page["page"]))
            part.table("pages", pa.Table.from_pylist(self._pages, PAGES), out=False)

    def _pack(self) -> None:
        if self._rows:
            self._tables.append(pa.Table.from_pylist(self._rows, LAYOUT))
            self._rows = []

    def _add_pages(self, row: Row, pages: tuple[PageScore, ...]) -> None:
        self._pages += [
            {"url": row.url, "source": row.source, "page": one.page, "score": one.score, "needs_ocr": one.needs_ocr}
            for one in pages
        ]

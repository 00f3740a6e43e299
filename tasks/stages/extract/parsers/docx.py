"""The parser `docx`: documents of Word, with headings, lists, tables, notes and formulas.

Reads the bytes of a file. `tasks.formats.documents.docx` simplifies them, mammoth, an extra that is imported on first
use, writes them as HTML, and the HTML is read as a page of the web. Comments, headers, footers, tables of contents,
hidden text and deletions are no text; insertions are. Notes stand at the end.
"""

import itertools
import re
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from tasks.stages.extract.parser import Content, Parser, Rejected

if TYPE_CHECKING:
    from tasks.formats.documents.structure import Block

# Styles that mammoth does not map by default: those of Word, LibreOffice and pandoc.
_STYLES = "\n".join(
    (
        "p[style-name='Title'] => h1:fresh",
        *(
            f"p[style-name='{name}'] => blockquote > p:fresh"
            for name in ("Quote", "Intense Quote", "Block Text", "Quotations")
        ),
        *(
            f"p[style-name='{name}'] => pre:separator('\\n')"
            for name in ("HTML Preformatted", "Preformatted Text", "Source Code", "macro", "Code")
        ),
        *(f"p[style-name='{name}'] => figcaption:fresh" for name in ("caption", "Table Caption", "Image Caption")),
        *(f"p[style-name='toc {level}'] => !" for level in range(1, 10)),
        "p[style-name='TOC Heading'] => !",
    )
)
# Only ids have this prefix, and text has no "<": what begins with it is the list of notes.
_PREFIX = "sluice-"
_NOTES = f'<ol><li id="{_PREFIX}'
_NOTE = re.compile(rf'<li id="{_PREFIX}(?:foot|end)note-[^"]*+">(?:<p>)?+')
_BACK = re.compile(rf'\s?<a href="#{_PREFIX}(?:foot|end)note-ref-[^"]*+">↑</a>')
# A mark is no apparatus of a page here, since the notes follow: it stays as text.
_MARK = re.compile(rf'<sup><a href="#{_PREFIX}(?:foot|end)note-[^"]*+" id="[^"]*+">(\[\d++\])</a></sup>')
# A Word file with a password, and one of Word before 2007, are compound files (MS-CFB).
_COMPOUND, _ENCRYPTED = b"\xd0\xcf\x11\xe0", "EncryptedPackage".encode("utf-16-le")


class Docx(Parser):
    """Settings: the limits of one document."""

    media_types: ClassVar[tuple[str, ...]] = (
        "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    )
    library: ClassVar[str] = "mammoth"
    extra: ClassVar[str] = "office"
    modules: ClassVar[tuple[str, ...]] = ("tasks.formats.documents.docx", "tasks.stages.extract.blocks", "mammoth")

    max_members: int = Field(default=20_000, ge=1)
    """A file with more members is rejected as `docx_too_large`."""

    max_unpacked_bytes: int = Field(default=12_000_000, ge=1)
    """A file whose text has more bytes of XML is rejected as `docx_too_large`: mammoth takes 45 times as much memory,
    and two CPU seconds for a million bytes, 150 pages of prose. Pictures do not count."""

    max_cpu_s: float = Field(default=60.0, gt=0)
    """Limit of CPU seconds per document; one that exceeds it is quarantined as poison."""

    @property
    def cpu_s(self) -> float | None:
        """See `Parser.cpu_s`."""
        return self.max_cpu_s

    def parse(self, data: bytes, name: str) -> Content:
        """See `Parser.parse`."""
        from tasks.formats.documents.docx import prepare
        from tasks.formats.documents.zip_package import PackageError, ZipPackage

        if data.startswith(_COMPOUND) and _ENCRYPTED in data:
            raise Rejected("docx_encrypted")
        try:
            simple, stated = prepare(ZipPackage(data, self.max_members, self.max_unpacked_bytes))
        except PackageError as unreadable:
            raise Rejected(f"docx_{unreadable.reason}") from None
        blocks = _blocks(_html(simple))
        if not blocks:
            raise Rejected("empty")
        heading = next((block.text for block in blocks if block.kind == "heading"), "")
        return Content(
            text="",
            blocks=tuple(blocks),
            title=stated.title or heading,
            author=stated.author,
            language_hint=stated.language,
        )


def _html(document: bytes) -> str:
    import io

    import mammoth

    try:
        html: str = mammoth.convert_to_html(
            io.BytesIO(document), style_map=_STYLES, id_prefix=_PREFIX, include_embedded_style_map=False
        ).value
    except RecursionError:
        raise Rejected("nesting") from None
    return html


def _blocks(html: str) -> "list[Block]":
    """Returns the blocks of a document that mammoth has written; its notes have their number as in the text."""
    from tasks.stages.extract.html import whole_page

    body, begin, notes = _MARK.sub(r"\1", html).partition(_NOTES)
    blocks = whole_page(body)
    if not begin:
        return blocks
    number = itertools.count(1)
    listed = _BACK.sub("", begin + notes).removeprefix("<ol>")
    found = whole_page(_NOTE.sub(lambda _: f"<p>[{next(number)}] ", listed))
    return [*blocks, *(replace(one, kind="footnote") if one.kind == "paragraph" else one for one in found)]

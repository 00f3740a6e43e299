"""The parser `epub`: the chapters of a book in reading order, each read as a page of the web.

Reads the bytes of a file with `tasks.formats.documents.epub`. Title, authors, language, date and rights are those of
the package document.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from tasks.stages.extract.parser import Content, Parser, Rejected

if TYPE_CHECKING:
    from tasks.formats.documents.structure import Block


class Epub(Parser):
    """Settings: the limits of one book."""

    media_types: ClassVar[tuple[str, ...]] = ("application/epub+zip",)
    library: ClassVar[str] = "resiliparse"
    modules: ClassVar[tuple[str, ...]] = ("tasks.formats.documents.epub", "tasks.stages.extract.blocks")

    max_members: int = Field(default=20_000, ge=1)
    """A file with more members is rejected as `epub_too_large`."""

    max_unpacked_bytes: int = Field(default=64_000_000, ge=1)
    """A book whose chapters have more bytes when unpacked is rejected as `epub_too_large`. Pictures do not count."""

    max_cpu_s: float = Field(default=60.0, gt=0)
    """Limit of CPU seconds per book; one that exceeds it is quarantined as poison."""

    @property
    def cpu_s(self) -> float | None:
        """See `Parser.cpu_s`."""
        return self.max_cpu_s

    def parse(self, data: bytes, name: str) -> Content:
        """See `Parser.parse`."""
        from tasks.formats.documents.epub import read_book
        from tasks.formats.documents.zip_package import PackageError, ZipPackage

        blocks: list[Block] = []
        try:
            package = ZipPackage(data, self.max_members, self.max_unpacked_bytes)
            book = read_book(package)
            for path in book.chapters:
                if chapter := package.read(path):
                    blocks += _chapter(chapter)
        except PackageError as unreadable:
            raise Rejected(f"epub_{unreadable.reason}") from None
        if not blocks:
            raise Rejected("empty")
        return Content(
            text="",
            blocks=tuple(blocks),
            title=book.title,
            author="; ".join(book.authors),
            language_hint=book.language,
            published=book.published,
            licence=book.rights,
        )


def _chapter(data: bytes) -> "list[Block]":
    """Returns the blocks of a chapter; one that is no well-formed XHTML is read as HTML."""
    from tasks.formats.documents.structure import BLANK
    from tasks.formats.web.charset import decode_with_source
    from tasks.formats.web.xhtml import decoded_html
    from tasks.stages.extract.html import whole_page

    text, source, _ = decode_with_source(data)
    blocks = whole_page(*decoded_html(text, source))
    return [replace(block, gap=BLANK) for block in blocks[:1]] + blocks[1:]

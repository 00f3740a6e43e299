"""The parser `pdf`: text of PDF files and captures in reading order, with the page and box of each block.

Reads the bytes of a file (`tasks.formats.pdf`). Pages without a usable text layer are left out with the score that says
so, or read by a command of the recipe.
"""

from typing import ClassVar, Literal

from pydantic import Field

from tasks.stages.extract.parser import Content, Parser, Rejected


class Pdf(Parser):
    """Limits of one file, and the command that reads pages by other means."""

    media_types: ClassVar[tuple[str, ...]] = ("application/pdf",)
    library: ClassVar[str] = "pypdfium2"
    revision: ClassVar[int] = 3
    modules: ClassVar[tuple[str, ...]] = ("tasks.formats.pdf.document",)

    max_pages: int = Field(default=2_000, ge=1)
    """A file with more pages is rejected as `pdf_too_many_pages`."""

    max_objects: int = Field(default=500_000, ge=1)
    """A file with more objects, or with more on one page, is rejected as `pdf_too_many_objects`."""

    max_chars: int = Field(default=20_000_000, ge=1)
    """A file with more characters is rejected as `pdf_too_many_chars`."""

    max_cpu_s: float = Field(default=60.0, gt=0)
    """A file that has taken more CPU seconds after a page is rejected as `pdf_timeout`. One page that takes a quarter
    more than this alone ends the process that reads it, and the file is set aside as poison."""

    page_command: tuple[str, ...] = ()
    """Command that reads one page, such as an OCR or layout model: {file} stands for the path of the file, {page} for
    the number of the page, from 1. It writes a JSON object per block to standard output: `text`, and if it likes `kind`
    and `box`. With another exit status than 0 the page stays as it is."""

    page_command_reads: Literal["needs_ocr", "all"] = "needs_ocr"
    """Which pages the command reads."""

    page_timeout_s: float = Field(default=60.0, gt=0)
    """Seconds that the command may take for a page; it is ended then, and the page stays as it is."""

    @property
    def cpu_s(self) -> float | None:
        """See `Parser.cpu_s`."""
        return 1.25 * self.max_cpu_s

    @property
    def wait_s(self) -> float:
        """See `Parser.wait_s`."""
        return self.max_pages * self.page_timeout_s if self.page_command else 0.0

    def parse(self, data: bytes, name: str) -> Content:
        """See `Parser.parse`."""
        from tasks.formats.pdf.document import read_pdf
        from tasks.formats.pdf.reader import Limits, Unreadable
        from tasks.stages.extract.page_command import PageCommand

        limits = Limits(self.max_pages, self.max_objects, self.max_chars, self.max_cpu_s)
        try:
            if not self.page_command:
                found = read_pdf(data, limits)
            else:
                with PageCommand(self.page_command, data, self.page_timeout_s) as command:
                    found = read_pdf(data, limits, command.read, all_pages=self.page_command_reads == "all")
        except Unreadable as unreadable:
            raise Rejected(unreadable.reason) from None
        if not found.text:
            raise Rejected("needs_ocr" if any(page.needs_ocr for page in found.pages) else "empty", found.pages)
        return Content(text=found.text, title=found.title, layout=found.pieces, pages=found.pages)

"""The parser `pdf`: text of PDF files and captures in reading order, with the page and box of each block.

Reads the bytes of a file with `tasks.formats.pdf`. Pages without a usable text layer are skipped and scored, or
recognized from their bitmaps by the models of an extra or by a vision model behind an endpoint, or read by a command of
the recipe, such as your own OCR or layout model: the file is written to a temporary folder, and the command prints the
blocks of one page.
"""

import json
import resource
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from tasks.core.child_process import limit_cpu
from tasks.core.errors import InputError
from tasks.formats.pdf.endpoint import Endpoint
from tasks.stages.extract.parser import Content, Parser, Rejected

if TYPE_CHECKING:
    from tasks.formats.pdf.blocks import PdfBlock
    from tasks.formats.pdf.document import BitmapReader
    from tasks.formats.pdf.recognized import ReadPage
    from tasks.formats.pdf.render import Bitmap

_MAX_OUTPUT = 16 << 20
_MODULES = {
    "": (),
    "rapidocr": ("tasks.formats.pdf.recognizer", "rapidocr"),
    "endpoint": ("tasks.formats.pdf.vision", "requests"),
}
"""Modules that the child process imports for an engine."""
_OCR_MEMORY_BYTES = 1536 << 20
"""Address space for recognition and the file; measured: 850 MiB while a page with 111 lines is read."""

_LONGEST_WAIT_S = 2_000_000.0
"""Maximum of `Pdf.wait_s`, 23 days: the time-out of poll is less than 2**31 milliseconds."""


class Pdf(Parser):
    """Settings: the limits of one file, and how pages without usable text are read, if at all."""

    media_types: ClassVar[tuple[str, ...]] = ("application/pdf",)
    library: ClassVar[str] = "pypdfium2"
    revision: ClassVar[int] = 6
    modules: ClassVar[tuple[str, ...]] = ("tasks.formats.pdf.document",)

    max_pages: int = Field(default=2_000, ge=1)
    """A file with more pages is rejected as `pdf_too_many_pages`."""

    max_objects: int = Field(default=500_000, ge=1)
    """A file with more objects, or with more on one page, is rejected as `pdf_too_many_objects`."""

    max_chars: int = Field(default=20_000_000, ge=1)
    """A file with more characters is rejected as `pdf_too_many_chars`."""

    max_cpu_s: float = Field(default=60.0, gt=0)
    """A file that has taken more CPU seconds at the end of a page is rejected as `pdf_timeout`. After 1.25 times this
    limit, the process that reads it is killed, and the file is quarantined as poison."""

    page_command: tuple[str, ...] = ()
    """Command that reads one page, such as an OCR or layout model. {file} is replaced by the path of the file, {page}
    by the number of the page, from 1. It writes a JSON object per block to standard output, with `text` and optionally
    `kind` and `box`. If its exit status is not 0, the page is not changed."""

    page_command_reads: Literal["needs_ocr", "all"] = "needs_ocr"
    """Pages that the command reads."""

    page_timeout_s: float = Field(default=60.0, gt=0)
    """Limit of seconds per page for the command; after it the command is killed, and the page is not changed."""

    ocr: Literal["", "rapidocr", "endpoint"] = Field(default="", exclude_if=lambda engine: not engine)
    """Engine that reads the pages that need OCR, and that the page command has not read; "" for none. `rapidocr` is an
    extra (pip install 'sluice[ocr]'), and takes about 6 CPU seconds per page. `endpoint` is a vision model."""

    endpoint: Endpoint | None = Field(default=None, exclude_if=lambda endpoint: endpoint is None)
    """Vision model behind an OpenAI-compatible endpoint, and the place of its answers."""

    ocr_dpi: int = Field(default=200, ge=72, le=400, exclude_if=lambda dpi: dpi == 200)
    """Dots per inch of the bitmaps that the engine reads."""

    ocr_max_pages: int = Field(default=500, ge=1, exclude_if=lambda pages: pages == 500)
    """Pages of one file that the engine reads; the pages after them still need OCR."""

    ocr_page_cpu_s: float = Field(default=300.0, gt=0, exclude_if=lambda seconds: seconds == 300.0)
    """Limit of CPU seconds per page for the engine; after it the process that reads the file is killed, and the file is
    quarantined as poison."""

    @model_validator(mode="after")
    def _has_endpoint(self) -> "Pdf":
        if (self.ocr == "endpoint") != (self.endpoint is not None):
            raise ValueError('ocr = "endpoint" and the section endpoint need each other: add one, or remove the other')
        return self

    @classmethod
    def libraries(cls, settings: Mapping[str, Any]) -> str:
        """See `Parser.libraries`."""
        if settings.get("ocr", "") != "rapidocr":
            return super().libraries(settings)
        from tasks.formats.pdf.models import identity

        return f"{super().libraries(settings)}, {identity() or 'rapidocr missing'}"

    def check_installed(self) -> None:
        """See `Parser.check_installed`."""
        if self.endpoint:
            self.endpoint.read_key()
            return
        from tasks.formats.pdf.models import missing

        if self.ocr and (packages := missing()):
            raise InputError(
                f'the recipe has [extract.parsers.pdf] ocr = "{self.ocr}", and {" and ".join(packages)} '
                f"{'are' if len(packages) > 1 else 'is'} not installed",
                "install it where the stage runs (pip install 'sluice[ocr]'), or remove the setting",
            )

    @property
    def needed_modules(self) -> tuple[str, ...]:
        """See `Parser.needed_modules`."""
        return (*self.modules, *_MODULES[self.ocr])

    @property
    def memory_bytes(self) -> int | None:
        """See `Parser.memory_bytes`."""
        return _OCR_MEMORY_BYTES if self.ocr else None

    @property
    def recognizes(self) -> bool:
        """See `Parser.recognizes`."""
        return bool(self.ocr)

    @property
    def cpu_s(self) -> float | None:
        """See `Parser.cpu_s`."""
        return 1.25 * self.max_cpu_s

    @property
    def wait_s(self) -> float:
        """See `Parser.wait_s`."""
        command_s = self.max_pages * self.page_timeout_s if self.page_command else 0.0
        page_s = self.ocr_page_cpu_s + (self.endpoint.longest_s if self.endpoint else 0.0)
        return min(command_s + (self.ocr_max_pages * page_s if self.ocr else 0.0), _LONGEST_WAIT_S)

    def parse(self, data: bytes, name: str) -> Content:
        """See `Parser.parse`."""
        from tasks.formats.pdf.document import read_pdf
        from tasks.formats.pdf.reader import Limits, PdfError

        limits = Limits(self.max_pages, self.max_objects, self.max_chars, self.max_cpu_s)
        try:
            if not self.page_command:
                document = read_pdf(data, limits, bitmaps=self._bitmap_reader())
            else:
                every = self.page_command_reads == "all"
                with PageCommand(self.page_command, data, self.page_timeout_s) as command:
                    document = read_pdf(data, limits, command.read, all_pages=every, bitmaps=self._bitmap_reader())
        except PdfError as unreadable:
            raise Rejected(unreadable.reason) from None
        if not document.blocks:
            reasons = Counter(page.rejection for page in document.pages if page.needs_ocr)
            raise Rejected(reasons.most_common(1)[0][0] if reasons else "empty", document.pages)
        return Content(text="", blocks=document.blocks, title=document.title, pages=document.pages)

    def _bitmap_reader(self) -> "BitmapReader | None":
        from tasks.formats.pdf.document import BitmapReader

        return BitmapReader(self._recognize, self.ocr_dpi, self.ocr_max_pages) if self.ocr else None

    def _recognize(self, bitmap: "Bitmap") -> "ReadPage":
        """Reads a bitmap under the limit of CPU seconds for one, then restores that of the file; see `BitmapReader`."""
        limit_cpu(self.ocr_page_cpu_s)
        try:
            if self.endpoint:
                from tasks.formats.pdf.vision import reader

                return reader(self.endpoint).read(bitmap)
            from tasks.formats.pdf.recognizer import recognize

            return recognize(bitmap)
        finally:
            limit_cpu(1.25 * self.max_cpu_s)


class PageCommand:
    """Runs the page command; a context manager, which writes the file to a temporary folder and removes it at the end.

    Args:
        command: the program and its arguments, with the placeholders {file} and {page}.
        data: the content of the file.
        timeout_s: limit of seconds for one page.
    """

    def __init__(self, command: Sequence[str], data: bytes, timeout_s: float) -> None:
        self._command = command
        self._data = data
        self._timeout_s = timeout_s
        self._folder = tempfile.TemporaryDirectory(prefix="sluice-pdf-")
        self._file = Path(self._folder.name) / "file.pdf"

    def __enter__(self) -> "PageCommand":
        self._file.write_bytes(self._data)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def read(self, page: int) -> list["PdfBlock"] | None:
        """Returns the blocks of a page; None if the command fails or takes too long.

        Raises:
            InputError: the program does not exist or cannot be executed.
            ValueError: its output has something other than blocks.
        """
        placeholders = {"{file}": str(self._file), "{page}": str(page)}
        arguments = [_filled(word, placeholders) for word in self._command]
        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.run(
                    arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    timeout=self._timeout_s,
                    check=False,
                    preexec_fn=_own_limits,
                )
            except (FileNotFoundError, PermissionError) as error:
                raise InputError(
                    f"extract.parsers.pdf.page_command: {arguments[0]} cannot be run ({error.strerror})",
                    "install it where the stage runs, or correct the setting",
                ) from None
            except subprocess.TimeoutExpired:
                return None
            if process.returncode:
                return None
            output.seek(0)
            lines = output.read(_MAX_OUTPUT).decode("utf-8").splitlines()
        return [_block(json.loads(line), page) for line in lines if line.strip()]


def _filled(word: str, placeholders: dict[str, str]) -> str:
    for placeholder, value in placeholders.items():
        word = word.replace(placeholder, value)
    return word


def _own_limits() -> None:
    """Lifts the memory limit of this process for the command, and limits the size of its output."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_OUTPUT, _MAX_OUTPUT))


def _block(output: Any, page: int) -> "PdfBlock":
    """Returns the block of a JSON value printed by the command; raises ValueError if it is invalid."""
    from tasks.formats.pdf.blocks import KINDS, PdfBlock  # imported here, because recipes import this module

    if not isinstance(output, dict) or not isinstance(output.get("text"), str):
        raise ValueError('page_command: each line of its output must be a JSON object with a "text"')
    kind, box = output.get("kind", "paragraph"), output.get("box", (0.0, 0.0, 0.0, 0.0))
    if kind not in KINDS:
        raise ValueError(f"page_command: {kind!r} is not a kind of block; the kinds are {', '.join(KINDS)}")
    if not isinstance(box, list | tuple) or len(box) != 4 or not all(isinstance(edge, int | float) for edge in box):
        raise ValueError("page_command: a box must be four numbers: left, top, right and bottom")
    x0, y0, x1, y1 = map(float, box)
    return PdfBlock(kind, tuple(output["text"].splitlines()) or ("",), page, (x0, y0, x1, y1), 0.0)

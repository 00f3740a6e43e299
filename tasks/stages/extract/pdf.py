"""The parser `pdf`: text of PDF files and captures in reading order, with the page and box of each block.

Reads the bytes of a file (`tasks.formats.pdf`). Pages without a usable text layer are left out with the score that says
so, or read by a command of the recipe, such as an OCR or layout model of your own: the file is written to a temporary
folder, and the command prints the blocks of one page.
"""

import json
import resource
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from tasks.core.errors import InputError
from tasks.stages.extract.parser import Content, Parser, Rejected

if TYPE_CHECKING:
    from tasks.formats.pdf.blocks import Block

_MAX_OUTPUT = 16 << 20


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


class PageCommand:
    """The command, and the file that it reads, which is there between `__enter__` and `__exit__`.

    Args:
        command: the program and its arguments, with {file} and {page} in their places.
        data: the file.
        timeout_s: seconds for one page.
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

    def read(self, page: int) -> list["Block"] | None:
        """Returns the blocks of a page; None if the command fails or takes too long.

        Raises:
            InputError: there is no such program.
            ValueError: it has printed something else than blocks.
        """
        places = {"{file}": str(self._file), "{page}": str(page)}
        arguments = [_filled(word, places) for word in self._command]
        with tempfile.TemporaryFile() as output:
            try:
                done = subprocess.run(
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
            if done.returncode:
                return None
            output.seek(0)
            lines = output.read(_MAX_OUTPUT).decode("utf-8").splitlines()
        return [_block(json.loads(line), page) for line in lines if line.strip()]


def _filled(word: str, places: dict[str, str]) -> str:
    for name, value in places.items():
        word = word.replace(name, value)
    return word


def _own_limits() -> None:
    """Gives the command the memory that this process may not take, but no endless output."""
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_OUTPUT, _MAX_OUTPUT))


def _block(found: Any, page: int) -> "Block":
    """Returns a block that was printed; raises ValueError for anything else."""
    from tasks.formats.pdf.blocks import KINDS, Block  # not while a recipe is read

    if not isinstance(found, dict) or not isinstance(found.get("text"), str):
        raise ValueError('page_command: each line of its output is a JSON object with a "text"')
    kind, box = found.get("kind", "paragraph"), found.get("box", (0.0, 0.0, 0.0, 0.0))
    if kind not in KINDS:
        raise ValueError(f"page_command: {kind!r} is no kind of block; there are {', '.join(KINDS)}")
    if not isinstance(box, list | tuple) or len(box) != 4 or not all(isinstance(one, int | float) for one in box):
        raise ValueError("page_command: a box is four numbers: left, upper, right and lower end")
    x0, y0, x1, y1 = map(float, box)
    return Block(kind, tuple(found["text"].splitlines()) or ("",), page, (x0, y0, x1, y1), 0.0)

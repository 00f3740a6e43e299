"""A command of the recipe that reads one page of a PDF file: an OCR or layout model of your own.

Writes the file to a temporary folder; reads what the command prints.
"""

import json
import resource
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tasks.core.errors import InputError
from tasks.formats.pdf.blocks import KINDS, Block

_MAX_OUTPUT = 16 << 20


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

    def read(self, page: int) -> list[Block] | None:
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


def _block(found: Any, page: int) -> Block:
    """Returns a block that was printed; raises ValueError for anything else."""
    if not isinstance(found, dict) or not isinstance(found.get("text"), str):
        raise ValueError('page_command: each line of its output is a JSON object with a "text"')
    kind, box = found.get("kind", "paragraph"), found.get("box", (0.0, 0.0, 0.0, 0.0))
    if kind not in KINDS:
        raise ValueError(f"page_command: {kind!r} is no kind of block; there are {', '.join(KINDS)}")
    if not isinstance(box, list | tuple) or len(box) != 4 or not all(isinstance(one, int | float) for one in box):
        raise ValueError("page_command: a box is four numbers: left, upper, right and lower end")
    x0, y0, x1, y1 = map(float, box)
    return Block(kind, tuple(found["text"].splitlines()) or ("",), page, (x0, y0, x1, y1), 0.0)

"""Reads pages under a time limit: small ones in this process, large ones in a child that can be killed.

Used by fetch; run as `python -m tasks.crawl.parser` it is that child. What makes a parser slow is quadratic in the
page's size: below 256 KiB the worst page known takes 0.3 s, above it minutes. 99 % of real pages are small, so the
price of the child (about 1 ms per page) is rarely paid.
"""

import asyncio
import os
import pickle
import resource
import struct
import sys
from pathlib import Path
from typing import Any, BinaryIO

from tasks.crawl.links import Page, read_page
from tasks.crawl.robots_tag import Directives

INLINE_BYTES = 256 << 10
_MEMORY = 2 << 30
_START_S = 60.0
_LENGTH = struct.Struct(">Q")


class Parser:
    """Parses pages one at a time.

    Args:
        agent: our product token.
        timeout_s: seconds one large page may take.
    """

    def __init__(self, agent: str, timeout_s: float = 5.0) -> None:
        self._agent = agent
        self._timeout_s = timeout_s
        self._child: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def read(self, html: bytes, url: str, headers: Directives, charset: str = "") -> Page | None:
        """Returns what the page says, or None when it cannot be read within the time and memory allowed."""
        if len(html) <= INLINE_BYTES:
            return read_page(html, url, self._agent, headers, charset)
        async with self._lock:
            try:
                child = await self._started()
                page: Page | None = await asyncio.wait_for(
                    _ask(child, (html, url, self._agent, headers, charset)), self._timeout_s
                )
                return page
            except (TimeoutError, OSError, EOFError):
                await self._end()
                return None

    async def close(self) -> None:
        """Ends the child process."""
        async with self._lock:
            await self._end()

    async def _started(self) -> asyncio.subprocess.Process:
        if self._child is None:
            root = str(Path(__file__).parents[2])
            path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
            self._child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tasks.crawl.parser"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": path},
            )
            # The start of the child must not count against the page.
            await asyncio.wait_for(_ask(self._child, None), _START_S)
        return self._child

    async def _end(self) -> None:
        if self._child is not None:
            if self._child.returncode is None:
                self._child.kill()
            await self._child.wait()
            self._child = None


async def _ask(child: asyncio.subprocess.Process, question: Any) -> Any:
    if child.stdin is None or child.stdout is None:
        raise EOFError("the parser has no pipes")
    data = pickle.dumps(question)
    child.stdin.write(_LENGTH.pack(len(data)) + data)
    await child.stdin.drain()
    (length,) = _LENGTH.unpack(await child.stdout.readexactly(_LENGTH.size))
    return pickle.loads(await child.stdout.readexactly(length))


def _serve(questions: BinaryIO, answers: BinaryIO) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    while head := questions.read(_LENGTH.size):
        question = pickle.loads(questions.read(_LENGTH.unpack(head)[0]))
        data = pickle.dumps(None if question is None else read_page(*question))
        answers.write(_LENGTH.pack(len(data)) + data)
        answers.flush()


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)

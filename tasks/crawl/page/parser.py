"""Reads pages under a time limit: small ones in this process, large ones in a child that can be killed.

Used by fetch and render; run as `python -m tasks.crawl.page.parser` it is that child. What makes a parser slow is
quadratic in the page's size: the worst page known of 128 KiB (15,000 attributes in one tag) takes 0.4 s, of 256 KiB
4 s, of a few MB minutes. Nearly all real pages are small, so the price of the child (some 1 ms a page) is rarely paid.
"""

import asyncio
import os
import pickle
import re
import resource
import struct
import sys
from pathlib import Path
from typing import Any, BinaryIO

from tasks.crawl.page.links import Page, read_page
from tasks.robots_tag import Directives

INLINE_BYTES = 128 << 10
# A tag as long as this holds thousands of attributes, and every one is compared with all before it.
_LONG_TAG = re.compile(rb"<[a-zA-Z][^<>]{16384}")
_WINDOW = 8192
_CHILDREN = 2
_MEMORY = 2 << 30
_START_S = 60.0
_LENGTH = struct.Struct(">Q")


class Parser:
    """Parses pages: small ones at once, large ones in child processes, two at a time.

    Args:
        agent: our product token.
        timeout_s: seconds one large page may take.
    """

    def __init__(self, agent: str, timeout_s: float = 5.0) -> None:
        self._agent = agent
        self._timeout_s = timeout_s
        self._idle: list[asyncio.subprocess.Process] = []
        self._turns = asyncio.Semaphore(_CHILDREN)

    async def read(self, html: bytes, url: str, headers: Directives, charset: str = "") -> Page | None:
        """Returns what the page says, or None when it cannot be read within the time and memory allowed."""
        if len(html) <= INLINE_BYTES and not _has_long_tag(html):
            return read_page(html, url, self._agent, headers, charset)
        async with self._turns:
            child = None
            try:
                child = self._idle.pop() if self._idle else await _started()
                page: Page | None = await asyncio.wait_for(
                    _ask(child, (html, url, self._agent, headers, charset)), self._timeout_s
                )
            except (TimeoutError, OSError, EOFError):
                await _end(child)
                return None
            except BaseException:
                await _end(child)  # half an answer may be on its way; the next page must not get it
                raise
            self._idle.append(child)
            return page

    async def close(self) -> None:
        """Ends the child processes."""
        while self._idle:
            await _end(self._idle.pop())


def _has_long_tag(html: bytes) -> bool:
    # Such a tag fills a whole window, wherever it begins. Nearly every page is cleared by looking for that, in a tenth
    # of the time of the expression.
    windows = range(0, len(html) - _WINDOW + 1, _WINDOW)
    return any(html.find(b"<", at, at + _WINDOW) < 0 for at in windows) and _LONG_TAG.search(html) is not None


async def _started() -> asyncio.subprocess.Process:
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tasks.crawl.page.parser"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        # The start of the child must not count against the page.
        await asyncio.wait_for(_ask(child, None), _START_S)
    except BaseException:
        await _end(child)
        raise
    return child


async def _end(child: asyncio.subprocess.Process | None) -> None:
    if child is not None:
        if child.returncode is None:
            child.kill()
        await child.wait()


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

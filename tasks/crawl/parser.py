"""Reads pages under a time limit: small ones in this process, large ones in a child that can be killed.

Used by fetch. What makes a parser slow is quadratic in the page's size: below 256 KiB the worst page known takes
0.3 s, above it minutes. 99 % of real pages are small, so the price of the child (about 1 ms per page) is rarely paid.
"""

import asyncio
import multiprocessing
import resource
from multiprocessing.connection import Connection
from typing import Any

from tasks.crawl.links import Directives, Page, read_page

INLINE_BYTES = 256 << 10
_MEMORY = 2 << 30


class Parser:
    """Parses pages one at a time.

    Args:
        agent: our product token.
        timeout_s: seconds one large page may take.
    """

    def __init__(self, agent: str, timeout_s: float = 5.0) -> None:
        self._agent = agent
        self._timeout_s = timeout_s
        self._child: Any = None
        self._pipe: Connection | None = None
        self._lock = asyncio.Lock()

    async def read(self, html: bytes, url: str, headers: Directives) -> Page | None:
        """Returns what the page says, or None when it cannot be read within the time and memory allowed."""
        if len(html) <= INLINE_BYTES:
            return read_page(html, url, self._agent, headers)
        async with self._lock:
            return await asyncio.to_thread(self._in_child, html, url, headers)

    def close(self) -> None:
        """Ends the child process."""
        if self._child is not None:
            self._child.kill()
            self._child.join()
        if self._pipe is not None:
            self._pipe.close()
        self._child = self._pipe = None

    def _in_child(self, html: bytes, url: str, headers: Directives) -> Page | None:
        try:
            pipe = self._started()
            pipe.send((html, url, headers))
            if pipe.poll(self._timeout_s):
                page: Page = pipe.recv()
                return page
        except (EOFError, OSError):
            pass
        self.close()
        return None

    def _started(self) -> Connection:
        if self._pipe is None:
            # "spawn": a fork of a process with threads and an event loop is not safe.
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._child = context.Process(target=_serve, args=(theirs, self._agent), daemon=True)
            self._child.start()
            theirs.close()
            # The first answer tells that the child is up: its start must not count against a page.
            self._pipe.recv()
        return self._pipe


def _serve(pipe: Connection, agent: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    pipe.send("ready")
    while True:
        try:
            html, url, headers = pipe.recv()
        except EOFError:
            return
        pipe.send(read_page(html, url, agent, headers))

"""Runs the HTML parser on untrusted pages: small ones in this process, large ones in a child that can be killed.

Run as `python -m tasks.stages.crawl.page.parser` it is that child. The parser's worst case on a preprocessed page
(`links.defuse`) is quadratic in the size of one tag: the worst page known of 128 KiB (15,000 attributes in one tag)
takes 0.5 s, of 256 KiB 4 s, of a few MB minutes. Nearly all real pages are small, so the price of the child, some 1 ms
a page, is rarely paid.

What a page may take is counted in CPU time of the child, so a busy machine loses no links. The clock counts only for a
child that stands still.
"""

import asyncio
import pickle
import re
import signal
from pathlib import Path
from typing import Any

import psutil
from selectolax.lexbor import SelectolaxError

from tasks.core import child_process
from tasks.core.child_process import LENGTH
from tasks.formats.web.robots_tag import Directives
from tasks.stages.crawl.page.links import ParsedPage, parse_page, scan_directives

INLINE_BYTES = 128 << 10
# A tag as long as this has thousands of attributes, and each is compared with all before it.
_LONG_TAG = re.compile(rb"<[a-zA-Z][^<>]{16384}")
_WINDOW = 8192
_CHILDREN = 2
MEMORY_BYTES = 224 << 20
"""Bytes of address space that a child may allocate after its start."""
CPU_S = 5.0
_EXITED = "the process that read it has ended"
_STALL_S = 300.0
"""Seconds after which a child that has taken no CPU time meanwhile counts as stuck."""


class PageParser:
    """Reads pages: small ones at once, large ones in child processes, two at a time.

    Args:
        agent: our product token.
        cpu_s: CPU seconds that one large page may take; by default CPU_S.
    """

    def __init__(self, agent: str, cpu_s: float | None = None) -> None:
        self._agent = agent
        self._cpu_s = CPU_S if cpu_s is None else cpu_s
        self._idle: list[asyncio.subprocess.Process] = []
        self._turns = asyncio.Semaphore(_CHILDREN)

    async def read(self, html: bytes, url: str, headers: Directives, charset: str = "") -> ParsedPage:
        """Parses a page; arguments as for `parse_page`.

        Of a page that raises in its reader, or takes more time or memory than allowed, that is what its source forbids,
        and why its links are not read (`ParsedPage.unread`).
        """
        if len(html) > INLINE_BYTES or _has_long_tag(html):
            page = await self._answer((html, url, self._agent, headers, charset))
        else:
            page = _parse(html, url, self._agent, headers, charset)
        return page if isinstance(page, ParsedPage) else scan_directives(html, self._agent, headers, page)

    async def _answer(self, question: tuple[Any, ...]) -> ParsedPage | str:
        """Returns a page parsed by the child, or the error."""
        async with self._turns:
            child = None
            try:
                child = self._idle.pop() if self._idle else await _start_child()
                answer: ParsedPage | str = await _await_answer(child, (self._cpu_s, question))
            except TimeoutError:
                answer = f"the process that reads it has stood still for {_STALL_S:g} s"
            except EOFError:
                over = child is not None and await child.wait() == -signal.SIGPROF
                answer = f"it takes more than {self._cpu_s:g} CPU seconds" if over else _EXITED
            except OSError as error:
                answer = f"the process that reads pages does not work ({error})"
            except BaseException:
                await _kill_child(child)  # a partial result may be in the pipe; the next page must not read it
                raise
            if isinstance(answer, ParsedPage) and child is not None:
                self._idle.append(child)
            else:
                await _kill_child(child)
            return answer

    async def close(self) -> None:
        """Ends the child processes."""
        while self._idle:
            await _kill_child(self._idle.pop())


def describe_error(error: BaseException) -> str:
    """Returns an error and its place in our code, in one line."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})" if trace else ""
    return " ".join(f"{type(error).__name__}: {error}"[:300].split()) + place


def _parse(*question: Any) -> ParsedPage | str:
    try:
        return parse_page(*question)
    except (MemoryError, SelectolaxError):  # nothing else makes the parser fail
        return "it takes too much memory"
    except Exception as error:  # whatever a page does to its reader is a matter of that page
        return describe_error(error)


def _has_long_tag(html: bytes) -> bool:
    # Such a tag fills a whole window, wherever it begins. Nearly every page is cleared by looking for that, in a tenth
    # of the time of the expression.
    windows = range(0, len(html) - _WINDOW + 1, _WINDOW)
    return any(html.find(b"<", at, at + _WINDOW) < 0 for at in windows) and _LONG_TAG.search(html) is not None


async def _start_child() -> asyncio.subprocess.Process:
    child = await asyncio.create_subprocess_exec(
        *child_process.command("tasks.stages.crawl.page.parser"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=child_process.environment(),
    )
    try:
        # The start of the child must not count against the page.
        await _await_answer(child, None)
    except TimeoutError:
        await _kill_child(child)
        raise OSError(f"it stands still for {_STALL_S:g} s at its start") from None
    except BaseException:
        await _kill_child(child)
        raise
    return child


async def _kill_child(child: asyncio.subprocess.Process | None) -> None:
    if child is not None:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def _await_answer(child: asyncio.subprocess.Process, question: Any) -> Any:
    """Returns the answer of a child, however long it takes while the child is at work.

    Raises:
        TimeoutError: the child has taken no CPU time for `_STALL_S`.
        EOFError: it has ended.
    """
    answering = asyncio.ensure_future(_ask(child, question))
    try:
        taken = _cpu_time(child.pid)
        while not (await asyncio.wait({answering}, timeout=_STALL_S))[0]:
            before, taken = taken, _cpu_time(child.pid)
            if taken == before:
                raise TimeoutError
        return answering.result()
    finally:
        answering.cancel()


def _cpu_time(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0  # it has ended, and its pipe will say so
    return float(times.user + times.system)


async def _ask(child: asyncio.subprocess.Process, question: Any) -> Any:
    if child.stdin is None or child.stdout is None:
        raise EOFError("the parser has no pipes")
    child.stdin.writelines(child_process.message(question))
    await child.stdin.drain()
    (length,) = LENGTH.unpack(await child.stdout.readexactly(LENGTH.size))
    return pickle.loads(await child.stdout.readexactly(length))


def _serve() -> None:
    with child_process.parent() as parent:
        child_process.limit_memory(MEMORY_BYTES)
        for question in parent.requests():
            parent.respond(pickle.dumps(None if question is None else _parse_within(*question)))
            parent.flush()


def _parse_within(cpu_s: float, question: tuple[Any, ...]) -> ParsedPage | str:
    """Reads a page; ends this process if that takes more CPU time."""
    child_process.limit_cpu(cpu_s)
    try:
        return _parse(*question)
    finally:
        child_process.limit_cpu(0)


if __name__ == "__main__":
    _serve()

"""Runs the HTML parser on untrusted pages: small pages in this process, large pages in a child that can be killed.

`python -m tasks.stages.crawl.page.parser` runs the child. The worst case of the parser on a defused page
(`links.defuse`) is quadratic in the size of one tag: the slowest page of 128 KiB found so far (15,000 attributes in one
tag) takes 0.5 s, one of 256 KiB 4 s, one of a few MB minutes. Nearly all real pages are small, so few pages pay the
cost of the child, about 1 ms a page.

The limit of a page is CPU time of the child, so that a busy machine does not lose links. Wall-clock time is limited
only for a child that makes no progress.
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
# A tag of this length can have thousands of attributes, each of which is compared with all before it.
_LONG_TAG = re.compile(rb"<[a-zA-Z][^<>]{16384}")
_WINDOW = 8192
_CHILDREN = 2
MEMORY_BYTES = 224 << 20
"""Bytes of address space that a child may allocate after its start."""
CPU_S = 5.0
_EXITED = "the parser process has exited"
_STALL_S = 300.0
"""Seconds without CPU time after which a child counts as stuck."""


class PageParser:
    """Parses pages: small pages in this process, large pages in child processes, two at a time.

    Args:
        agent: our product token.
        cpu_s: limit of CPU seconds for one large page; CPU_S by default.
    """

    def __init__(self, agent: str, cpu_s: float | None = None) -> None:
        self._agent = agent
        self._cpu_s = CPU_S if cpu_s is None else cpu_s
        self._idle: list[asyncio.subprocess.Process] = []
        self._slots = asyncio.Semaphore(_CHILDREN)

    async def read(
        self, html: bytes, url: str, headers: Directives, charset: str = "", xhtml: bool = False
    ) -> ParsedPage:
        """Parses a page; arguments as for `parse_page`.

        For a page that raises an exception in the parser, or exceeds the limits of time or memory, the result has only
        the directives in its source, and the reason in `ParsedPage.unread`.
        """
        if len(html) > INLINE_BYTES or _has_long_tag(html):
            page = await self._parse_in_child((html, url, self._agent, headers, charset, xhtml))
        else:
            page = _parse(html, url, self._agent, headers, charset, xhtml)
        return page if isinstance(page, ParsedPage) else scan_directives(html, self._agent, headers, page)

    async def _parse_in_child(self, arguments: tuple[Any, ...]) -> ParsedPage | str:
        """Returns the page as parsed by a child, or the error message."""
        async with self._slots:
            child = None
            try:
                child = self._idle.pop() if self._idle else await _start_child()
                result: ParsedPage | str = await _await_response(child, (self._cpu_s, arguments))
            except TimeoutError:
                result = f"the parser process has made no progress for {_STALL_S:g} s"
            except EOFError:
                timed_out = child is not None and await child.wait() == -signal.SIGPROF
                result = f"it takes more than {self._cpu_s:g} CPU seconds" if timed_out else _EXITED
            except OSError as error:
                result = f"the parser process cannot be used ({error})"
            except BaseException:
                await _kill_child(child)  # a partial result may be in the pipe; it must not be read for the next page
                raise
            if isinstance(result, ParsedPage) and child is not None:
                self._idle.append(child)
            else:
                await _kill_child(child)
            return result

    async def close(self) -> None:
        """Ends the child processes."""
        while self._idle:
            await _kill_child(self._idle.pop())


def describe_error(error: BaseException) -> str:
    """Returns the exception, with file and line where it was raised, in one line."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})" if trace else ""
    return " ".join(f"{type(error).__name__}: {error}"[:300].split()) + place


def _parse(*arguments: Any) -> ParsedPage | str:
    try:
        return parse_page(*arguments)
    except (MemoryError, SelectolaxError):  # selectolax fails only when memory allocation fails
        return "it takes too much memory"
    except Exception as error:  # an error on one page must not stop the crawl
        return describe_error(error)


def _has_long_tag(html: bytes) -> bool:
    # Such a tag fills a whole window, wherever it begins. This check clears nearly every page in a tenth of the time
    # of the regular expression.
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
        # The start of the child must not count toward the limit of the page.
        await _await_response(child, None)
    except TimeoutError:
        await _kill_child(child)
        raise OSError(f"it makes no progress for {_STALL_S:g} s at its start") from None
    except BaseException:
        await _kill_child(child)
        raise
    return child


async def _kill_child(child: asyncio.subprocess.Process | None) -> None:
    if child is not None:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def _await_response(child: asyncio.subprocess.Process, request: Any) -> Any:
    """Returns the response of a child; waits as long as the child makes progress.

    Raises:
        TimeoutError: the child has taken no CPU time for `_STALL_S`.
        EOFError: the child has exited.
    """
    task = asyncio.ensure_future(_exchange(child, request))
    try:
        cpu_s = _cpu_time(child.pid)
        while not (await asyncio.wait({task}, timeout=_STALL_S))[0]:
            before, cpu_s = cpu_s, _cpu_time(child.pid)
            if cpu_s == before:
                raise TimeoutError
        return task.result()
    finally:
        task.cancel()


def _cpu_time(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0  # it has exited, so reading its pipe raises EOFError
    return float(times.user + times.system)


async def _exchange(child: asyncio.subprocess.Process, request: Any) -> Any:
    if child.stdin is None or child.stdout is None:
        raise EOFError("the parser has no pipes")
    child.stdin.writelines(child_process.message(request))
    await child.stdin.drain()
    (length,) = LENGTH.unpack(await child.stdout.readexactly(LENGTH.size))
    return pickle.loads(await child.stdout.readexactly(length))


def _serve() -> None:
    with child_process.parent() as parent:
        child_process.limit_memory(MEMORY_BYTES)
        for request in parent.requests():
            parent.respond(pickle.dumps(None if request is None else _parse_within(*request)))
            parent.flush()


def _parse_within(cpu_s: float, arguments: tuple[Any, ...]) -> ParsedPage | str:
    """Parses a page; a signal ends this process if that takes more CPU time."""
    child_process.limit_cpu(cpu_s)
    try:
        return _parse(*arguments)
    finally:
        child_process.limit_cpu(0)


if __name__ == "__main__":
    _serve()

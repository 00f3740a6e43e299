"""Sandboxed Chromium: one process group per page, behind a proxy of its own, ended with the page.

A new browser starts in 0.2 to 0.3 s; in return pages share no state, an endless script is ended with its browser, and
bytes are counted per page.
"""

import asyncio
import contextlib
import logging
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import TracebackType

import psutil
from playwright.async_api import Browser as Chromium
from playwright.async_api import Error, Playwright, ViewportSize, async_playwright

from tasks.core.errors import InputError, TransientError
from tasks.formats.web.url import authority
from tasks.stages.crawl.config import RenderConfig
from tasks.stages.crawl.render.page import PageError, PageView, Shown
from tasks.stages.crawl.render.proxy import Guard, Proxy
from tasks.stages.crawl.render.queue import Source

log = logging.getLogger("sluice.crawl")

NAMES = ("chromium", "chromium-browser", "google-chrome")
_START_S = 30.0
_END_S = 5.0
_WATCH_S = 0.25
_HEAP_MB = 512
_FAILURES = 3
_FATAL = re.compile(r"\bFATAL:[^\]\n]*\] ?([^\n]+)")
# Tall, so that what a page loads when it is scrolled to is loaded.
_VIEW: ViewportSize = {"width": 1280, "height": 6000}
_ENVIRONMENT = ("PATH", "LANG", "TMPDIR")
FLAGS = (
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-pings",
    "--disable-domain-reliability",
    # No name is looked up by the browser itself, and WebRTC sends nothing around the proxy.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    # The second name is that of older versions.
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    f"--js-flags=--max-old-space-size={_HEAP_MB}",
)
# The browser's own requests (updates, accounts) are sent to the discard port, where nothing listens.
_NOWHERE = "http://127.0.0.1:9"
# Unknown to Chromium; identifies our browsers.
_MARK = "--sluice-page"
# Playwright disables the popup blocker for tests; a crawler needs it.
_NOT_WANTED = ("--disable-popup-blocking", "--disable-ipc-flooding-protection", "--enable-unsafe-swiftshader")


@dataclass(frozen=True)
class Rendered:
    """A page as a browser shows it, and what that took.

    Attributes:
        shown: the page.
        received: bytes received from the network.
        refused: servers (host:port) that the guard refused.
        spent: limit that the page reached ("bytes", "requests"), or "".
    """

    shown: Shown
    received: int
    refused: tuple[str, ...]
    spent: str


def find_chromium(named: str = "") -> str:
    """Returns the path of the browser's program; raises InputError where there is none."""
    for name in (named,) if named else NAMES:
        found = shutil.which(name)
        if found:
            return found
    what = f"[crawl.render] chromium = {named!r} is no program" if named else f"no {', '.join(NAMES)} on PATH"
    raise InputError(f"rendering needs Chromium, and there is none: {what}", "install it: apt install chromium")


class Browser:
    """Renders pages; use as an async context manager.

    Args:
        config: limits of a page.
        agent: the crawl's own User-Agent.
        guard: which servers pages may reach.
        home: the browsers' home folder; for caches, not for page data.
    """

    def __init__(self, config: RenderConfig, agent: str, guard: Guard, home: str) -> None:
        self._config = config
        self._agent = agent
        self._guard = guard
        self._program = find_chromium(config.chromium)
        self._stack = contextlib.AsyncExitStack()
        self._playwright: Playwright | None = None
        self._home = home
        self._failures = 0
        # The page has its own limits; this one is for a hanging browser.
        self._longest_s = config.timeout_s + _START_S
        self.version = ""

    async def __aenter__(self) -> "Browser":
        self._playwright = await self._stack.enter_async_context(async_playwright())
        try:
            async with self._launched(0, _Memory(self._config.max_memory_bytes)) as chromium:
                self.version = chromium.version
        except BaseException as error:
            await self._stack.aclose()
            if isinstance(error, Error):
                raise self._unable(error) from None
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def render(self, source: Source, allowed: Callable[[str], bool]) -> Rendered:
        """Renders a captured page.

        Args:
            source: the page.
            allowed: decides on URLs that the page requests.

        Raises:
            PageError: the page cannot be shown.
        """
        memory = _Memory(self._config.max_memory_bytes)
        guard = self._guard.for_page(authority(source.url))
        async with Proxy(guard, self._config.max_bytes, self._config.max_requests) as proxy:
            try:
                async with self._launched(proxy.port, memory) as chromium, asyncio.timeout(self._longest_s):
                    context = await chromium.new_context(
                        proxy={"server": f"http://127.0.0.1:{proxy.port}", "bypass": "<-loopback>"},
                        user_agent=self._agent,
                        service_workers="block",
                        accept_downloads=False,
                        permissions=[],
                        locale="en-US",
                        viewport=_VIEW,
                    )
                    shown = await PageView(self._config, source, allowed).show(context)
            except (Error, PageError, TimeoutError) as error:
                if memory.exceeded:
                    raise PageError("render_memory", f"more than {memory.limit} bytes") from None
                if isinstance(error, PageError):
                    raise
                raise PageError("render_crash", str(error).partition("\n")[0] or "the browser hangs") from None
            return Rendered(shown, proxy.received, tuple(proxy.refused), proxy.spent)

    @contextlib.asynccontextmanager
    async def _launched(self, port: int, memory: "_Memory") -> AsyncIterator[Chromium]:
        if self._playwright is None:
            raise RuntimeError("use the browser as an async context manager")
        mark = f"{_MARK}={port}"
        chromium = await self._start(self._playwright, mark)
        process = _process(mark)
        if process is None:
            await chromium.close()
            raise Error("the browser has ended at once")
        watch = asyncio.ensure_future(memory.watch(process))
        try:
            yield chromium
        finally:
            watch.cancel()
            await _end(chromium, process)

    async def _start(self, playwright: Playwright, mark: str) -> Chromium:
        try:
            chromium = await playwright.chromium.launch(
                executable_path=self._program,
                # A root process has no other way; where that is so, the container is the sandbox.
                chromium_sandbox=os.geteuid() != 0,
                args=[*FLAGS, mark],
                ignore_default_args=list(_NOT_WANTED),
                proxy={"server": _NOWHERE, "bypass": "<-loopback>"},
                # Nothing of ours: keys of the store and of the cluster are in the environment.
                env={"HOME": self._home, **{name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}},
                timeout=_START_S * 1000,
            )
        except Error as error:
            self._failures += 1
            if self.version and self._failures >= _FAILURES:
                raise TransientError(
                    f"{self._program} has started before and no longer does ({_cause(error)})",
                    "look at the memory and the processes of this machine, then run it again",
                ) from None
            raise
        self._failures = 0
        return chromium

    def _unable(self, error: Error) -> InputError:
        if "No usable sandbox" in error.message:
            return InputError(
                f"{self._program} does not start: it may not make a sandbox here",
                "allow user namespaces to this process (seccomp), or run it as root in a container of its own, "
                "which then is the sandbox",
            )
        return InputError(
            f"{self._program} does not start ({_cause(error)})",
            f"try {self._program} --headless --dump-dom about:blank",
        )


class _Memory:
    """Kills a browser when one of its processes exceeds the memory limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.exceeded = False

    async def watch(self, process: psutil.Process) -> None:
        with contextlib.suppress(psutil.Error):
            while not self.exceeded:
                await asyncio.sleep(_WATCH_S)
                for one in [process, *process.children(recursive=True)]:
                    with contextlib.suppress(psutil.Error):
                        if one.memory_info().rss > self.limit:
                            self.exceeded = True
            _kill(process)


def _process(mark: str) -> psutil.Process | None:
    """Returns the process of the browser that was started with `mark`."""
    for one in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            line = one.cmdline()
            if mark in line and not any(word.startswith("--type=") for word in line):
                return one
    return None


async def _end(chromium: Chromium, process: psutil.Process) -> None:
    """Closes the browser, and kills it when it does not close: an endless script may block it."""
    try:
        async with asyncio.timeout(_END_S):
            await chromium.close()
    except (Error, TimeoutError):
        log.info("a browser did not close and is killed")
    finally:
        _kill(process)


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):
        for one in [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.Error):
                one.kill()


def _cause(error: Error) -> str:
    """Returns the browser's last fatal message, or else the first line of the error."""
    fatal = _FATAL.search(error.message)
    return fatal[1] if fatal else error.message.strip().partition("\n")[0]

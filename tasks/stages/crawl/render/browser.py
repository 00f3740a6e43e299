"""Sandboxed Chromium: each page has its own browser processes behind its own proxy, and they end with the page.

Starting a browser takes 0.2 to 0.3 s. In return, pages share no state, an endless script is killed with its browser,
and bytes are counted per page.

The page itself is not requested again: the browser loads it from the capture. Only scripts, styles and data are loaded
from the network, by GET, through the proxy. The page cannot navigate, open windows, download or show dialogs.
"""

import asyncio
import contextlib
import logging
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import TracebackType

import psutil
from playwright.async_api import Browser as Chromium
from playwright.async_api import (
    BrowserContext,
    Dialog,
    Error,
    Page,
    Playwright,
    Request,
    Route,
    ViewportSize,
    async_playwright,
)

from tasks.core.errors import InputError, TransientError
from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.url import authority
from tasks.stages.crawl.config import RenderConfig
from tasks.stages.crawl.render.proxy import AddressGuard, Proxy
from tasks.stages.crawl.render.queue import CapturedPage, PageError

log = logging.getLogger("sluice.crawl")

NAMES = ("chromium", "chromium-browser", "google-chrome")
_START_S = 30.0
_END_S = 5.0
_WATCH_S = 0.25
_HEAP_MB = 512
_FAILURES = 3
_FATAL = re.compile(r"\bFATAL:[^\]\n]*\] ?([^\n]+)")
# Tall, so that content which pages load on scrolling is loaded.
_VIEW: ViewportSize = {"width": 1280, "height": 6000}
_ENVIRONMENT = ("PATH", "LANG", "TMPDIR")
FLAGS = (
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-pings",
    "--disable-domain-reliability",
    # The browser looks up no names itself, and WebRTC cannot bypass the proxy.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    # Older versions know only the second name.
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    f"--js-flags=--max-old-space-size={_HEAP_MB}",
)
# The browser's own requests (updates, accounts) go to the discard port, on which nothing listens.
_NOWHERE = "http://127.0.0.1:9"
# Chromium ignores this flag; it identifies our browser processes.
_MARK = "--sluice-page"
# Default flags of Playwright that suit tests but not a crawler, such as the one that disables the popup blocker.
_IGNORED_DEFAULTS = ("--disable-popup-blocking", "--disable-ipc-flooding-protection", "--enable-unsafe-swiftshader")

_GRACE_S = 3.0
_POLL_S = 0.05
_MAX_LEADS = 20
# Event streams end only with the page, so they are not waited for.
_ENDLESS = frozenset(("eventsource", "websocket", "ping"))
# Headers of the capture that affect the behavior of a page; not those for cookies, redirects and downloads.
_KEPT_HEADERS = frozenset(
    (
        *("content-type", "content-language", "content-security-policy", "last-modified", "permissions-policy"),
        *("cross-origin-embedder-policy", "cross-origin-opener-policy", "origin-agent-cluster", "referrer-policy"),
        "x-content-type-options",
    )
)
# Removes network and background APIs that text does not need. Defense in depth: proxy and flags block them as well.
_REMOVE_APIS = """
for (const name of ["RTCPeerConnection", "webkitRTCPeerConnection", "WebTransport", "SharedWorker"]) delete self[name];
delete Navigator.prototype.serviceWorker;
"""
# Runs in an isolated world, because the page's scripts may have replaced functions that this one calls.
_READ_DOCUMENT = """(() => {
  const kind = document.doctype ? new XMLSerializer().serializeToString(document.doctype) : "";
  const html = kind + "\\n" + document.documentElement.outerHTML;
  return {url: document.URL, size: html.length, html: html.length > %d ? "" : html};
})()"""


@dataclass(frozen=True)
class RenderedDocument:
    """The document of a rendered page.

    Attributes:
        html: the serialized document in UTF-8.
        url: URL of the document, which scripts may have changed within its origin.
        leads: canonical URLs of navigations that the page attempted and that were blocked.
        requests: number of requests of the page, without the page itself.
        complete: whether the page finished loading within its limit of requests.
    """

    html: bytes
    url: str
    leads: tuple[str, ...]
    requests: int
    complete: bool


@dataclass(frozen=True)
class RenderResult:
    """A rendered page, and the traffic that it caused.

    Attributes:
        document: the rendered document.
        received: bytes received from the network.
        refused: servers (host:port) that the guard refused.
        spent: the limit that the page reached ("bytes" or "requests"), or "".
    """

    document: RenderedDocument
    received: int
    refused: tuple[str, ...]
    spent: str


class Browser:
    """Renders pages; use as an async context manager.

    Args:
        config: limits of a page.
        agent: User-Agent of the crawl.
        guard: decides which servers pages may reach.
        home: home folder of the browsers, for caches; page data are not written there.
    """

    def __init__(self, config: RenderConfig, agent: str, guard: AddressGuard, home: str) -> None:
        self._config = config
        self._agent = agent
        self._guard = guard
        self._program = ""
        self._stack = contextlib.AsyncExitStack()
        self._playwright: Playwright | None = None
        self._home = home
        self._failures = 0
        # The page has limits of its own; this one ends a browser that hangs.
        self._browser_timeout_s = config.timeout_s + _START_S
        self.version = ""

    async def __aenter__(self) -> "Browser":
        self._program = find_chromium(self._config.chromium)
        self._playwright = await self._stack.enter_async_context(async_playwright())
        try:
            async with self._launched(0, _Memory(self._config.max_memory_bytes)) as chromium:
                self.version = chromium.version
        except BaseException as error:
            await self._stack.aclose()
            if isinstance(error, Error):
                raise self._start_error(error) from None
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def render(self, source: CapturedPage, allowed: Callable[[str], bool]) -> RenderResult:
        """Renders a captured page.

        Args:
            source: the captured page.
            allowed: returns whether the page may request a URL.

        Raises:
            PageError: the page cannot be rendered.
        """
        memory = _Memory(self._config.max_memory_bytes)
        guard = self._guard.for_page(authority(source.url))
        async with Proxy(guard, self._config.max_bytes, self._config.max_requests) as proxy:
            try:
                async with self._launched(proxy.port, memory) as chromium, asyncio.timeout(self._browser_timeout_s):
                    context = await chromium.new_context(
                        proxy={"server": f"http://127.0.0.1:{proxy.port}", "bypass": "<-loopback>"},
                        user_agent=self._agent,
                        service_workers="block",
                        accept_downloads=False,
                        permissions=[],
                        locale="en-US",
                        viewport=_VIEW,
                    )
                    document = await PageView(self._config, source, allowed).render(context)
            except (Error, PageError, TimeoutError) as error:
                if memory.exceeded:
                    raise PageError("render_memory", f"more than {memory.limit} bytes") from None
                if isinstance(error, PageError):
                    raise
                raise PageError("render_crash", str(error).partition("\n")[0] or "the browser hangs") from None
            return RenderResult(document, proxy.received, tuple(proxy.refused), proxy.spent)

    @contextlib.asynccontextmanager
    async def _launched(self, port: int, memory: "_Memory") -> AsyncIterator[Chromium]:
        if self._playwright is None:
            raise RuntimeError("use the browser as an async context manager")
        mark = f"{_MARK}={port}"
        chromium = await self._start(self._playwright, mark)
        process = _find_process(mark)
        if process is None:
            await chromium.close()
            raise Error("the browser exited at once")
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
                # Chromium has no sandbox under root; then the container is the sandbox.
                chromium_sandbox=os.geteuid() != 0,
                args=[*FLAGS, mark],
                ignore_default_args=list(_IGNORED_DEFAULTS),
                proxy={"server": _NOWHERE, "bypass": "<-loopback>"},
                # The environment of this process has keys of the store and of the cluster.
                env={"HOME": self._home, **{name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}},
                timeout=_START_S * 1000,
            )
        except Error as error:
            self._failures += 1
            if self.version and self._failures >= _FAILURES:
                raise TransientError(
                    f"{self._program} no longer starts ({_cause(error)})",
                    "check the memory and the processes of this machine, then run it again",
                ) from None
            raise
        self._failures = 0
        return chromium

    def _start_error(self, error: Error) -> InputError:
        if "No usable sandbox" in error.message:
            return InputError(
                f"{self._program} does not start: it is not allowed to create a sandbox on this machine",
                "allow user namespaces for this process (seccomp), or run it as root in a container of its own, "
                "which then serves as the sandbox",
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
                for member in [process, *process.children(recursive=True)]:
                    with contextlib.suppress(psutil.Error):
                        if member.memory_info().rss > self.limit:
                            self.exceeded = True
            _kill(process)


def _find_process(mark: str) -> psutil.Process | None:
    """Returns the main process of the browser that was started with the flag `mark`."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            if mark in line and not any(word.startswith("--type=") for word in line):
                return process
    return None


async def _end(chromium: Chromium, process: psutil.Process) -> None:
    """Closes the browser; kills it if it does not close, because an endless script can block it."""
    try:
        async with asyncio.timeout(_END_S):
            await chromium.close()
    except (Error, TimeoutError):
        log.info("a browser did not close; it is killed")
    finally:
        _kill(process)


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):
        for member in [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.Error):
                member.kill()


def _cause(error: Error) -> str:
    """Returns the fatal message of the browser, or the first line of the error if there is none."""
    fatal = _FATAL.search(error.message)
    return fatal[1] if fatal else error.message.strip().partition("\n")[0]


def find_chromium(configured: str = "") -> str:
    """Returns the path of the browser's program: the configured one, or the first of `NAMES` on PATH.

    Raises:
        InputError: there is no such program.
    """
    for name in (configured,) if configured else NAMES:
        if path := shutil.which(name):
            return path
    cause = (
        f"[crawl.render] chromium = {configured!r} is not a program" if configured else f"no {', '.join(NAMES)} on PATH"
    )
    raise InputError(f"rendering needs Chromium, and there is none: {cause}", "install it: apt install chromium")


class PageView:
    """Renders one page in a new browser context.

    Args:
        config: limits of the page.
        source: the captured page.
        allowed: returns whether the page may request a URL, by robots.txt of its host.
    """

    def __init__(self, config: RenderConfig, source: CapturedPage, allowed: Callable[[str], bool]) -> None:
        self._config = config
        self._source = source
        self._allowed = allowed
        self._page: Page | None = None
        self._served = False
        self._loaded = self._tried_to_navigate = False
        self._crashed = False
        self._pending: set[Request] = set()
        self._last_activity = 0.0
        self._leads: dict[str, None] = {}
        self._requests = 0
        self._complete = True

    async def render(self, context: BrowserContext) -> RenderedDocument:
        """Loads the page, waits until it has settled or its time is over, and returns the document.

        Raises:
            PageError: the page cannot be rendered, or its document is too large.
        """
        await self._restrict(context)
        page = self._page = await context.new_page()
        # Registered after the page was created, because the handler closes every new window.
        context.on("page", _close_page)
        page.on("dialog", _dismiss)
        page.on("crash", self._crash)
        page.on("load", self._load)
        # A listener prevents the browser from opening its file dialog.
        page.on("filechooser", lambda chooser: None)
        try:
            async with asyncio.timeout(self._config.timeout_s):
                await page.goto(self._source.url, wait_until="commit", timeout=0)
                await self._wait_until_settled(page)
        except TimeoutError:
            self._complete = False
        except Error as error:
            raise self._failure(error) from None
        try:
            async with asyncio.timeout(_GRACE_S):
                return await self._read_document(context, page)
        except TimeoutError:
            raise PageError("render_timeout", "the page does not respond: one of its scripts does not end") from None
        except Error as error:
            raise self._failure(error) from None

    async def _restrict(self, context: BrowserContext) -> None:
        await context.add_init_script(_REMOVE_APIS)
        await context.route("**/*", self._route)
        context.on("request", self._request_started)
        context.on("requestfinished", self._request_ended)
        context.on("requestfailed", self._request_ended)

    async def _route(self, route: Route) -> None:
        request = route.request
        try:
            if request.is_navigation_request():
                await self._navigate(route)
            elif self._is_allowed(request):
                await route.continue_()
            else:
                await route.abort("blockedbyclient")
        except Error:
            pass  # the page is closed

    async def _navigate(self, route: Route) -> None:
        request = route.request
        try:
            own = self._page is not None and request.frame == self._page.main_frame
        except Error:
            own = False  # the request comes from a window that has no page yet
        if own and not self._served:
            self._served = True
            headers = {name.lower(): value for name, value in self._source.headers if name.lower() in _KEPT_HEADERS}
            headers.setdefault("content-type", "text/html")
            await route.fulfill(status=200, headers=headers, body=self._source.body)
            return
        if own:
            self._tried_to_navigate = True
            lead = canonical(request.url)
            if lead is not None and lead != self._source.url and len(self._leads) < _MAX_LEADS:
                self._leads[lead] = None
        # "aborted" keeps the page; any other error would replace it by an error page.
        await route.abort("aborted")

    def _is_allowed(self, request: Request) -> bool:
        if request.method != "GET" or request.resource_type in self._config.blocked:
            return False
        self._requests += 1
        if self._requests > self._config.max_requests:
            self._complete = False
            return False
        url = canonical(request.url)
        return url is None or self._allowed(url)

    def _request_started(self, request: Request) -> None:
        if request.resource_type not in _ENDLESS:
            self._pending.add(request)
        self._last_activity = time.monotonic()

    def _request_ended(self, request: Request) -> None:
        self._pending.discard(request)
        self._last_activity = time.monotonic()

    async def _wait_until_settled(self, page: Page) -> None:
        """Waits until the page has loaded and no request has been pending for `settle_ms`."""
        self._last_activity = time.monotonic()
        # A page that tries to navigate while it loads never fires its load event.
        while (
            not (self._loaded or self._tried_to_navigate)
            or self._pending
            or time.monotonic() - self._last_activity < self._config.settle_ms / 1000
        ):
            if self._crashed or page.is_closed():
                raise PageError("render_crash", "the page or its browser has exited")
            await asyncio.sleep(_POLL_S)

    async def _read_document(self, context: BrowserContext, page: Page) -> RenderedDocument:
        session = await context.new_cdp_session(page)
        tree = await session.send("Page.getFrameTree")
        world = await session.send("Page.createIsolatedWorld", {"frameId": tree["frameTree"]["frame"]["id"]})
        expression = {
            "expression": _READ_DOCUMENT % self._config.max_dom_bytes,
            "contextId": world["executionContextId"],
            "returnByValue": True,
        }
        value = (await session.send("Runtime.evaluate", expression))["result"].get("value")
        if not isinstance(value, dict) or not str(value["url"]).startswith(("http://", "https://")):
            raise PageError("render_failed", "the page has no document, or not its own")
        if not value["html"]:
            raise PageError("render_too_large", f"{value['size']} characters")
        html = str(value["html"]).encode("utf-8", "replace")
        return RenderedDocument(html, str(value["url"]), tuple(self._leads), self._requests, self._complete)

    def _load(self, page: Page) -> None:
        self._loaded = True
        self._last_activity = time.monotonic()

    def _crash(self, page: Page) -> None:
        self._crashed = True

    def _failure(self, error: Error) -> PageError:
        return PageError("render_crash" if self._crashed else "render_failed", error.message.partition("\n")[0])


async def _close_page(page: Page) -> None:
    with contextlib.suppress(Error):
        await page.close()


async def _dismiss(dialog: Dialog) -> None:
    with contextlib.suppress(Error):
        await dialog.dismiss()

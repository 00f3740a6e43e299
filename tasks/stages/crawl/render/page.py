"""One page in a browser: allowed requests, detection of the end of loading, and the rendered document.

The page itself is not requested again: the browser gets the capture. Only its scripts, styles and data are loaded from
the network, by GET, through the proxy. The page cannot navigate, open windows, download or show dialogs.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from playwright.async_api import BrowserContext, Dialog, Error, Page, Request, Route

from tasks.formats.web.canonical_url import canonical
from tasks.stages.crawl.config import RenderConfig
from tasks.stages.crawl.render.queue import Source

_GRACE_S = 3.0
_LOOK_S = 0.05
_MAX_LEADS = 20
# Streams of events end with the page; nothing is waited for there.
_ENDLESS = frozenset(("eventsource", "websocket", "ping"))
# Headers of the capture that affect how a page works; without cookies, redirects and downloads.
_KEPT = frozenset(
    (
        *("content-type", "content-language", "content-security-policy", "last-modified", "permissions-policy"),
        *("cross-origin-embedder-policy", "cross-origin-opener-policy", "origin-agent-cluster", "referrer-policy"),
        "x-content-type-options",
    )
)
# Network and background APIs that text does not need. Defence in depth: the proxy and flags enforce the same.
_WITHOUT = """
for (const name of ["RTCPeerConnection", "webkitRTCPeerConnection", "WebTransport", "SharedWorker"]) delete self[name];
delete Navigator.prototype.serviceWorker;
"""
# Runs in an isolated world, which the page's scripts cannot reach: they may have replaced functions it calls.
_SHOWN = """(() => {
  const kind = document.doctype ? new XMLSerializer().serializeToString(document.doctype) : "";
  const html = kind + "\\n" + document.documentElement.outerHTML;
  return {url: document.URL, size: html.length, html: html.length > %d ? "" : html};
})()"""


@dataclass(frozen=True)
class Shown:
    """A rendered page.

    Attributes:
        html: the document as text, UTF-8.
        url: its address then, which scripts may have changed within its origin.
        leads: navigations that the page tried and that were blocked.
        requests: its requests, without the page itself.
        complete: it finished loading, without exceeding its number of requests.
    """

    html: bytes
    url: str
    leads: tuple[str, ...]
    requests: int
    complete: bool


class PageError(Exception):
    """A page that cannot be shown; `reason` is a machine word that begins with "render_"."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(detail or reason)
        self.reason = reason


class PageView:
    """Shows one page in a fresh context.

    Args:
        config: limits.
        source: the page.
        allowed: decides on the URL of each request of the page (robots.txt of its host).
    """

    def __init__(self, config: RenderConfig, source: Source, allowed: Callable[[str], bool]) -> None:
        self._config = config
        self._source = source
        self._allowed = allowed
        self._page: Page | None = None
        self._served = False
        self._loaded = self._left = False
        self._crashed = False
        self._under_way: set[Request] = set()
        self._changed = 0.0
        self._leads: dict[str, None] = {}
        self._requests = 0
        self._complete = True

    async def show(self, context: BrowserContext) -> Shown:
        """Loads the page, waits until it finished loading, and returns the document.

        Raises:
            PageError: it never showed anything, or too much.
        """
        await self._guard(context)
        page = self._page = await context.new_page()
        # Only now: the page itself is none of the windows that are closed.
        context.on("page", _close)
        page.on("dialog", _dismiss)
        page.on("crash", self._crash)
        page.on("load", self._load)
        # Listening is what keeps the browser from opening its dialogue.
        page.on("filechooser", lambda chooser: None)
        try:
            async with asyncio.timeout(self._config.timeout_s):
                await page.goto(self._source.url, wait_until="commit", timeout=0)
                await self._rest(page)
        except TimeoutError:
            self._complete = False
        except Error as error:
            raise self._failure(error) from None
        try:
            async with asyncio.timeout(_GRACE_S):
                return await self._shown(context, page)
        except TimeoutError:
            raise PageError("render_timeout", "the page does not answer: a script of it runs on and on") from None
        except Error as error:
            raise self._failure(error) from None

    async def _guard(self, context: BrowserContext) -> None:
        await context.add_init_script(_WITHOUT)
        await context.route("**/*", self._route)
        context.on("request", self._begun)
        context.on("requestfinished", self._over)
        context.on("requestfailed", self._over)

    async def _route(self, route: Route) -> None:
        request = route.request
        try:
            if request.is_navigation_request():
                await self._navigate(route)
            elif self._may(request):
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
            own = False  # a window that has no page yet
        if own and not self._served:
            self._served = True
            headers = {name.lower(): value for name, value in self._source.headers if name.lower() in _KEPT}
            headers.setdefault("content-type", "text/html")
            await route.fulfill(status=200, headers=headers, body=self._source.body)
            return
        if own:
            self._left = True
            lead = canonical(request.url)
            if lead is not None and lead != self._source.url and len(self._leads) < _MAX_LEADS:
                self._leads[lead] = None
        # "aborted" keeps the page; any other error would show an error page instead.
        await route.abort("aborted")

    def _may(self, request: Request) -> bool:
        if request.method != "GET" or request.resource_type in self._config.blocked:
            return False
        self._requests += 1
        if self._requests > self._config.max_requests:
            self._complete = False
            return False
        url = canonical(request.url)
        return url is None or self._allowed(url)

    def _begun(self, request: Request) -> None:
        if request.resource_type not in _ENDLESS:
            self._under_way.add(request)
        self._changed = time.monotonic()

    def _over(self, request: Request) -> None:
        self._under_way.discard(request)
        self._changed = time.monotonic()

    async def _rest(self, page: Page) -> None:
        """Waits until the page has loaded and nothing has been under way for the time to settle."""
        self._changed = time.monotonic()
        # A page that tries to navigate while it is read is not read further: it never loads.
        while (
            not (self._loaded or self._left)
            or self._under_way
            or time.monotonic() - self._changed < self._config.settle_ms / 1000
        ):
            if self._crashed or page.is_closed():
                raise PageError("render_crash", "the page or its browser has ended")
            await asyncio.sleep(_LOOK_S)

    async def _shown(self, context: BrowserContext, page: Page) -> Shown:
        session = await context.new_cdp_session(page)
        tree = await session.send("Page.getFrameTree")
        world = await session.send("Page.createIsolatedWorld", {"frameId": tree["frameTree"]["frame"]["id"]})
        expression = {
            "expression": _SHOWN % self._config.max_dom_bytes,
            "contextId": world["executionContextId"],
            "returnByValue": True,
        }
        found = (await session.send("Runtime.evaluate", expression))["result"].get("value")
        if not isinstance(found, dict) or not str(found["url"]).startswith(("http://", "https://")):
            raise PageError("render_failed", "the page has no document, or another one")
        if not found["html"]:
            raise PageError("render_too_large", f"{found['size']} characters")
        html = str(found["html"]).encode("utf-8", "replace")
        return Shown(html, str(found["url"]), tuple(self._leads), self._requests, self._complete)

    def _load(self, page: Page) -> None:
        self._loaded = True
        self._changed = time.monotonic()

    def _crash(self, page: Page) -> None:
        self._crashed = True

    def _failure(self, error: Error) -> PageError:
        return PageError("render_crash" if self._crashed else "render_failed", error.message.partition("\n")[0])


async def _close(page: Page) -> None:
    with contextlib.suppress(Error):
        await page.close()


async def _dismiss(dialog: Dialog) -> None:
    with contextlib.suppress(Error):
        await dialog.dismiss()

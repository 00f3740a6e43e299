"""Servers on free loopback ports for the tests of the crawl: a small site, and one that must not be reached.

Not a test module.
"""

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable

from aiohttp import web

Handler = Callable[[web.Request], "web.StreamResponse | asyncio.Future[web.StreamResponse]"]


class Site:
    """Serves `pages` (path -> HTML, bytes or handler) in a thread; records the time of every request.

    Attributes:
        requests: (monotonic begin, end, Host header, path and query) of every request.
    """

    def __init__(self, pages: dict[str, object], robots: object = "") -> None:
        self.pages = pages
        self.robots = robots
        self.requests: list[tuple[float, float, str, str]] = []
        self.headers: list[tuple[str, dict[str, str]]] = []
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> "Site":
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def paths(self) -> list[str]:
        return [path for *_, path in self.requests]

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._begin())
        self._loop.run_forever()

    async def _begin(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self._ready.set()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        begin = time.monotonic()
        self.headers.append((request.path_qs, dict(request.headers)))
        try:
            return await self._respond(request)
        finally:
            self.requests.append((begin, time.monotonic(), request.host, request.path_qs))

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        page = self.robots if request.path == "/robots.txt" else self.pages.get(request.path_qs)
        if page is None:
            return web.Response(status=404, text="not here")
        if callable(page):
            result = page(request)
            return await result if asyncio.iscoroutine(result) else result
        kind = "text/plain" if request.path == "/robots.txt" else "text/html"
        data = page.encode() if isinstance(page, str) else page
        return web.Response(body=data, content_type=kind, charset="utf-8")


def linked(count: int, fanout: int = 3) -> dict[str, object]:
    """Returns `count` pages /, /1, /2, ... in a tree, each with distinct text and a link back."""
    names = ["/"] + [f"/{number}" for number in range(1, count)]
    pages: dict[str, object] = {}
    for number, name in enumerate(names):
        children = names[number * fanout + 1 : number * fanout + 1 + fanout]
        links = "".join(f'<a href="{child}">{child}</a> ' for child in [*children, "/"])
        pages[name] = f"<html><title>{name}</title><body><p>This is page {number}.</p>{links}</body></html>"
    return pages


class PrivateServer:
    """A server of a private network, with TCP and UDP on one loopback port, that records everything it receives.

    Args:
        tls: context for TLS; None for plain text.

    Attributes:
        requests: path of each HTTP request, or "tcp" and "udp" for anything else.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[str] = []
        self._tls = tls
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self.port = self._tcp.getsockname()[1]
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("127.0.0.1", self.port))
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._accept, self._receive)]
        for thread in self._threads:
            thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._tcp.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(5)
            try:
                if self._tls:
                    connection = self._tls.wrap_socket(connection, server_side=True)
                head = connection.recv(65536)
                words = head.split(b" ", 2)
                self.requests.append(words[1].decode() if words[0] in (b"GET", b"POST", b"OPTIONS") else "tcp")
                body = b"HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\nContent-Length: 2\r\n\r\nhi"
                connection.sendall(body)
            except OSError:
                self.requests.append("tcp")

    def _receive(self) -> None:
        while True:
            try:
                data, _ = self._udp.recvfrom(65536)
            except OSError:
                return
            if not data:  # closed
                return
            self.requests.append("udp")

    def close(self) -> None:
        for one in (self._tcp, self._udp):
            # A thread blocked in a system call is woken by a shutdown of the socket, not by closing its file
            # descriptor.
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

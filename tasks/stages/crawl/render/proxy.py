"""Forward proxy on loopback for the browser of one page: checks every server by the rules of the crawl.

Plain HTTP is forwarded request by request (GET only); all other traffic uses CONNECT, for which the proxy sees only the
server and the number of bytes. The proxy connects to the addresses that were checked (`AddressGuard`), never to a name.
TLS is end to end between browser and site.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Coroutine
from types import TracebackType
from typing import Any

from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.url import authority, split_port
from tasks.stages.crawl.config import is_loopback
from tasks.stages.crawl.http.address import Grants, RefusedAddressError, is_address, refusal
from tasks.stages.crawl.http.dns import GuardedResolver, Resolver
from tasks.stages.crawl.policy import HOST_DENIED, Policy

log = logging.getLogger("sluice.crawl")

_LOOKUP_S = 10.0

_MAX_HEAD = 64 << 10
_CHUNK = 64 << 10
_CONNECT_S = 10.0
_HEAD_S = 30.0
# Headers for the hop between browser and proxy, which are not forwarded.
_DROPPED = frozenset((b"connection", b"proxy-connection", b"proxy-authorization", b"keep-alive", b"upgrade", b"te"))
_BODY = frozenset((b"content-length", b"transfer-encoding"))


class _RefusalError(Exception):
    """A request is refused; the message is status code and reason phrase of the response."""


class AddressGuard:
    """Resolves servers to addresses that the crawl may connect to.

    Args:
        resolver: resolver of public names, whose answers are checked.
        grants: hosts that may be reached at private addresses or on other ports.
        policy: denied hosts.
    """

    def __init__(self, resolver: Resolver, grants: Grants, policy: Policy | None = None) -> None:
        self._grants = grants
        self._policy = policy or Policy()
        self._resolver = GuardedResolver(resolver, grants)

    def for_page(self, host: str) -> "AddressGuard":
        """Returns the guard for the pages of `host`, to which only the grants of this host apply."""
        return AddressGuard(self._resolver.inner, self._grants.only(host), self._policy)

    async def addresses(self, scheme: str, netloc: str) -> list[tuple[str, int]]:
        """Returns the checked (address, port) pairs of a server; the proxy may connect to these only.

        Args:
            scheme: "http" or "https".
            netloc: host with an optional port, as the browser sends it.

        Raises:
            RefusedAddressError: the crawl must not reach the server.
            OSError: the name does not exist, or the name server does not respond.
        """
        url = canonical(f"{scheme}://{netloc}/")
        if url is None:
            raise RefusedAddressError(f"{netloc} is not a host")
        server = authority(url)
        if reason := HOST_DENIED if self._policy.denies(server) else refusal(server, self._grants):
            raise RefusedAddressError(f"{netloc}: {reason}")
        host, explicit = split_port(server)
        port = explicit or (443 if scheme == "https" else 80)
        name = host.strip("[]")
        if is_address(name) and not is_loopback(name):
            return [(name, port)]
        async with asyncio.timeout(_LOOKUP_S):
            addresses = await self._resolver.resolve(name, port)
        return [(address, port) for address in addresses]

    async def close(self) -> None:
        """Closes the resolver."""
        await self._resolver.close()


class Proxy:
    """The network access of one page; use as an async context manager.

    Args:
        guard: decides which servers may be reached.
        max_bytes: limit of received bytes; above it, all connections are closed.
        max_requests: limit of connections and plain requests.

    Attributes:
        port: port on 127.0.0.1 on which the proxy listens.
        received: number of bytes received from servers.
        requests: number of connections and plain requests.
        refused: number of refused requests by server.
        spent: "bytes" or "requests" after that limit was reached, otherwise "".
    """

    def __init__(self, guard: AddressGuard, max_bytes: int, max_requests: int) -> None:
        self._guard = guard
        self._max_bytes = max_bytes
        self._max_requests = max_requests
        self._addresses: dict[tuple[str, str], list[tuple[str, int]]] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        self.received = 0
        self.requests = 0
        self.refused: Counter[str] = Counter()
        self.spent = ""

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_MAX_HEAD)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*self._cancel_all(), return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    def _cancel_all(self) -> list[asyncio.Task[None]]:
        """Cancels the tasks of all connections, and returns them."""
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        return tasks

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEAD_S):
                head = await reader.readuntil(b"\r\n\r\n")
            await self._answer(head, reader, writer)
        except _RefusalError as refusal:
            with contextlib.suppress(OSError):
                writer.write(f"HTTP/1.1 {refusal}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the browser or the server closed the connection: the page gets a network error
        finally:
            writer.close()

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests += 1
        if self.requests > self._max_requests:
            self.spent = self.spent or "requests"
        if self.spent:
            raise _RefusalError("429 Enough")
        line, _, rest = head.partition(b"\r\n")
        words = line.decode("latin-1").split(" ")
        if len(words) != 3:
            raise _RefusalError("400 Bad Request")
        method, target, _ = words
        if method == "CONNECT":
            up, down = await self._connect("https", target)
            writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            await self._relay(up, writer, self._pump(reader, down), down)
        elif method == "GET" and target.startswith("http://"):
            authority, slash, path = target.removeprefix("http://").partition("/")
            request = _request(authority, slash + path or "/", rest)
            up, down = await self._connect("http", authority)
            down.write(request)
            # One request per connection: further bytes from the browser, or its close, end the connection.
            await self._relay(up, writer, reader.read(1), down)
        else:
            raise _RefusalError("405 Only GET")

    async def _connect(self, scheme: str, authority: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            addresses = self._addresses.get((scheme, authority))
            if addresses is None:
                # Cached for the page, so that the addresses are checked once and do not change.
                addresses = self._addresses[scheme, authority] = await self._guard.addresses(scheme, authority)
        except RefusedAddressError as error:
            self.refused[authority] += 1
            log.info("a rendered page requested %s", error)
            raise _RefusalError("403 Not for crawlers") from None
        except (OSError, TimeoutError, ValueError):
            raise _RefusalError("502 Unknown host") from None
        for address, port in addresses:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_CONNECT_S):
                    return await asyncio.open_connection(address, port, limit=_CHUNK)
        raise _RefusalError("502 No connection")

    async def _relay(
        self,
        up: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        other: Coroutine[Any, Any, object],
        down: asyncio.StreamWriter,
    ) -> None:
        """Forwards bytes of the server until it closes the connection or `other` ends."""
        tasks = [asyncio.ensure_future(self._receive(up, writer)), asyncio.ensure_future(other)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            down.close()

    async def _receive(self, up: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await up.read(_CHUNK):
            self.received += len(data)
            if self.received > self._max_bytes:
                self.spent = "bytes"
                self._cancel_all()
                return
            writer.write(data)
            await writer.drain()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(_CHUNK):
            sink.write(data)
            await sink.drain()


def _request(authority: str, path: str, rest: bytes) -> bytes:
    """Returns the request head for the server; raises _RefusalError if the browser's head announces a body."""
    lines = [f"GET {path} HTTP/1.1".encode("latin-1"), b"Host: " + authority.encode("latin-1")]
    for line in rest.split(b"\r\n"):
        name = line.partition(b":")[0].strip().lower()
        if name in _BODY:
            raise _RefusalError("405 Only GET")
        if line and name != b"host" and name not in _DROPPED:
            lines.append(line)
    return b"\r\n".join([*lines, b"Connection: close", b"", b""])

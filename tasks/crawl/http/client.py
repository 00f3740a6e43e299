"""One HTTP request: raw body, capped, never redirected, only to public addresses.

Used by fetch. aiohttp with its strict parser (header floods, both length headers, NULs are refused), 7,300-10,600
pages per CPU-second when bodies stay as received. Everything that a server can make long has an end: header fields,
head, interim responses, body, bytes on the wire, and the whole in time. Proxies of the environment are not used: they
would look names up themselves.
"""

import asyncio
import functools
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from yarl import URL

from tasks.codings import ACCEPTED_CODINGS
from tasks.crawl.config import CrawlConfig
from tasks.crawl.http.address import PRIVATE, GuardedResolver, RefusedAddressError, is_address, reachable, refusal
from tasks.crawl.http.dns import CachingResolver
from tasks.crawl.url import host_and_port

VERSION = "0.1"
# Unwanted bodies up to this size are read to their end, which keeps the connection; above, it is closed.
_DRAIN = 16 << 10

# Caps of one answer. Browsers take heads of 256 KiB at most; 1xx answers come once or twice, if at all.
_MAX_FIELD, _MAX_FIELDS, _MAX_HEAD, _MAX_INTERIM = 32 << 10, 128, 512 << 10, 16
# Chunked framing may double a body; what makes it longer wants to be long.
_FRAMING, _MARGIN = 2, 1 << 20

Headers = tuple[tuple[str, str], ...]

# The address that answers the request of this task, and the bytes of body that it may send.
_peer: ContextVar[str] = ContextVar("peer", default="")
_limit: ContextVar[int] = ContextVar("limit", default=0)


@dataclass(frozen=True)
class Answer:
    """A response as received.

    Attributes:
        status: HTTP status.
        reason: the words behind it.
        headers: in the order received, latin-1.
        body: entity body without transfer coding, with content coding; b"" when it was not wanted.
        truncated: the body was longer than allowed.
        address: the IP address that answered, or "".
        request: the request head as sent.
        seconds: from the first to the last byte.
    """

    status: int
    reason: str
    headers: Headers
    body: bytes
    truncated: bool
    address: str
    request: bytes
    seconds: float

    def header(self, name: str) -> str | None:
        """Returns the first header called `name` (lower case), or None."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    @property
    def location(self) -> str | None:
        """Where a redirect leads; letters outside ASCII are UTF-8, as browsers read them, or else latin-1."""
        value = self.header("location")
        if value is None or value.isascii():
            return value
        try:
            return value.encode("latin-1").decode()
        except UnicodeDecodeError:
            return value

    def all(self, name: str) -> list[str]:
        """Returns every header called `name` (lower case)."""
        return [value for key, value in self.headers if key.lower() == name]


class FetchError(Exception):
    """A request without a usable answer; `reason` is a machine word (timeout, dns, connect, tls, protocol ...)."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


def agent_of(config: CrawlConfig) -> str:
    """Returns the User-Agent of the crawl: product token, version, and how to reach its owner."""
    return f"{config.user_agent}/{VERSION}" + (f" (+{config.contact})" if config.contact else "")


class Client:
    """Sends requests; use as an async context manager.

    Args:
        config: the crawl's settings.
        resolver: looks public names up; the name servers of the recipe or of this machine by default. Its answers are
            checked all the same.
    """

    def __init__(self, config: CrawlConfig, resolver: AbstractResolver | None = None) -> None:
        self._config = config
        self._resolver = resolver
        self._headers = {"User-Agent": agent_of(config), "Accept-Encoding": ACCEPTED_CODINGS}
        self._session: aiohttp.ClientSession | None = None
        self._guard: GuardedResolver | None = None

    async def __aenter__(self) -> "Client":
        loopback = self._config.allow_loopback
        inner = self._resolver or CachingResolver(self._config.name_servers)
        self._guard = GuardedResolver(allow_loopback=loopback, inner=inner)
        self._session = aiohttp.ClientSession(
            connector=_Connector(self._guard, loopback),
            timeout=aiohttp.ClientTimeout(total=self._config.timeout_s),
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            max_field_size=_MAX_FIELD,
            max_headers=_MAX_FIELDS,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
        if self._guard is not None:
            await self._guard.close()  # aiohttp leaves a resolver that it was given open

    async def get(
        self,
        url: str,
        *,
        limit: int,
        wanted: Callable[[int, Headers], bool] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Requests a canonical URL.

        Args:
            url: where; refused here when its literal address or port is not for crawlers.
            limit: bytes of body taken at most.
            wanted: decides by status and headers whether the body is worth its bytes.
            headers: further request headers (conditional requests).

        Raises:
            FetchError: no usable answer.
        """
        reason = refusal(url, allow_loopback=self._config.allow_loopback)
        if reason is not None:
            raise FetchError(reason, url)
        if self._session is None:
            raise RuntimeError("use the client as an async context manager")
        _limit.set(limit)
        try:
            begin = time.monotonic()
            async with self._session.get(
                URL(url, encoded=True), allow_redirects=False, headers=headers or {}
            ) as response:
                return await _answer(response, limit, wanted, begin)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise FetchError(_reason(error), str(error)) from error

    async def locate(self, url: str) -> str:
        """Returns the IP address at which a canonical URL would be asked for, or "" where none is known."""
        if self._guard is None:
            raise RuntimeError("use the client as an async context manager")
        name = host_and_port(url)[0].strip("[]")
        if is_address(name):
            return name
        try:
            async with asyncio.timeout(self._config.timeout_s):
                answers = await self._guard.resolve(name, family=socket.AF_UNSPEC)
        except (OSError, TimeoutError, ValueError):
            return ""  # the request itself will say why
        return answers[0]["host"] if answers else ""


class _Handler(ResponseHandler):
    """Reads answers, and ends the connection when one is longer than any answer has reason to be.

    Attributes:
        peer: the address at the other end once it was checked, or "".
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.peer = ""
        self.expect(0)

    def expect(self, limit: int) -> None:
        """Begins an answer with a body of `limit` bytes at most."""
        self._wire = self._interim = 0
        self._has_head = False
        self._max_wire = _FRAMING * limit + _MARGIN

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Takes a parsed head on its way to the reader."""
        if 100 <= data[0].code < 200:
            self._interim += 1
        else:
            self._has_head = True
        super().feed_data(data, size)

    def data_received(self, data: bytes) -> None:
        """Takes bytes from the wire."""
        self._wire += len(data)
        if self._wire > self._max_wire:
            return self._end(f"more than {self._max_wire} bytes on the wire")
        super().data_received(data)
        if self._interim > _MAX_INTERIM:
            self._end(f"more than {_MAX_INTERIM} interim responses")
        elif not self._has_head and self._wire > _MAX_HEAD:
            self._end(f"a head of more than {_MAX_HEAD} bytes")

    def _end(self, why: str) -> None:
        error = aiohttp.ClientPayloadError(why)
        if self._payload is not None:
            self._payload.set_exception(error)
        self.set_exception(error)
        if self.transport is not None:
            self.transport.abort()


def _handler(loop: asyncio.AbstractEventLoop) -> ResponseHandler:
    return _Handler(loop)


class _Connector(aiohttp.TCPConnector):
    """Connects to checked addresses, and checks what it is connected to.

    Notes the address: a short answer has given its connection back before it can be asked. There is no cache of names
    here: the resolver has one that keeps to the life of the answers.
    """

    def __init__(self, resolver: AbstractResolver, allow_loopback: bool) -> None:
        super().__init__(resolver=resolver, limit=0, use_dns_cache=False, keepalive_timeout=30.0)
        self._allow_loopback = allow_loopback
        self._factory = functools.partial(_handler, loop=self._loop)

    async def connect(self, *args: Any, **kwargs: Any) -> Connection:
        """Returns a connection to a host, new or kept; raises RefusedAddressError."""
        connection = await super().connect(*args, **kwargs)
        handler = connection.protocol
        known = handler.peer if isinstance(handler, _Handler) else ""
        _peer.set(known or self._checked(connection))
        if isinstance(handler, _Handler):
            handler.peer = _peer.get()
            handler.expect(_limit.get())
        return connection

    def _checked(self, connection: Connection) -> str:
        """Returns the address that a new connection leads to."""
        peer = connection.transport and connection.transport.get_extra_info("peername")
        address = str(peer[0]) if peer else ""
        if address and not reachable(address, allow_loopback=self._allow_loopback):
            connection.close()
            raise RefusedAddressError(f"connected to {address}, which is not public")
        return address


async def _answer(
    response: aiohttp.ClientResponse, limit: int, wanted: Callable[[int, Headers], bool] | None, begin: float
) -> Answer:
    headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in response.raw_headers)
    keep = wanted is None or wanted(response.status, headers)
    body, truncated = await _body(response, limit if keep else _DRAIN)
    if truncated:
        response.close()
    return Answer(
        status=response.status,
        reason=response.reason or "",
        headers=headers,
        body=body if keep else b"",
        truncated=truncated,
        address=_peer.get(),
        request=_request(response),
        seconds=time.monotonic() - begin,
    )


async def _body(response: aiohttp.ClientResponse, limit: int) -> tuple[bytes, bool]:
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            return b"".join(chunks)[:limit], True
    return b"".join(chunks), False


def _request(response: aiohttp.ClientResponse) -> bytes:
    info = response.request_info
    lines = [f"GET {info.url.raw_path_qs} HTTP/1.1", *(f"{key}: {value}" for key, value in info.headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def _reason(error: BaseException) -> str:
    """Returns the machine word for what went wrong."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, RefusedAddressError):
            return PRIVATE
        cause = cause.__cause__ or getattr(cause, "os_error", None)
    if isinstance(error, asyncio.TimeoutError | TimeoutError):
        return "timeout"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "dns"
    if isinstance(error, aiohttp.ClientSSLError | ssl.SSLError):
        return "tls"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "connect"
    if isinstance(error, aiohttp.InvalidURL):
        return "url"
    return "protocol"

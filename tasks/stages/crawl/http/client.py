"""HTTP client: one request per call, only to permitted addresses, with limits and without redirects.

Limits cover everything that a server controls: the head, interim responses, the body, chunk overhead (`response`) and
the total time. The body is returned as received, with its content coding. Requests contain only the headers that
`_Request` writes: no cookies and no password files; no proxy is used.
"""

import asyncio
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import NamedTuple

from tasks.formats.warc.record import payload_digest
from tasks.formats.web.content_encoding import ACCEPTED_CODINGS
from tasks.formats.web.url import authority, split_port, target
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.http.address import PRIVATE, Grants, RefusedAddressError, is_address, refusal
from tasks.stages.crawl.http.connection import (
    LookUpError,
    NoConnectionError,
    PausableTimeout,
    Pool,
    SocketBudget,
    port_of,
    socket_budget,
)
from tasks.stages.crawl.http.dns import CachingResolver, GuardedResolver, Resolver
from tasks.stages.crawl.http.response import (
    BodyLimit,
    DisconnectError,
    Headers,
    ProtocolError,
    ResponseParser,
    Truncated,
)
from tasks.stages.crawl.http.signature import SIGNATURE, RequestSigner
from tasks.stages.crawl.policy import HOST_DENIED, HostHeaders, Policy

VERSION = "0.1"
SOFTWARE = f"sluice/{VERSION}"
"""Name of the crawler in WARC files."""

_CONTROL = re.compile(r"[\0\r\n]")
# Errors of a connection that breaks.
_BROKEN = (DisconnectError, ConnectionError, ssl.SSLEOFError)
# Placeholder for a value that must not be stored.
_REDACTED = "[redacted]"
# The first match counts. Errors after the connection was opened are "protocol".
_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (RefusedAddressError, PRIVATE),
    (TimeoutError, "timeout"),
    (LookUpError, "dns"),
    (ssl.SSLError, "tls"),
    (NoConnectionError, "connect"),
)


@dataclass(frozen=True)
class Response:
    """A response as received.

    Attributes:
        status: HTTP status.
        reason: reason phrase.
        headers: name and value in the order received, decoded as Latin-1; Set-Cookie is redacted if the request
            contained credentials.
        body: entity body without transfer coding, with content coding; b"" when it was not requested.
        truncated: why the body is incomplete, or "".
        address: IP address of the server.
        request: head of the request as sent, with credentials redacted.
        seconds: time to the last byte, including a new connection, without the time waited for other requests.
    """

    status: int
    reason: str
    headers: Headers
    body: bytes
    truncated: Truncated
    address: str
    request: bytes
    seconds: float

    def header(self, name: str) -> str | None:
        """Returns the first header called `name` (lower case), or None."""
        values = self._by_name.get(name)
        return values[0] if values else None

    @property
    def location(self) -> str | None:
        """Target of a redirect, or None; decoded as UTF-8, as in browsers, or else as Latin-1."""
        value = self.header("location")
        if value is None or value.isascii():
            return value
        try:
            return value.encode("latin-1").decode()
        except UnicodeDecodeError:
            return value

    @cached_property
    def payload_digest(self) -> str:
        """Digest of the body in the format of WARC."""
        return payload_digest(self.body)

    def all(self, name: str) -> list[str]:
        """Returns every header called `name` (lower case)."""
        return self._by_name.get(name, [])

    @cached_property
    def _by_name(self) -> dict[str, list[str]]:
        values: dict[str, list[str]] = {}
        for name, value in self.headers:
            values.setdefault(name.lower(), []).append(value)
        return values


class Endpoint(NamedTuple):
    """The address to which a request for a URL would be sent.

    Attributes:
        address: IP address; "" if unknown.
        refused: why the literal address or port of the URL must not be requested ("private_address", "port"), or "".
    """

    address: str
    refused: str = ""


class FetchError(Exception):
    """A request without a usable response; `reason` is a code (timeout, dns, connect, tls, protocol ...)."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


def agent_of(config: CrawlConfig) -> str:
    """Returns the User-Agent of the crawl: product token, version and contact."""
    return f"{config.user_agent}/{VERSION}" + (f" (+{config.contact})" if config.contact else "")


class Client:
    """HTTP client; use as an async context manager.

    Args:
        config: the crawl's settings.
        resolver: resolves names; by default the name servers of the recipe or of this machine. Its answers are always
            checked.
        begin: called with an IP address before a request is sent there; returns the seconds to wait first.
        policy: denied hosts, and additional headers by host.
        signer: signs requests.
        sockets: number of connections that may be open; by default sufficient for `config.concurrency` requests.
    """

    def __init__(
        self,
        config: CrawlConfig,
        resolver: Resolver | None = None,
        begin: Callable[[str], float] | None = None,
        policy: Policy | None = None,
        sockets: SocketBudget | None = None,
        signer: RequestSigner | None = None,
    ) -> None:
        self._config = config
        self._signer = signer
        self._sockets = sockets or socket_budget(config.concurrency)
        self._resolver = resolver
        self._begin = begin
        self._policy = policy or Policy()
        self._grants = Grants(config.allow_hosts, allow_loopback=config.allow_loopback)
        self._headers = {"User-Agent": agent_of(config), "Accept-Encoding": ACCEPTED_CODINGS, "Accept": "*/*"}
        self._opened: tuple[GuardedResolver, Pool] | None = None

    async def __aenter__(self) -> "Client":
        inner = self._resolver or CachingResolver(self._config.name_servers)
        resolver = GuardedResolver(inner, self._grants)
        self._opened = resolver, Pool(resolver, self._grants, self._sockets)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        resolver, pool = self._require_open()
        pool.close()
        await resolver.close()

    def _require_open(self) -> tuple[GuardedResolver, Pool]:
        if self._opened is None:
            raise RuntimeError("use the client as an async context manager")
        return self._opened

    async def get(
        self,
        url: str,
        *,
        limit: int,
        body_limit: BodyLimit | None = None,
        headers: Mapping[str, str] | None = None,
        anonymous: bool = False,
        keep_partial: bool = False,
    ) -> Response:
        """Requests a canonical URL.

        Args:
            url: the URL; no request is sent if its address, port or host is refused.
            limit: maximum number of body bytes.
            body_limit: called with status and headers; returns a limit that replaces `limit`, 0 for no body.
            headers: additional request headers (conditional requests).
            anonymous: omit the headers of the hosts file, because another host has chosen this URL.
            keep_partial: return the part of a body that was received before the connection broke.

        Raises:
            FetchError: no usable response, or the URL is refused.
        """
        host = authority(url)
        if reason := refusal(host, self._grants) or (HOST_DENIED if self._policy.denies(host) else None):
            raise FetchError(reason, url)
        # Chosen by the URL of this request alone: a redirect does not carry credentials to another host.
        extra = HostHeaders() if anonymous else self._policy.headers_for(url)
        try:
            request = _Request(url, {**self._headers, **extra.headers, **(headers or {})}, extra.secret, self._signer)
            return await self._exchange(request, ResponseParser(limit, body_limit), keep_partial)
        except (ProtocolError, TimeoutError, OSError, ValueError) as error:
            raise FetchError(_reason(error), str(error)) from error

    async def locate(self, url: str) -> Endpoint:
        """Returns the address to which a request for a canonical URL would be sent; refused URLs are not resolved."""
        resolver, pool = self._require_open()
        host = authority(url)
        if refused := refusal(host, self._grants):
            return Endpoint("", refused)
        name = split_port(host)[0].strip("[]")
        if is_address(name):
            return Endpoint(name)
        if peer := pool.peer(url):
            return Endpoint(peer)
        try:
            async with asyncio.timeout(self._config.timeout_s):
                answers = await resolver.resolve(name, port_of(url))
        except (OSError, TimeoutError, ValueError):
            return Endpoint("")  # the request itself fails with the reason
        return Endpoint(answers[0] if answers else "")

    async def _exchange(self, request: "_Request", parser: ResponseParser, keep_partial: bool) -> Response:
        _, pool = self._require_open()
        start = time.monotonic()
        async with asyncio.timeout(self._config.timeout_s) as limit:
            timeout = PausableTimeout(limit)
            connection = await pool.acquire(request.url)
            while not parser.done:
                reused = connection.used
                await self._wait(connection.peer, timeout)
                request.sign()
                try:
                    await connection.exchange(request.sent, parser, timeout)
                except (ProtocolError, OSError) as error:
                    if keep_partial and isinstance(error, _BROKEN) and parser.truncate():
                        break
                    # A server may close an idle connection at any time (RFC 9112, 9.3.1), without reading the request.
                    if not reused or parser.begun:
                        raise
                    connection = await pool.acquire(request.url, fresh=True)
        if parser.reusable:
            pool.release(request.url, connection)
        return Response(
            status=parser.status,
            reason=parser.reason,
            headers=request.redacted_headers(parser.headers),
            body=parser.body,
            truncated=parser.truncated,
            address=connection.peer,
            request=request.redacted,
            seconds=time.monotonic() - start - timeout.paused_s,
        )

    async def _wait(self, peer: str, timeout: PausableTimeout) -> None:
        """Waits until a request may be sent to an address."""
        wait = self._begin(peer) if self._begin is not None else 0.0
        if wait > 0:
            timeout.pause()
            await asyncio.sleep(wait)
            timeout.resume()


class _Request:
    """The head of a request.

    Args:
        url: canonical URL.
        headers: name and value, in the order in which they are sent.
        secret: names (lower case) of headers whose values are not stored.
        signer: signs the request, or None.

    Attributes:
        sent: the bytes to send.
        redacted: the same with credentials redacted, for storage. A signature is one until it expires.

    Raises:
        ValueError: a header contains a control character.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str], secret: frozenset[str], signer: RequestSigner | None
    ) -> None:
        self.url = url
        self._headers = headers
        self._secret = secret
        self._signer = signer
        self._write({})

    def sign(self) -> None:
        """Signs the request as of now, if there is a signer: once for each time it is sent."""
        if self._signer is not None:
            self._write(self._signer.headers(self.url))

    def _write(self, signature: Mapping[str, str]) -> None:
        headers = {**self._headers, **signature}
        self.sent = self._head(headers)
        hidden = {name for name in headers if name.lower() in self._secret or name == SIGNATURE}
        shown = {name: _REDACTED if name in hidden else value for name, value in headers.items()}
        self.redacted = self._head(shown) if hidden else self.sent

    def redacted_headers(self, headers: Headers) -> Headers:
        """Returns the headers of the response as they may be stored."""
        if not self._secret:
            return headers
        # A renewed session is a credential as well.
        return tuple((name, _REDACTED if name.lower() == "set-cookie" else value) for name, value in headers)

    def _head(self, headers: Mapping[str, str]) -> bytes:
        lines = [f"GET {target(self.url)} HTTP/1.1", f"Host: {authority(self.url)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if any(map(_CONTROL.search, lines)):
            raise ValueError("a line break in a header")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def _reason(error: BaseException) -> str:
    """Returns the code for an error."""
    for kinds, reason in _REASONS:
        if isinstance(error, kinds):
            return reason
    return "protocol"

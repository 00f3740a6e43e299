"""One HTTP request: raw body, capped, never redirected, only to public addresses.

Everything that a server can make long is limited: head, interim responses, body, chunk overhead, and the total time
(`response`). No proxies, cookies, password files or redirects: requests contain only what `_request` writes.
"""

import asyncio
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import NamedTuple

from tasks.formats.warc.record import payload_digest
from tasks.formats.web.content_encoding import ACCEPTED_CODINGS
from tasks.formats.web.url import authority, host_and_port, target
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.http.address import PRIVATE, Grants, RefusedAddressError, is_address, refusal
from tasks.stages.crawl.http.connection import Clock, Files, LookUpError, NoConnectionError, Pool, files_for, port_of
from tasks.stages.crawl.http.dns import CachingResolver, GuardedResolver, Resolver
from tasks.stages.crawl.http.response import DisconnectError, Headers, ProtocolError, Response, Truncated, Wanted
from tasks.stages.crawl.policy import HOST_DENIED, Policy, Sent

VERSION = "0.1"
SOFTWARE = f"sluice/{VERSION}"
"""The crawler, as WARC files name it."""

# Seconds, and an address that may be written without "url=" and in quotes.
_REFRESH = re.compile(r"""\s*[\d.]+(?:\s*[;,]|\s)\s*(?:url\s*=\s*)?(?:"([^"]+)|'([^']+)|([^"'\s].*))""", re.I)
_CONTROL = re.compile(r"[\0\r\n]")
# How a connection breaks.
_BROKEN = (DisconnectError, ConnectionError, ssl.SSLEOFError)
# Placeholder for a value that must not be stored.
_REDACTED = "[redacted]"
# The first that fits; what breaks later than in opening a connection is "protocol".
_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (RefusedAddressError, PRIVATE),
    (TimeoutError, "timeout"),
    (LookUpError, "dns"),
    (ssl.SSLError, "tls"),
    (NoConnectionError, "connect"),
)


@dataclass(frozen=True)
class Answer:
    """A response as received.

    Attributes:
        status: HTTP status.
        reason: the words behind it.
        headers: in the order received, latin-1.
        body: entity body without transfer coding, with content coding; b"" when it was not requested.
        truncated: why the body is not whole, or "".
        address: the IP address that answered.
        request: the request as sent, without the values of credentials.
        seconds: from the beginning, a new connection included, to the last byte.
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
    def refresh(self) -> str | None:
        """Where the header Refresh leads (HTML Living Standard, 4.2.5.3 "Pragma directives"), or None."""
        found = _REFRESH.match(self.header("refresh") or "")
        return found[1] or found[2] or found[3] if found else None

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

    @cached_property
    def payload_digest(self) -> str:
        """Digest of the body as WARC writes it."""
        return payload_digest(self.body)

    def all(self, name: str) -> list[str]:
        """Returns every header called `name` (lower case)."""
        return self._by_name.get(name, [])

    @cached_property
    def _by_name(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, value in self.headers:
            found.setdefault(name.lower(), []).append(value)
        return found


class Located(NamedTuple):
    """Where a URL would be requested.

    Attributes:
        address: the IP address; "" where none is known.
        refused: why its literal address or port must not be requested ("private_address", "port"), or "".
    """

    address: str
    refused: str = ""


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
        begin: called with an IP address before a request is sent there; returns the seconds to wait until then.
        policy: denied hosts, and additional headers of single hosts.
        files: how many connections may be open; by default as many as the crawl's places need.
    """

    def __init__(
        self,
        config: CrawlConfig,
        resolver: Resolver | None = None,
        begin: Callable[[str], float] | None = None,
        policy: Policy | None = None,
        files: Files | None = None,
    ) -> None:
        self._config = config
        self._files = files or files_for(config.concurrency)
        self._resolver = resolver
        self._begin = begin
        self._policy = policy or Policy()
        self._grants = Grants(config.allow_hosts)
        self._headers = {"User-Agent": agent_of(config), "Accept-Encoding": ACCEPTED_CODINGS, "Accept": "*/*"}
        self._opened: tuple[GuardedResolver, Pool] | None = None

    async def __aenter__(self) -> "Client":
        loopback = self._config.allow_loopback
        inner = self._resolver or CachingResolver(self._config.name_servers)
        guard = GuardedResolver(allow_loopback=loopback, inner=inner, grants=self._grants)
        self._opened = guard, Pool(guard, self._grants, self._files, allow_loopback=loopback)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        guard, pool = self._open()
        pool.close()
        await guard.close()

    def _open(self) -> tuple[GuardedResolver, Pool]:
        if self._opened is None:
            raise RuntimeError("use the client as an async context manager")
        return self._opened

    async def get(
        self,
        url: str,
        *,
        limit: int,
        wanted: Wanted | None = None,
        headers: Mapping[str, str] | None = None,
        anonymous: bool = False,
        keep_cut: bool = False,
    ) -> Answer:
        """Requests a canonical URL.

        Args:
            url: where; refused here when its literal address or port is not for crawlers, or its host is denied.
            limit: bytes of body taken at most.
            wanted: returns by status and headers how many bytes to read instead; 0 for none.
            headers: further request headers (conditional requests).
            anonymous: without the settings of the hosts file: another host has chosen this URL.
            keep_cut: a body is worth having though the connection breaks within it.

        Raises:
            FetchError: no usable answer.
        """
        reason = refusal(url, allow_loopback=self._config.allow_loopback, grants=self._grants)
        if reason is None and self._policy.denies(authority(url)):
            reason = HOST_DENIED
        if reason is not None:
            raise FetchError(reason, url)
        # By the URL of this very request: a redirect is another one, and takes nothing along to another host.
        sent = Sent() if anonymous else self._policy.sent_to(url)
        try:
            request = _Request(url, {**self._headers, **sent.headers, **(headers or {})}, sent.secret)
            return await self._exchange(request, Response(limit, wanted), keep_cut)
        except (ProtocolError, TimeoutError, OSError, ValueError) as error:
            raise FetchError(_reason(error), str(error)) from error

    async def locate(self, url: str) -> Located:
        """Returns the IP address to which a canonical URL would be requested; a refused name is not looked up."""
        guard, pool = self._open()
        if refused := refusal(url, allow_loopback=self._config.allow_loopback, grants=self._grants):
            return Located("", refused)
        name = host_and_port(url)[0].strip("[]")
        if is_address(name):
            return Located(name)
        if peer := pool.peer(url):
            return Located(peer)
        try:
            async with asyncio.timeout(self._config.timeout_s):
                answers = await guard.resolve(name, port_of(url), socket.AF_UNSPEC)
        except (OSError, TimeoutError, ValueError):
            return Located("")  # the request itself raises the reason
        return Located(answers[0]["host"] if answers else "")

    async def _exchange(self, request: "_Request", response: Response, keep_cut: bool) -> Answer:
        _, pool = self._open()
        start, kept = time.monotonic(), True
        async with asyncio.timeout(self._config.timeout_s) as limit:
            clock = Clock(limit)
            connection = await pool.take(request.url)
            while not response.done:
                kept = connection.used
                await self._wait(connection.peer, clock)
                try:
                    await connection.exchange(request.sent, response, clock)
                except (ProtocolError, OSError) as error:
                    if keep_cut and isinstance(error, _BROKEN) and response.cut():
                        break
                    # A server may close a kept connection at any time (RFC 9112, 9.3.1); it has not taken the request.
                    if not kept or response.begun:
                        raise
                    connection = await pool.take(request.url, fresh=True)
        if response.reusable:
            pool.give(request.url, connection)
        return Answer(
            status=response.status,
            reason=response.reason,
            headers=request.kept_headers(response.headers),
            body=response.body,
            truncated=response.truncated,
            address=connection.peer,
            request=request.kept,
            seconds=time.monotonic() - start - clock.stopped_s,
        )

    async def _wait(self, peer: str, clock: Clock) -> None:
        """Waits until a request may be sent to an address."""
        wait = self._begin(peer) if self._begin is not None else 0.0
        if wait > 0:
            clock.stop()
            await asyncio.sleep(wait)
            clock.go_on()


class _Request:
    """The head of a request.

    Args:
        url: canonical.
        headers: in the order in which they are sent.
        secret: names (lower case) of headers whose values are not stored.

    Raises:
        ValueError: a header would break the head.
    """

    def __init__(self, url: str, headers: Mapping[str, str], secret: frozenset[str]) -> None:
        self.url = url
        self._secret = secret
        self.sent = self._head(headers)
        self.kept = self.sent
        if secret:
            shown = {name: _REDACTED if name.lower() in secret else value for name, value in headers.items()}
            self.kept = self._head(shown)

    def kept_headers(self, headers: Headers) -> Headers:
        """Returns the headers of the answer as they may be kept."""
        if not self._secret:
            return headers
        # A session that a host renews for us is a credential as well.
        return tuple((name, _REDACTED if name.lower() == "set-cookie" else value) for name, value in headers)

    def _head(self, headers: Mapping[str, str]) -> bytes:
        lines = [f"GET {target(self.url)} HTTP/1.1", f"Host: {authority(self.url)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if any(map(_CONTROL.search, lines)):
            raise ValueError("a line break in a header")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def _reason(error: BaseException) -> str:
    """Returns the machine word for an error."""
    for kinds, reason in _REASONS:
        if isinstance(error, kinds):
            return reason
    return "protocol"

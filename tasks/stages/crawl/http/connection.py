"""Pool of HTTP/1 connections to permitted addresses, with one request at a time per connection.

The peer address is checked before anything is sent. All connections share one budget of open files (`SocketBudget`),
derived from the soft limit of the process, which is raised as far as possible. When the budget is used up, the
connection that has been idle longest is closed to make way for the next request.

Bodies in flight share a memory limit (`BodyMemory`). A request that receives more than 256 KiB reserves memory until it
ends. While all memory is reserved, reading of large bodies is paused, except for the oldest request. So a thousand slow
hosts with bodies of the maximum size take no more memory than a few dozen.
"""

import asyncio
import logging
import resource
import socket
import ssl
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from tasks.core.errors import InputError
from tasks.core.open_files import raise_limit
from tasks.formats.web.url import host_and_port, origin_of
from tasks.stages.crawl.http.address import Grants, Network, RefusedAddressError, is_address, reachable
from tasks.stages.crawl.http.dns import Resolver
from tasks.stages.crawl.http.response import ProtocolError, ResponseParser

log = logging.getLogger("sluice.crawl")

MAX_IDLE = 4096
"""Maximum number of idle connections."""

# Open files besides these sockets: connections to the store, WARC files and their buffer, name servers, pipes.
_OTHER_FILES = 256
# Concurrent attempts, over all visits, to reach another address of a host while the first one is silent.
_MAX_SECOND_ATTEMPTS = 64
# With fewer sockets, most of the time is spent waiting for one.
_MIN_SOCKETS = 64

# Connection Attempt Delay of RFC 8305, 5.
_ATTEMPT_DELAY_S = 0.25

FREE_BODY = 256 << 10
"""Bytes of a body that are not counted."""
BODY_MEMORY = 192 << 20
"""Bytes of memory for the rest of all bodies."""

_IDLE_S = 30.0
_SWEEP_S = 5.0


class LookUpError(OSError):
    """A name cannot be resolved to an address."""


class NoConnectionError(OSError):
    """No address of a host accepts a connection."""


class SocketBudget(NamedTuple):
    """Number of sockets that a process may open.

    Attributes:
        visits: concurrent requests.
        sockets: open connections, active or idle.
        second_attempts: additional sockets, for concurrent attempts to reach other addresses of a host.
    """

    visits: int
    sockets: int
    second_attempts: int


def socket_budget(visits: int) -> SocketBudget:
    """Returns the budget for `visits` concurrent requests, or for fewer if the limit of open files is too low.

    Raises the soft limit of the process to its hard one.

    Raises:
        InputError: the hard limit is too low for any crawl.
    """
    raise_limit()
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    required = visits + MAX_IDLE + _MAX_SECOND_ATTEMPTS + _OTHER_FILES
    soft = required if soft == resource.RLIM_INFINITY else min(soft, required)
    sockets = min(soft - _OTHER_FILES - _MAX_SECOND_ATTEMPTS, visits + MAX_IDLE)
    if sockets < _MIN_SOCKETS:
        minimum = _MIN_SOCKETS + _MAX_SECOND_ATTEMPTS + _OTHER_FILES
        raise InputError(
            f"this process may have {soft} files open, and a fetch needs {minimum}",
            "raise the hard limit of open files (ulimit -Hn, LimitNOFILE= of a service, nofile of a container)",
        )
    if sockets < visits:
        log.warning(
            "%d requests at a time instead of %d: this process may have %d files open (raise its hard limit)",
            sockets,
            visits,
            soft,
        )
    return SocketBudget(min(visits, sockets), sockets, _MAX_SECOND_ATTEMPTS)


class PausableTimeout:
    """A timeout that can be paused while an exchange does not wait for the server.

    Args:
        timeout: the timeout of the exchange.

    Attributes:
        paused_s: seconds for which the timeout was paused.
    """

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self.paused_s = 0.0
        self._timeout = timeout
        self._paused_at: float | None = None
        self._remaining_s: float | None = None

    def pause(self) -> None:
        """Pauses the timeout."""
        if self._paused_at is None and not self._timeout.expired():
            self._paused_at, deadline = _now(), self._timeout.when()
            self._remaining_s = None if deadline is None else deadline - self._paused_at
            self._timeout.reschedule(None)

    def resume(self) -> None:
        """Resumes the timeout."""
        if self._paused_at is not None:
            now = _now()
            self.paused_s += now - self._paused_at
            self._paused_at = None
            self._timeout.reschedule(None if self._remaining_s is None else now + self._remaining_s)


def _now() -> float:
    return asyncio.get_running_loop().time()


class BodyMemory:
    """Accounts for the memory of large bodies, by visit, and pauses connections while it is used up."""

    def __init__(self) -> None:
        self._sizes: dict[Hashable, int] = {}
        self._paused: dict[Hashable, Connection] = {}
        self._reserved = 0

    def reserve(self, visit: "asyncio.Task[object]", connection: "Connection", size: int) -> None:
        """Records that the body of a visit has reached `size` bytes; pauses its connection if memory is used up."""
        if size <= FREE_BODY:
            return
        before = self._sizes.get(visit)
        if before is None:
            before = FREE_BODY
            visit.add_done_callback(self._release)
        self._sizes[visit] = size
        self._reserved += size - before
        if self._reserved > BODY_MEMORY and visit is not next(iter(self._sizes)) and visit not in self._paused:
            self._paused[visit] = connection
            connection.pause()

    def _release(self, visit: "asyncio.Task[object]") -> None:
        self._paused.pop(visit, None)
        self._reserved -= self._sizes.pop(visit) - FREE_BODY
        oldest = next(iter(self._sizes), None)
        for paused in [visit for visit in self._paused if self._reserved <= BODY_MEMORY or visit is oldest]:
            self._paused.pop(paused).resume()


class Connection(asyncio.Protocol):
    """One connection of a pool.

    Attributes:
        peer: IP address of the server.
        used: whether a request was sent over it before.
    """

    def __init__(self, pool: "Pool", origin: str) -> None:
        self.peer = ""
        self.used = False
        self._pool = pool
        self._origin = origin
        self._transport: asyncio.Transport | None = None
        self._parser: ResponseParser | None = None
        self._visit: asyncio.Task[object] | None = None
        self._timeout: PausableTimeout | None = None
        self._finished: asyncio.Future[None] | None = None
        self._lost = False
        self._counted = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Stores the transport and the peer address (asyncio.Protocol)."""
        self._transport = transport  # type: ignore[assignment]  # a stream's transport is a Transport
        self.peer = str(transport.get_extra_info("peername")[0])

    async def exchange(self, request: bytes, parser: ResponseParser, timeout: PausableTimeout) -> None:
        """Sends a request and reads the response until it is complete; cancellation closes the connection.

        Args:
            request: the bytes to send.
            parser: parses the response.
            timeout: paused while a large response waits for memory.

        Raises:
            ProtocolError: the bytes are not a valid response.
            OSError: the connection broke.
        """
        if self._transport is None or self._lost:
            raise ConnectionResetError("the server has closed the connection")
        self._parser, self._finished = parser, asyncio.get_running_loop().create_future()
        self._visit, self._timeout = asyncio.current_task(), timeout
        try:
            self._transport.write(request)
            await self._finished
        finally:
            self._parser = self._finished = self._visit = self._timeout = None
            self.used = True
            if not (parser.done and parser.reusable):
                self.close()

    def close(self) -> None:
        """Aborts the connection."""
        self._lost = True
        if self._transport is not None:
            self._transport.abort()

    def release_socket(self) -> None:
        """Returns its socket to the budget of the pool; further calls have no effect."""
        if self._counted:
            self._counted = False
            self._pool.sockets.release()

    @property
    def is_open(self) -> bool:
        """Whether a request may be sent."""
        return not self._lost

    def data_received(self, data: bytes) -> None:
        """Parses received bytes (asyncio.Protocol)."""
        parser = self._parser
        if parser is None or parser.done:
            # Unsolicited bytes: the next request must not read them as its response.
            self._discard()
            return
        try:
            parser.feed(data)
        except ProtocolError as error:
            self._finish(error)
            return
        if parser.done:
            self._finish(None)
        elif self._visit is not None:
            self._pool.memory.reserve(self._visit, self, parser.size)

    def pause(self) -> None:
        """Pauses reading, and the timeout of the exchange."""
        if self._transport is not None and self._timeout is not None:
            self._transport.pause_reading()
            self._timeout.pause()

    def resume(self) -> None:
        """Resumes reading and the timeout, unless the exchange has ended."""
        if self._transport is not None and self._timeout is not None and not self._lost:
            self._transport.resume_reading()
            self._timeout.resume()

    def connection_lost(self, error: Exception | None) -> None:
        """Ends the exchange under way (asyncio.Protocol)."""
        self._discard()
        self.release_socket()
        if self._parser is None:
            return
        if error is not None:
            self._finish(error)
            return
        try:
            self._parser.end()
        except ProtocolError as premature_end:
            self._finish(premature_end)
        else:
            self._finish(None)

    def _discard(self) -> None:
        self.close()
        self._pool.discard(self._origin, self)

    def _finish(self, error: Exception | None) -> None:
        if self._finished is None or self._finished.done():
            return
        if error is None:
            self._finished.set_result(None)
        else:
            self._finished.set_exception(error)


class Pool:
    """Opens connections, and keeps idle ones for the next request to their origin.

    Args:
        resolver: resolves names and checks the addresses.
        grants: hosts that may have private addresses.
        budget: number of connections that may be open.

    Attributes:
        memory: memory of large bodies.
        sockets: sockets that may be opened.
    """

    def __init__(self, resolver: Resolver, grants: Grants, budget: SocketBudget) -> None:
        self.memory = BodyMemory()
        self.sockets = asyncio.Semaphore(budget.sockets)
        self._second_attempts = asyncio.Semaphore(budget.second_attempts)
        self._resolver = resolver
        self._grants = grants
        self._tls: ssl.SSLContext | None = None
        # By origin, oldest first: when the connection expires (loop time), and the connection.
        self._idle: OrderedDict[str, tuple[float, Connection]] = OrderedDict()
        self._sweeper: asyncio.TimerHandle | None = None

    def peer(self, url: str) -> str:
        """Returns the peer address of the idle connection for a canonical URL, or "" if there is none."""
        idle = self._idle.get(origin_of(url))
        return idle[1].peer if idle else ""

    async def acquire(self, url: str, *, fresh: bool = False) -> Connection:
        """Returns a connection for a canonical URL: an idle one, or a new one if there is none or `fresh` is set.

        Raises:
            RefusedAddressError: connections to the address are not allowed.
            LookUpError: the name cannot be resolved.
            ssl.SSLError: the TLS handshake failed, or the certificate is not valid for the host.
            NoConnectionError: no address accepts a connection.
        """
        origin = origin_of(url)
        idle = self._idle.pop(origin, None)
        if idle is not None:
            if idle[1].is_open and not fresh:
                return idle[1]
            idle[1].close()
        return await self._open(url, origin)

    def release(self, url: str, connection: Connection) -> None:
        """Returns a reusable connection to the pool."""
        origin = origin_of(url)
        if not connection.is_open:
            return
        loop = asyncio.get_running_loop()
        self.discard(origin, None)
        self._idle[origin] = (loop.time() + _IDLE_S, connection)
        while len(self._idle) > MAX_IDLE:
            self._close_oldest()
        if self._sweeper is None:
            self._sweeper = loop.call_later(_SWEEP_S, self._sweep)

    def discard(self, origin: str, connection: Connection | None) -> None:
        """Closes and removes the idle connection of an origin, if it is `connection` (None: any)."""
        idle = self._idle.get(origin)
        if idle is not None and connection in (None, idle[1]):
            del self._idle[origin]
            idle[1].close()

    def close(self) -> None:
        """Closes all idle connections."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for _, connection in list(self._idle.values()):
            connection.close()
        self._idle.clear()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while self._idle and next(iter(self._idle.values()))[0] <= loop.time():
            self._close_oldest()
        self._sweeper = loop.call_later(_SWEEP_S, self._sweep) if self._idle else None

    def _close_oldest(self) -> None:
        self._idle.popitem(last=False)[1][1].close()

    async def _open(self, url: str, origin: str) -> Connection:
        host, _ = host_and_port(url)
        name, port, secure = host.strip("[]"), port_of(url), url.startswith("https:")
        addresses = await self._addresses(name, port)
        if self.sockets.locked() and self._idle:
            self._close_oldest()
        await self.sockets.acquire()
        connection = Connection(self, origin)
        try:
            sock = await connect_any(addresses, port, self._second_attempts)
            await self._connect(connection, sock, self._grants.of(name, port), name if secure else None)
        except BaseException as error:
            connection.release_socket()
            if isinstance(error, OSError) and not isinstance(error, RefusedAddressError | ssl.SSLError | TimeoutError):
                raise NoConnectionError(str(error)) from error
            raise
        return connection

    async def _connect(
        self, connection: Connection, sock: socket.socket, granted: Sequence[Network] | None, name: str | None
    ) -> None:
        """Opens a connection over a socket, with TLS if a `name` is given, for which the certificate must be valid."""
        try:
            peer = str(sock.getpeername()[0])
            if not reachable(peer, granted, allow_loopback=self._grants.allow_loopback):
                raise RefusedAddressError(f"connected to {peer}, which is not public")
            await asyncio.get_running_loop().create_connection(
                lambda: connection, sock=sock, ssl=self._context() if name else None, server_hostname=name
            )
        except BaseException:
            sock.close()
            raise

    async def _addresses(self, name: str, port: int) -> Sequence[str]:
        if is_address(name):
            return (name,)
        try:
            return await self._resolver.resolve(name, port)
        except RefusedAddressError:
            raise
        except OSError as error:
            raise LookUpError(str(error)) from error

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
            # Set since Python 3.13, and by no browser: refuses private authorities that leave out a key identifier.
            self._tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return self._tls


def port_of(url: str) -> int:
    """Returns the port of a canonical URL."""
    return host_and_port(url)[1] or (443 if url.startswith("https:") else 80)


async def connect_any(addresses: Sequence[str], port: int, second_attempts: asyncio.Semaphore) -> socket.socket:
    """Connects to the first of several addresses that accepts a connection ("Happy Eyeballs", RFC 8305).

    Args:
        addresses: IP addresses in the order of trial.
        port: TCP port.
        second_attempts: sockets for attempts that begin while another one is under way.

    Raises:
        LookUpError: there is no address.
        OSError: no address accepts a connection; the error of the first that failed.
    """
    if len(addresses) == 1:
        return await _connect_one(addresses[0], port)
    remaining, attempts, errors = list(addresses), set[asyncio.Task[socket.socket]](), list[BaseException]()
    try:
        while remaining or attempts:
            if remaining and not attempts:
                attempts.add(asyncio.ensure_future(_connect_one(remaining.pop(0), port)))
            elif remaining and not second_attempts.locked():
                attempts.add(asyncio.ensure_future(_connect_limited(remaining.pop(0), port, second_attempts)))
            wait = _ATTEMPT_DELAY_S if remaining else None
            done, attempts = await asyncio.wait(attempts, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if (error := task.exception()) is None:
                    attempts |= done - {task}
                    return task.result()
                errors.append(error)
    finally:
        for task in attempts:
            task.cancel()
            task.add_done_callback(_close_socket)
    raise errors[0] if errors else LookUpError("a name without an address")


async def _connect_limited(address: str, port: int, sockets: asyncio.Semaphore) -> socket.socket:
    async with sockets:
        return await _connect_one(address, port)


async def _connect_one(address: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (address, port))
    except BaseException:
        sock.close()
        raise
    return sock


def _close_socket(task: "asyncio.Task[socket.socket]") -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()

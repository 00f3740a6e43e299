"""Connections to checked addresses only: a pool that keeps them for a while, with one request at a time over each.

The address at the other end is checked before anything is sent. All connections share one budget of open files
(`Files`), derived from the process's limit, which is raised as far as it may be: where it is used up, the connection
that has been idle longest is closed for the next request.

Bodies in flight share a memory limit (`Room`): a request that receives more than 256 KiB reserves memory until it ends.
While all memory is reserved, large bodies are not read further, except that of the request that has waited longest. So
a thousand slow hosts with maximal bodies take no more memory than a few dozen.
"""

import asyncio
import logging
import resource
import socket
import ssl
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol

from tasks.core.errors import InputError
from tasks.formats.web.url import host_and_port, origin_of
from tasks.stages.crawl.http.address import Grants, Network, RefusedAddressError, is_address, reachable
from tasks.stages.crawl.http.dns import Resolver
from tasks.stages.crawl.http.response import ProtocolError, Response

log = logging.getLogger("sluice.crawl")

KEPT = 4096
"""Connections without a request that are worth keeping."""

# Files of other kinds: the store's connections, WARC files and their buffer, name servers, pipes of child processes.
_OTHERS = 256
# Attempts to reach a second address of a host while the first is silent, of all visits at a time.
_BESIDE = 64
# With fewer the time goes into waiting for a socket.
_FEWEST = 64

_NEXT_S = 0.25

SMALL = 256 << 10
"""Bytes of a body that need no room."""
ROOM = 192 << 20
"""Bytes of memory for what is beyond."""

_KEPT_S = 30.0
_SWEEP_S = 5.0


class LookUpError(OSError):
    """A name has no address that is known."""


class NoConnectionError(OSError):
    """No address of a host takes a connection."""


class Files(NamedTuple):
    """The budget of a process.

    Attributes:
        visits: requests that may be under way at a time.
        sockets: connections that may be open at a time, with a request or kept for the next one.
        beside: sockets beyond, for second attempts to reach a host.
    """

    visits: int
    sockets: int
    beside: int


def files_for(visits: int) -> Files:
    """Returns the budget for so many requests at a time, or for fewer; raises the process's soft limit.

    Raises:
        InputError: the limit is too low for any crawl.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = visits + KEPT + _BESIDE + _OTHERS
    if soft == resource.RLIM_INFINITY:
        soft = wanted
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    sockets = min(soft - _OTHERS - _BESIDE, visits + KEPT)
    if sockets < _FEWEST:
        raise InputError(
            f"this process may have {soft} files open, and a fetch needs {_FEWEST + _BESIDE + _OTHERS}",
            "raise the hard limit of open files (ulimit -Hn, LimitNOFILE= of a service, nofile of a container)",
        )
    if sockets < visits:
        log.warning(
            "%d requests at a time instead of %d: this process may have %d files open (raise its hard limit)",
            *(sockets, visits, soft),
        )
    return Files(min(visits, sockets), sockets, _BESIDE)


class Clock:
    """A timeout that can be stopped while the exchange waits for something other than the server.

    Args:
        limit: of the time that the exchange may take.

    Attributes:
        stopped_s: seconds for which the clock was stopped.
    """

    def __init__(self, limit: asyncio.Timeout) -> None:
        self.stopped_s = 0.0
        self._limit = limit
        self._stopped: float | None = None
        self._left: float | None = None

    def stop(self) -> None:
        """Stops the clock."""
        if self._stopped is None and not self._limit.expired():
            self._stopped, until = _now(), self._limit.when()
            self._left = None if until is None else until - self._stopped
            self._limit.reschedule(None)

    def go_on(self) -> None:
        """Restarts the clock."""
        if self._stopped is not None:
            now = _now()
            self.stopped_s += now - self._stopped
            self._stopped = None
            self._limit.reschedule(None if self._left is None else now + self._left)


def _now() -> float:
    return asyncio.get_running_loop().time()


class Reading(Protocol):
    """What can be made to wait: a connection."""

    def pause(self) -> None:
        """Stops reading."""

    def read_on(self) -> None:
        """Reads on, unless it is over."""


class Room:
    """Keeps account of large bodies, by the visit that they belong to."""

    def __init__(self) -> None:
        self._sizes: dict[Hashable, int] = {}
        self._paused: dict[Hashable, Reading] = {}
        self._taken = 0

    def take(self, visit: "asyncio.Task[object]", reading: Reading, size: int) -> None:
        """Notes that the body of a visit has `size` bytes by now; has it wait if there is no room."""
        if size <= SMALL:
            return
        before = self._sizes.get(visit)
        if before is None:
            before = SMALL
            visit.add_done_callback(self._leave)
        self._sizes[visit] = size
        self._taken += size - before
        if self._taken > ROOM and visit is not next(iter(self._sizes)) and visit not in self._paused:
            self._paused[visit] = reading
            reading.pause()

    def _leave(self, visit: "asyncio.Task[object]") -> None:
        self._paused.pop(visit, None)
        self._taken -= self._sizes.pop(visit) - SMALL
        first = next(iter(self._sizes), None)
        for waiting in [visit for visit in self._paused if self._taken <= ROOM or visit is first]:
            self._paused.pop(waiting).read_on()


class Connection(asyncio.Protocol):
    """One connection.

    Attributes:
        peer: the IP address at the other end.
        used: a request went over it before.
    """

    def __init__(self, pool: "Pool", place: str) -> None:
        self.peer = ""
        self.used = False
        self._pool = pool
        self._place = place
        self._transport: asyncio.Transport | None = None
        self._response: Response | None = None
        self._visit: asyncio.Task[object] | None = None
        self._clock: Clock | None = None
        self._finished: asyncio.Future[None] | None = None
        self._lost = False
        self._counted = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes the open connection."""
        self._transport = transport  # type: ignore[assignment]  # a stream's transport is a Transport
        self.peer = str(transport.get_extra_info("peername")[0])

    async def exchange(self, request: bytes, response: Response, clock: Clock) -> None:
        """Sends a request and reads `response` until it is done; cancellation closes the connection.

        Args:
            request: the bytes to send.
            response: takes the answer.
            clock: stopped while a large response waits for room.

        Raises:
            ProtocolError: the bytes are not a response.
            OSError: the connection broke.
        """
        if self._transport is None or self._lost:
            raise ConnectionResetError("the server has closed the connection")
        self._response, self._finished = response, asyncio.get_running_loop().create_future()
        self._visit, self._clock = asyncio.current_task(), clock
        try:
            self._transport.write(request)
            await self._finished
        finally:
            self._response = self._finished = self._visit = self._clock = None
            self.used = True
            if not (response.done and response.reusable):
                self.close()

    def close(self) -> None:
        """Ends the connection at once."""
        self._lost = True
        if self._transport is not None:
            self._transport.abort()

    def release(self) -> None:
        """Gives its place in the budget of open files back, once."""
        if self._counted:
            self._counted = False
            self._pool.places.release()

    @property
    def open(self) -> bool:
        """Whether a request may be sent."""
        return not self._lost

    def data_received(self, data: bytes) -> None:
        """Takes bytes from the wire."""
        response = self._response
        if response is None or response.done:
            # Unsolicited bytes: the next request must not read them as its response.
            self._end()
            return
        try:
            response.feed(data)
        except ProtocolError as error:
            self._finish(error)
            return
        if response.done:
            self._finish(None)
        elif self._visit is not None:
            self._pool.room.take(self._visit, self, response.size)

    def pause(self) -> None:
        """Stops reading, and the clock of the exchange."""
        if self._transport is not None and self._clock is not None:
            self._transport.pause_reading()
            self._clock.stop()

    def read_on(self) -> None:
        """Reads on, unless the exchange is over."""
        if self._transport is not None and self._clock is not None and not self._lost:
            self._transport.resume_reading()
            self._clock.go_on()

    def connection_lost(self, error: Exception | None) -> None:
        """Takes the end of the connection."""
        self._end()
        self.release()
        if self._response is None:
            return
        if error is not None:
            self._finish(error)
            return
        try:
            self._response.end()
        except ProtocolError as early:
            self._finish(early)
        else:
            self._finish(None)

    def _end(self) -> None:
        self.close()
        self._pool.forget(self._place, self)

    def _finish(self, error: Exception | None) -> None:
        if self._finished is None or self._finished.done():
            return
        if error is None:
            self._finished.set_result(None)
        else:
            self._finished.set_exception(error)


class Pool:
    """Opens connections, and keeps idle ones for the next request to their host.

    Args:
        resolver: looks names up, and checks the answers.
        grants: hosts that may have private addresses.
        files: how many connections may be open.
        allow_loopback: whether this machine may be reached.

    Attributes:
        room: for large bodies.
        places: for connections that may be opened.
    """

    def __init__(self, resolver: Resolver, grants: Grants, files: Files, *, allow_loopback: bool) -> None:
        self.room = Room()
        self.places = asyncio.Semaphore(files.sockets)
        self._beside = asyncio.Semaphore(files.beside)
        self._resolver = resolver
        self._grants = grants
        self._allow_loopback = allow_loopback
        self._tls: ssl.SSLContext | None = None
        self._kept: OrderedDict[str, tuple[float, Connection]] = OrderedDict()
        self._sweeper: asyncio.TimerHandle | None = None

    def peer(self, url: str) -> str:
        """Returns the address of the connection that is kept for the host of `url`, or ""."""
        found = self._kept.get(origin_of(url))
        return found[1].peer if found else ""

    async def take(self, url: str, *, fresh: bool = False) -> Connection:
        """Returns a connection to the host of a canonical URL, a kept one unless it has to be `fresh`.

        Raises:
            RefusedAddressError: the address must not be reached.
            LookUpError: the name is not known.
            ssl.SSLError: the server does not prove to be the host.
            NoConnectionError: it takes no connection.
        """
        place = origin_of(url)
        found = self._kept.pop(place, None)
        if found is not None:
            if found[1].open and not fresh:
                return found[1]
            found[1].close()
        return await self._opened(url, place)

    def give(self, url: str, connection: Connection) -> None:
        """Returns a reusable connection to the pool."""
        place = origin_of(url)
        if not connection.open:
            return
        loop = asyncio.get_running_loop()
        self.forget(place, None)
        self._kept[place] = (loop.time() + _KEPT_S, connection)
        while len(self._kept) > KEPT:
            self._close_oldest()
        if self._sweeper is None:
            self._sweeper = loop.call_later(_SWEEP_S, self._sweep)

    def forget(self, place: str, connection: Connection | None) -> None:
        """Removes an idle connection, if it is the given one (None: any)."""
        found = self._kept.get(place)
        if found is not None and connection in (None, found[1]):
            del self._kept[place]
            found[1].close()

    def close(self) -> None:
        """Closes all idle connections."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for _, connection in list(self._kept.values()):
            connection.close()
        self._kept.clear()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while self._kept and next(iter(self._kept.values()))[0] <= loop.time():
            self._close_oldest()
        self._sweeper = loop.call_later(_SWEEP_S, self._sweep) if self._kept else None

    def _close_oldest(self) -> None:
        self._kept.popitem(last=False)[1][1].close()

    async def _opened(self, url: str, place: str) -> Connection:
        host, _ = host_and_port(url)
        name, port, secure = host.strip("[]"), port_of(url), url.startswith("https:")
        addresses = await self._addresses(name, port)
        if self.places.locked() and self._kept:
            self._close_oldest()
        await self.places.acquire()
        connection = Connection(self, place)
        try:
            link = await dialled(addresses, port, self._beside)
            await self._connect(connection, link, self._grants.of(name, port), name if secure else None)
        except BaseException as error:
            connection.release()
            if isinstance(error, OSError) and not isinstance(error, RefusedAddressError | ssl.SSLError | TimeoutError):
                raise NoConnectionError(str(error)) from error
            raise
        return connection

    async def _connect(
        self, connection: Connection, link: socket.socket, granted: Sequence[Network] | None, name: str | None
    ) -> None:
        """Opens a connection over a socket, with TLS where the server has to prove its `name`."""
        try:
            peer = str(link.getpeername()[0])
            if not reachable(peer, granted, allow_loopback=self._allow_loopback):
                raise RefusedAddressError(f"connected to {peer}, which is not public")
            await asyncio.get_running_loop().create_connection(
                lambda: connection, sock=link, ssl=self._context() if name else None, server_hostname=name
            )
        except BaseException:
            link.close()
            raise

    async def _addresses(self, name: str, port: int) -> Sequence[str]:
        if is_address(name):
            return (name,)
        try:
            answers = await self._resolver.resolve(name, port, socket.AF_UNSPEC)
        except RefusedAddressError:
            raise
        except OSError as error:
            raise LookUpError(str(error)) from error
        return [answer["host"] for answer in answers]

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls


def port_of(url: str) -> int:
    """Returns the port of a canonical URL."""
    return host_and_port(url)[1] or (443 if url.startswith("https:") else 80)


async def dialled(addresses: Sequence[str], port: int, beside: asyncio.Semaphore) -> socket.socket:
    """Returns a connection to the first of several addresses that takes it.

    Args:
        addresses: in the order of trial.
        port: the same for all.
        beside: places for attempts beside a first one that is still under way.

    Raises:
        LookUpError: there is no address.
        OSError: none accepts; the error of the first that failed.
    """
    if len(addresses) == 1:
        return await _dial(addresses[0], port)
    waiting, dialling, failures = list(addresses), set[asyncio.Task[socket.socket]](), list[BaseException]()
    try:
        while waiting or dialling:
            if waiting and not dialling:
                dialling.add(asyncio.ensure_future(_dial(waiting.pop(0), port)))
            elif waiting and not beside.locked():
                dialling.add(asyncio.ensure_future(_dial_beside(waiting.pop(0), port, beside)))
            wait = _NEXT_S if waiting else None
            done, dialling = await asyncio.wait(dialling, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if (failure := task.exception()) is None:
                    dialling |= done - {task}
                    return task.result()
                failures.append(failure)
    finally:
        for task in dialling:
            task.cancel()
            task.add_done_callback(_hung_up)
    raise failures[0] if failures else LookUpError("a name without an address")


async def _dial_beside(address: str, port: int, beside: asyncio.Semaphore) -> socket.socket:
    async with beside:
        return await _dial(address, port)


async def _dial(address: str, port: int) -> socket.socket:
    link = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        link.setblocking(False)
        await asyncio.get_running_loop().sock_connect(link, (address, port))
    except BaseException:
        link.close()
        raise
    return link


def _hung_up(task: "asyncio.Task[socket.socket]") -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()

"""Names to addresses: a guarded resolver, over one that queries name servers directly and caches answers for their TTL.

c-ares sends the queries (aiodns), so that thousands of slow names block neither threads nor one another. /etc/hosts and
search domains are ignored: a crawler resolves public names only. Which addresses it may reach is in `address`.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypedDict

import aiodns

from tasks.stages.crawl.config import is_loopback
from tasks.stages.crawl.http.address import NO_GRANTS, Grants, RefusedAddressError, reachable

log = logging.getLogger("sluice.crawl")

# Bounds of an answer's TTL; names without addresses are queried again soon.
MIN_TTL_S, MAX_TTL_S, NEGATIVE_TTL_S = 60.0, 3600.0, 60.0
# A failure is cached for a second (RFC 9520, 3.2).
FAILURE_TTL_S = 1.0
MAX_NAMES = 100_000

_ANSWER_S = 2.0
_ROUNDS = 2
# A server that has failed so often in a row is skipped, at first for so long; the time doubles with every failure.
_FAILURES, _LEFT_OUT_S, _MAX_LEFT_OUT_S = 3, 10.0, 600.0
# c-ares returns this one where it finds none; the system's resolver uses it too if it exists.
_NO_SERVER = {"127.0.0.1", "::1"}

_FAMILIES = {socket.AF_INET: "A", socket.AF_INET6: "AAAA"}
_ABSENT = {aiodns.error.ARES_ENOTFOUND, aiodns.error.ARES_ENODATA, aiodns.error.ARES_ENONAME}
_NO_NAME = {aiodns.error.ARES_EBADNAME, aiodns.error.ARES_EBADQUERY, aiodns.error.ARES_EBADSTR}
# The server answered with an error: the fault may be that of the name's own servers.
_UNABLE = {
    *(aiodns.error.ARES_ESERVFAIL, aiodns.error.ARES_EREFUSED, aiodns.error.ARES_ENOTIMP),
    *(aiodns.error.ARES_EFORMERR, aiodns.error.ARES_EBADRESP),
}

# A name may have hundreds of addresses; trying them all would be the crawler's time, not the name's.
MAX_ADDRESSES = 8


class Resolved(TypedDict):
    """One address of a name: the address as text, and its family."""

    host: str
    family: socket.AddressFamily


class Resolver(Protocol):
    """What looks names up."""

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[Resolved]:
        """Returns the addresses of `host`, those to be tried first in front; raises OSError."""

    async def close(self) -> None:
        """Releases its resources."""


class NoAddressError(OSError):
    """A name has no address: it does not exist, or no name server answered."""


class GuardedResolver:
    """Resolves names and refuses every name that has an answer outside the public Internet.

    A name with one public and one private answer is refused as a whole. Names under .localhost mean this machine
    (RFC 6761, 6.3), only when the crawl allows it; they are never sent to the name server.

    Args:
        allow_loopback: whether .localhost names may be reached.
        inner: where other names are looked up; the system's resolver by default.
        grants: names that may resolve to private addresses.

    Attributes:
        inner: the same.
    """

    def __init__(self, *, allow_loopback: bool, inner: Resolver | None = None, grants: Grants = NO_GRANTS) -> None:
        self._allow_loopback = allow_loopback
        self._grants = grants
        self.inner = inner or SystemResolver()

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[Resolved]:
        """Returns checked addresses of `host`, `MAX_ADDRESSES` at most; raises RefusedAddressError."""
        if is_loopback(host):
            if not self._allow_loopback:
                raise RefusedAddressError(f"{host} is this machine")
            return [Resolved(host="127.0.0.1", family=socket.AF_INET)]
        answers = await self.inner.resolve(host, port, family)
        for answer in answers:
            if not reachable(answer["host"], self._grants.of(host, port)):
                raise RefusedAddressError(f"{host} resolves to {answer['host']}, which is not public")
        return answers[:MAX_ADDRESSES]

    async def close(self) -> None:
        """Closes the inner resolver."""
        await self.inner.close()


_Addresses = tuple[tuple[socket.AddressFamily, str], ...]


@dataclass(frozen=True, slots=True)
class _Known:
    """Cached result for a name, valid until a time of the monotonic clock; may have no addresses.

    `failure` is why they could not be had, if they could not.
    """

    addresses: _Addresses
    until: float
    failure: str = ""


class CachingResolver:
    """Resolves names, caches answers for their TTL, and sends one query for concurrent look-ups of a name.

    Create it while the event loop runs.

    Args:
        servers: name servers; those of this machine by default.
    """

    def __init__(self, servers: Sequence[str] = ()) -> None:
        found = tuple(servers) or _own_servers()
        self._source: NameServers | _System = NameServers(found) if found else _System()
        self._known: dict[tuple[str, int], _Known] = {}
        self._queries: dict[tuple[str, int], asyncio.Task[_Addresses]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[Resolved]:
        """Returns the addresses of `host`, IPv4 first; raises NoAddressError or another OSError."""
        key = host, int(family)
        known = self._known.get(key)
        if known is not None and time.monotonic() < known.until:
            if known.failure:
                raise NoAddressError(known.failure)
            addresses = known.addresses
        else:
            query = self._queries.get(key)
            if query is None:
                query = self._queries[key] = asyncio.ensure_future(self._query(host, family))
                query.add_done_callback(lambda task: self._answered(key, task))
            # A cancelled waiter does not cancel the query for the others.
            addresses = await asyncio.shield(query)
        if not addresses:
            raise NoAddressError(f"{host} does not exist, or has no address")
        return [Resolved(host=address, family=kind) for kind, address in addresses]

    async def close(self) -> None:
        """Ends questions under way."""
        waiting = list(self._queries.values())
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await self._source.close()

    async def _query(self, host: str, family: socket.AddressFamily) -> _Addresses:
        families = [family] if family in _FAMILIES else list(_FAMILIES)
        answers = await asyncio.gather(*(self._source.query(host, one) for one in families), return_exceptions=True)
        heard = [answer for answer in answers if not isinstance(answer, BaseException)]
        addresses = tuple(address for found, _ in heard for address in found)
        failed = next((answer for answer in answers if isinstance(answer, BaseException)), None)
        # One family is enough; that there is no address is known only after all answers.
        if failed is not None and (not addresses or not isinstance(failed, OSError)):
            raise failed
        ttl = min(max(ttl, MIN_TTL_S) for found, ttl in heard if found or not addresses)
        self._keep((host, int(family)), _Known(addresses, time.monotonic() + min(ttl, MAX_TTL_S)))
        return addresses

    def _answered(self, key: tuple[str, int], task: "asyncio.Task[_Addresses]") -> None:
        self._queries.pop(key, None)
        # All waiters may be cancelled: the exception is retrieved so that it is not logged.
        if not task.cancelled() and (error := task.exception()) is not None:
            self._keep(key, _Known((), time.monotonic() + FAILURE_TTL_S, str(error) or "it cannot be looked up"))

    def _keep(self, key: tuple[str, int], known: _Known) -> None:
        self._known.pop(key, None)
        if len(self._known) >= MAX_NAMES:
            del self._known[next(iter(self._known))]
        self._known[key] = known


class _Server:
    """One name server, and whether it has been answering (a circuit breaker)."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.left_out_until = 0.0
        self._failures = 0
        self._pause_s = _LEFT_OUT_S
        self._channel = aiodns.DNSResolver(nameservers=[address], timeout=_ANSWER_S, tries=1)

    async def query(self, name: str, kind: str) -> tuple[list[str], float]:
        """Returns the addresses in the answer and its TTL in seconds; raises aiodns.error.DNSError."""
        try:
            answer = (await asyncio.wait_for(self._channel.query_dns(name, kind), 2 * _ANSWER_S)).answer
        except (aiodns.error.DNSError, TimeoutError) as error:
            code = error.args[0] if isinstance(error, aiodns.error.DNSError) else aiodns.error.ARES_ETIMEOUT
            if code in _ABSENT | _NO_NAME | _UNABLE:
                self._answered()
            else:
                self._failed()
            raise aiodns.error.DNSError(code, str(error)) from error
        self._answered()
        # CNAME records have TTLs of their own; the shortest one counts.
        found = [record.data.addr for record in answer if hasattr(record.data, "addr")]
        return found, float(min((record.ttl for record in answer), default=0))

    async def close(self) -> None:
        await self._channel.close()

    def _answered(self) -> None:
        self._failures, self._pause_s, self.left_out_until = 0, _LEFT_OUT_S, 0.0

    def _failed(self) -> None:
        now = time.monotonic()
        if now < self.left_out_until:
            return  # queries that were pending when it was skipped are ignored
        self._failures += 1
        if self._failures >= _FAILURES:
            log.warning("the name server %s does not answer; it is left out for %g s", self.address, self._pause_s)
            self.left_out_until = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, _MAX_LEFT_OUT_S)


class NameServers:
    """Queries several name servers in order, until one answers.

    Args:
        addresses: "192.0.2.1" or "192.0.2.1:53", in the order of preference.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._servers = [_Server(address) for address in addresses]

    async def query(self, name: str, family: socket.AddressFamily) -> tuple[_Addresses, float]:
        """Returns the addresses of one family, and their TTL in seconds; raises NoAddressError."""
        why = "no name server answers"
        for _ in range(_ROUNDS):
            for server in self._order():
                try:
                    found, ttl = await server.query(name, _FAMILIES[family])
                except aiodns.error.DNSError as error:
                    if error.args[0] in _ABSENT:
                        return (), NEGATIVE_TTL_S
                    if error.args[0] in _NO_NAME:
                        raise NoAddressError(f"{name} is no name") from error
                    why = f"{server.address} says: {error.args[1]}"
                else:
                    return tuple((family, one) for one in found), ttl if found else NEGATIVE_TTL_S
        raise NoAddressError(f"{name}: {why}")

    async def close(self) -> None:
        """Gives sockets and threads back."""
        for server in self._servers:
            await server.close()

    def _order(self) -> list[_Server]:
        now = time.monotonic()
        answering = [server for server in self._servers if server.left_out_until <= now]
        # When all of them are skipped, one is tried anyway.
        return answering or sorted(self._servers, key=lambda server: server.left_out_until)


class SystemResolver:
    """The system's resolver, called in threads of its own.

    The event loop's own threads are four: as many slow name servers would block all other hosts.
    """

    def __init__(self, threads: int = 32) -> None:
        self._pool = ThreadPoolExecutor(threads, "lookup")

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[Resolved]:
        """Returns the addresses of `host`; raises OSError."""
        look_up = partial(socket.getaddrinfo, host, port, family=family, type=socket.SOCK_STREAM)
        answers = await asyncio.get_running_loop().run_in_executor(self._pool, look_up)
        return [Resolved(host=str(where[0]), family=kind) for kind, _, _, _, where in answers]

    async def close(self) -> None:
        """Ends the threads, without waiting for hanging look-ups."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class _System:
    """The system's resolver, for machines whose name servers cannot be found; it returns no TTL."""

    def __init__(self) -> None:
        self._resolver = SystemResolver()

    async def query(self, name: str, family: socket.AddressFamily) -> tuple[_Addresses, float]:
        try:
            answers = await self._resolver.resolve(name, 0, family)
        except socket.gaierror as error:
            if error.errno in (socket.EAI_NONAME, socket.EAI_NODATA):
                return (), NEGATIVE_TTL_S
            raise
        return tuple((family, answer["host"]) for answer in answers), MIN_TTL_S

    async def close(self) -> None:
        await self._resolver.close()


def _own_servers() -> tuple[str, ...]:
    channel = aiodns.DNSResolver()
    return () if set(channel.nameservers) <= _NO_SERVER else tuple(channel.nameservers)

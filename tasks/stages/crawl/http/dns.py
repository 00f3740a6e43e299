"""DNS resolution: a resolver that checks addresses, over one that queries name servers and caches their answers.

c-ares sends the queries (aiodns), so thousands of slow names block neither threads nor one another. /etc/hosts and
search domains are ignored, because the crawler resolves public names only. `address` defines the permitted addresses.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import aiodns

from tasks.stages.crawl.config import is_loopback
from tasks.stages.crawl.http.address import Grants, RefusedAddressError, reachable

log = logging.getLogger("sluice.crawl")

# Bounds of an answer's TTL; names without addresses are queried again soon.
MIN_TTL_S, MAX_TTL_S, NEGATIVE_TTL_S = 60.0, 3600.0, 60.0
# A failure is cached for a second (RFC 9520, 3.2).
FAILURE_TTL_S = 1.0
MAX_NAMES = 100_000

_ANSWER_S = 2.0
_ROUNDS = 2
# A server is skipped after this many failures in a row, for a time that doubles with every further failure.
_MAX_FAILURES, _SKIP_S, _MAX_SKIP_S = 3, 10.0, 600.0
# c-ares returns these when no name server is configured. If one exists there, the system's resolver uses it too.
_DEFAULT_SERVERS = {"127.0.0.1", "::1"}

_FAMILIES = {socket.AF_INET: "A", socket.AF_INET6: "AAAA"}
_ABSENT = {aiodns.error.ARES_ENOTFOUND, aiodns.error.ARES_ENODATA, aiodns.error.ARES_ENONAME}
_INVALID_NAME = {aiodns.error.ARES_EBADNAME, aiodns.error.ARES_EBADQUERY, aiodns.error.ARES_EBADSTR}
# The server answered with an error, whose cause may be the authoritative servers of the name.
_SERVER_ERROR = {
    *(aiodns.error.ARES_ESERVFAIL, aiodns.error.ARES_EREFUSED, aiodns.error.ARES_ENOTIMP),
    *(aiodns.error.ARES_EFORMERR, aiodns.error.ARES_EBADRESP),
}

# A name may have hundreds of addresses; trying all of them would take too long.
MAX_ADDRESSES = 8


class Resolver(Protocol):
    """Resolves names to addresses."""

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC) -> list[str]:
        """Returns the addresses of `host` in the order of preference; raises OSError."""

    async def close(self) -> None:
        """Releases its resources."""


class NoAddressError(OSError):
    """A name has no address: it does not exist, or no name server answered."""


class GuardedResolver:
    """Resolves names, and refuses names with any address outside the public Internet.

    A name with a public and a private address is refused. Names under .localhost resolve to this machine (RFC 6761,
    6.3) if the crawl allows it, and are never sent to a name server.

    Args:
        inner: resolver of all other names.
        grants: names that may resolve to private addresses or to this machine.

    Attributes:
        inner: the resolver of all other names.
    """

    def __init__(self, inner: Resolver, grants: Grants) -> None:
        self._grants = grants
        self.inner = inner

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC) -> list[str]:
        """Returns checked addresses of `host`, `MAX_ADDRESSES` at most; raises RefusedAddressError."""
        if is_loopback(host):
            if not self._grants.allow_loopback:
                raise RefusedAddressError(f"{host} is this machine")
            return ["127.0.0.1"]
        answers = await self.inner.resolve(host, port, family)
        for answer in answers:
            if not reachable(answer, self._grants.of(host, port)):
                raise RefusedAddressError(f"{host} resolves to {answer}, which is not public")
        return answers[:MAX_ADDRESSES]

    async def close(self) -> None:
        """Closes the inner resolver."""
        await self.inner.close()


_Addresses = tuple[tuple[socket.AddressFamily, str], ...]


@dataclass(frozen=True, slots=True)
class _CacheEntry:
    """Cached result for a name, which may have no addresses.

    Attributes:
        addresses: family and address.
        expires_at: time on the monotonic clock.
        failure: message of a failed query, or "".
    """

    addresses: _Addresses
    expires_at: float
    failure: str = ""


class CachingResolver:
    """Resolves names, caches answers for their TTL, and sends one query for concurrent look-ups of a name.

    Must be created while the event loop runs.

    Args:
        servers: name servers; those of this machine by default.
    """

    def __init__(self, servers: Sequence[str] = ()) -> None:
        servers = tuple(servers) or _system_servers()
        self._source: NameServers | _SystemSource = NameServers(servers) if servers else _SystemSource()
        self._cache: dict[tuple[str, int], _CacheEntry] = {}
        self._queries: dict[tuple[str, int], asyncio.Task[_Addresses]] = {}

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC) -> list[str]:
        """Returns the addresses of `host`, IPv4 first; raises NoAddressError or another OSError."""
        key = host, int(family)
        cached = self._cache.get(key)
        if cached is not None and time.monotonic() < cached.expires_at:
            if cached.failure:
                raise NoAddressError(cached.failure)
            addresses = cached.addresses
        else:
            query = self._queries.get(key)
            if query is None:
                query = self._queries[key] = asyncio.ensure_future(self._query(host, family))
                query.add_done_callback(lambda task: self._query_done(key, task))
            # A cancelled waiter does not cancel the query for the others.
            addresses = await asyncio.shield(query)
        if not addresses:
            raise NoAddressError(f"{host} does not exist, or has no address")
        return [address for _, address in addresses]

    async def close(self) -> None:
        """Cancels queries under way."""
        queries = list(self._queries.values())
        for query in queries:
            query.cancel()
        await asyncio.gather(*queries, return_exceptions=True)
        await self._source.close()

    async def _query(self, host: str, family: socket.AddressFamily) -> _Addresses:
        families = [family] if family in _FAMILIES else list(_FAMILIES)
        results = await asyncio.gather(*(self._source.query(host, kind) for kind in families), return_exceptions=True)
        answers = [result for result in results if not isinstance(result, BaseException)]
        addresses = tuple(address for answer, _ in answers for address in answer)
        failure = next((result for result in results if isinstance(result, BaseException)), None)
        # Addresses of one family are sufficient. That there are none is certain only if all queries were answered.
        if failure is not None and (not addresses or not isinstance(failure, OSError)):
            raise failure
        ttl = min(max(ttl, MIN_TTL_S) for answer, ttl in answers if answer or not addresses)
        self._store((host, int(family)), _CacheEntry(addresses, time.monotonic() + min(ttl, MAX_TTL_S)))
        return addresses

    def _query_done(self, key: tuple[str, int], task: "asyncio.Task[_Addresses]") -> None:
        self._queries.pop(key, None)
        # All waiters may be cancelled: retrieving the exception keeps asyncio from logging it.
        if not task.cancelled() and (error := task.exception()) is not None:
            self._store(key, _CacheEntry((), time.monotonic() + FAILURE_TTL_S, str(error) or "it cannot be looked up"))

    def _store(self, key: tuple[str, int], entry: _CacheEntry) -> None:
        self._cache.pop(key, None)
        if len(self._cache) >= MAX_NAMES:
            del self._cache[next(iter(self._cache))]
        self._cache[key] = entry


class _NameServer:
    """One name server with a circuit breaker.

    Attributes:
        address: as given.
        skip_until: time on the monotonic clock until which other servers are preferred.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.skip_until = 0.0
        self._failures = 0
        self._skip_s = _SKIP_S
        self._channel = aiodns.DNSResolver(nameservers=[address], timeout=_ANSWER_S, tries=1)

    async def query(self, name: str, kind: str) -> tuple[list[str], float]:
        """Returns the addresses in the answer and its TTL in seconds; raises aiodns.error.DNSError."""
        try:
            answer = (await asyncio.wait_for(self._channel.query_dns(name, kind), 2 * _ANSWER_S)).answer
        except (aiodns.error.DNSError, TimeoutError) as error:
            code = error.args[0] if isinstance(error, aiodns.error.DNSError) else aiodns.error.ARES_ETIMEOUT
            if code in _ABSENT | _INVALID_NAME | _SERVER_ERROR:
                self._record_answer()
            else:
                self._record_failure()
            raise aiodns.error.DNSError(code, str(error)) from error
        self._record_answer()
        # CNAME records have their own TTLs; the shortest counts.
        addresses = [record.data.addr for record in answer if hasattr(record.data, "addr")]
        return addresses, float(min((record.ttl for record in answer), default=0))

    async def close(self) -> None:
        await self._channel.close()

    def _record_answer(self) -> None:
        self._failures, self._skip_s, self.skip_until = 0, _SKIP_S, 0.0

    def _record_failure(self) -> None:
        now = time.monotonic()
        if now < self.skip_until:
            return  # ignore queries that were pending when the server was first skipped
        self._failures += 1
        if self._failures >= _MAX_FAILURES:
            log.warning("the name server %s does not answer; it is skipped for %g s", self.address, self._skip_s)
            self.skip_until = now + self._skip_s
            self._skip_s = min(2 * self._skip_s, _MAX_SKIP_S)


class NameServers:
    """Queries several name servers in order until one answers.

    Args:
        addresses: "192.0.2.1" or "192.0.2.1:53", in the order of preference.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._servers = [_NameServer(address) for address in addresses]

    async def query(self, name: str, family: socket.AddressFamily) -> tuple[_Addresses, float]:
        """Returns the addresses of one family, and their TTL in seconds; raises NoAddressError."""
        failure = "no name server answers"
        for _ in range(_ROUNDS):
            for server in self._order():
                try:
                    addresses, ttl = await server.query(name, _FAMILIES[family])
                except aiodns.error.DNSError as error:
                    if error.args[0] in _ABSENT:
                        return (), NEGATIVE_TTL_S
                    if error.args[0] in _INVALID_NAME:
                        raise NoAddressError(f"{name} is no name") from error
                    failure = f"{server.address} says: {error.args[1]}"
                else:
                    return tuple((family, address) for address in addresses), ttl if addresses else NEGATIVE_TTL_S
        raise NoAddressError(f"{name}: {failure}")

    async def close(self) -> None:
        """Closes sockets and threads."""
        for server in self._servers:
            await server.close()

    def _order(self) -> list[_NameServer]:
        now = time.monotonic()
        answering = [server for server in self._servers if server.skip_until <= now]
        # If all servers are to be skipped, they are tried nevertheless.
        return answering or sorted(self._servers, key=lambda server: server.skip_until)


class _SystemSource:
    """The system's resolver, for machines without configured name servers; without TTLs.

    It is called in a thread pool of its own: the event loop's default pool is small, so a few slow names would block
    all others.
    """

    def __init__(self, threads: int = 32) -> None:
        self._pool = ThreadPoolExecutor(threads, "lookup")

    async def query(self, name: str, family: socket.AddressFamily) -> tuple[_Addresses, float]:
        look_up = partial(socket.getaddrinfo, name, 0, family=family, type=socket.SOCK_STREAM)
        try:
            answers = await asyncio.get_running_loop().run_in_executor(self._pool, look_up)
        except socket.gaierror as error:
            if error.errno in (socket.EAI_NONAME, socket.EAI_NODATA):
                return (), NEGATIVE_TTL_S
            raise
        return tuple((family, str(address[0])) for *_, address in answers), MIN_TTL_S

    async def close(self) -> None:
        """Ends the threads without waiting for look-ups under way."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _system_servers() -> tuple[str, ...]:
    channel = aiodns.DNSResolver()
    return () if set(channel.nameservers) <= _DEFAULT_SERVERS else tuple(channel.nameservers)

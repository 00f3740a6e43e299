"""Small files of sites, such as robots.txt: requested politely, over redirects, with limits of size and of hosts.

Up to five redirects are followed, with the same politeness as for pages; the body is decoded, and truncated one byte
above 512 KiB. If a file redirects to another site, or a site names a file there, the robots.txt of that site is fetched
first, because its Crawl-delay applies to the request. Many sites may redirect to one host: each file there is requested
only once, at the pace of that host, and no visit occupies a slot while it waits for the file. Addresses, ports and
denied hosts are checked for every request by the client.
"""

import time
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.content_encoding import decode
from tasks.formats.web.robots import MAX_BYTES
from tasks.formats.web.url import authority, origin_of
from tasks.stages.crawl.hosts.politeness import HostState, Politeness, retry_after
from tasks.stages.crawl.http.address import PORT, PRIVATE
from tasks.stages.crawl.http.client import Client, FetchError, Response
from tasks.stages.crawl.policy import HOST_DENIED

MAX_REDIRECTS = 5
MAX_AGE_S = 24 * 3600.0
"""Seconds for which a file may be used (RFC 9309, 2.4)."""
UNUSABLE = "unusable"
"""The reason of a file that cannot be fetched by another try, although its host may answer."""

# Reasons for which another try is useless. If the host's own file fails with one, its pages would, too.
_PERMANENT = (PRIVATE, PORT, "url", "tls", HOST_DENIED)
# A body of this size is longer than the limit.
_READ = MAX_BYTES + 1
# Bytes of compressed files that others redirect to, and of an entry without the file.
_MAX_FILES_CACHED, _ENTRY_BYTES = 16 << 20, 500
# A visit that waits for a file fetched by another one checks after this time, which doubles up to a maximum.
_RECHECK_S, _MAX_RECHECK_S = 0.1, 5.0


class HostBusyError(Exception):
    """A host must not be requested yet; the look-up continues where it stopped when it is called again.

    Attributes:
        seconds: time to wait before the next call.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(f"{seconds:.1f} s")
        self.seconds = seconds


class FileUnavailableError(Exception):
    """A try to fetch a file has failed.

    Attributes:
        reason: code for why another try is useless, or "".
        retry_after_s: Retry-After of the host in seconds, or None.
        authority: the host that is busy or did not answer, or "".
    """

    def __init__(
        self, detail: str, *, reason: str = "", retry_after_s: float | None = None, authority: str = ""
    ) -> None:
        super().__init__(detail)
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.authority = authority


@dataclass(frozen=True)
class _FetchResult:
    """Result for one URL: a compressed file (None: there is none), or a redirect to `target`."""

    body: bytes | None
    target: str = ""
    fetched_at: float = field(default_factory=time.monotonic)


@dataclass
class _Lookup:
    """Progress of a look-up.

    Attributes:
        site: URL of the site that names the file.
        first: URL of the file.
        url: URL of the next request.
        hops: number of redirects followed.
        waits: how often it has waited for a host.
    """

    site: str
    first: str
    url: str
    hops: int = 0
    waits: int = 0


class SiteFiles:
    """Fetches files of sites over redirects.

    Args:
        client: sends the requests.
        politeness: the clocks of the hosts.
        patience_s: redirects to a host with a longer pause in seconds are not followed.
        require_rules: called before a request to another site, with the URL and the origins whose files redirected
            there; applies the site's Crawl-delay, or raises HostBusyError or FileUnavailableError.
    """

    def __init__(
        self,
        client: Client,
        politeness: Politeness,
        patience_s: float,
        require_rules: Callable[[str, tuple[str, ...]], Awaitable[None]],
    ) -> None:
        self._client = client
        self._politeness = politeness
        self._patience_s = patience_s
        self._require_rules = require_rules
        # By site and URL of the original file: look-ups that were interrupted by HostBusyError.
        self._lookups: dict[tuple[str, str], _Lookup] = {}
        # By URL, and by whether the headers of the hosts file were omitted.
        self._cache: OrderedDict[tuple[str, bool], _FetchResult] = OrderedDict()
        self._cache_bytes = 0
        # By URL: the look-up that fetches it on behalf of all waiting ones, and when that one counts as abandoned.
        self._fetchers: dict[str, tuple[tuple[str, str], float]] = {}

    async def get(
        self,
        url: str,
        allowed: Callable[[str], bool] = lambda _: True,
        *,
        origins: tuple[str, ...] = (),
        site: str = "",
    ) -> bytes | None:
        """Tries once to fetch the file at `url`.

        Args:
            url: canonical URL of the file.
            allowed: returns whether a URL may be requested; called for the file and for each redirect.
            origins: origins whose files redirected to this site; () if the caller is a visit to the file's own host.
            site: URL of the site that names the file, and whose host is visited; default: the file's own.

        Returns:
            The file, at most 512 KiB and one byte; None if there is none (4xx).

        Raises:
            HostBusyError: a host must not be requested yet; call again.
            FileUnavailableError: 429, 5xx, no response, or an unusable redirect.
        """
        site = site or url
        lookup = self._lookups.pop((site, url), None) or _Lookup(site, url, url)
        while lookup.hops <= MAX_REDIRECTS:
            try:
                result = await self._step(lookup, allowed, origins)
            except HostBusyError:
                lookup.waits += 1
                self._lookups[site, url] = lookup
                raise
            if not result.target:
                return result.body and decompress(result.body)
            lookup = _Lookup(site, url, result.target, lookup.hops + 1)
        raise FileUnavailableError(f"more than {MAX_REDIRECTS} redirects", reason=UNUSABLE)

    async def _step(self, lookup: _Lookup, allowed: Callable[[str], bool], origins: tuple[str, ...]) -> _FetchResult:
        url = lookup.url
        own = not lookup.hops and origin_of(url) == origin_of(lookup.site)
        if origin_of(url) != origin_of(lookup.site):
            await self._require_rules(url, (*origins, origin_of(lookup.site)))
        if not allowed(url):
            raise FileUnavailableError(f"robots.txt forbids {url}", reason=UNUSABLE)
        # A request to another host than the one that chose the URL is sent without the headers of the hosts file.
        anonymous = authority(url) != authority(lookup.site)
        cached = self._cache.get((url, anonymous))
        if cached is not None and time.monotonic() - cached.fetched_at < MAX_AGE_S:
            self._cache.move_to_end((url, anonymous))
            return cached
        host = self._politeness.host(authority(url))
        if own and not origins:
            return await self._request(url, host, own=True, anonymous=False)
        if host.skip_reason or host.next_at - time.monotonic() > self._patience_s:
            raise FileUnavailableError(f"{host.authority} must not be requested for a while", reason=UNUSABLE)
        await self._require_turn(lookup, host)
        try:
            result = await self._request(url, host, own=own, anonymous=anonymous)
        finally:
            self._fetchers.pop(url, None)
        self._store((url, anonymous), result)
        return result

    async def _require_turn(self, lookup: _Lookup, host: HostState) -> None:
        """Raises HostBusyError unless the host may be requested now; only one look-up of each file is queued."""
        who = (lookup.site, lookup.first)
        fetcher, until = self._fetchers.get(lookup.url, (who, 0.0))
        now = time.monotonic()
        if fetcher != who and now < until:
            raise HostBusyError(min(_RECHECK_S * 2**lookup.waits, _MAX_RECHECK_S))
        wait = self._politeness.reserve_turn(host, (await self._client.locate(lookup.url)).address)
        # Longer than any request takes: after that the fetching visit must have been abandoned.
        self._fetchers[lookup.url] = (who, now + wait + self._patience_s)
        if wait:
            raise HostBusyError(wait)

    async def _request(self, url: str, host: HostState, *, own: bool, anonymous: bool) -> _FetchResult:
        try:
            async with self._politeness.turn(host):
                response = await self._client.get(url, limit=_READ, anonymous=anonymous)
        except FetchError as error:
            if error.reason not in _PERMANENT:
                raise FileUnavailableError(str(error), authority=host.authority) from error
            raise FileUnavailableError(str(error), reason=error.reason if own else UNUSABLE) from error
        if not 300 <= response.status < 400:
            body = _body(response, url)
            return _FetchResult(None if body is None else compress(body))
        target = canonical(response.location, url) if response.location is not None else None
        if target is None:
            raise FileUnavailableError(f"status {response.status} without a usable Location", reason=UNUSABLE)
        return _FetchResult(None, target)

    def _store(self, key: tuple[str, bool], result: _FetchResult) -> None:
        before = self._cache.pop(key, None)
        self._cache[key] = result
        self._cache_bytes += _size(result) - (_size(before) if before else 0)
        while self._cache_bytes > _MAX_FILES_CACHED:
            self._cache_bytes -= _size(self._cache.popitem(last=False)[1])


def _size(result: _FetchResult) -> int:
    return _ENTRY_BYTES + len(result.body or b"") + len(result.target)


def _body(response: Response, url: str) -> bytes | None:
    """Returns the decoded body, or None for 4xx; raises FileUnavailableError for 429, 5xx and unreadable bodies."""
    if 200 <= response.status < 300:
        body = decode(response.body, ",".join(response.all("content-encoding")), _READ).data
        if response.body and not body:
            raise FileUnavailableError("its content coding cannot be undone")
        return body
    if 400 <= response.status < 500 and response.status != 429:
        return None
    pause_s = retry_after(response.header("retry-after"))
    raise FileUnavailableError(f"status {response.status}", retry_after_s=pause_s, authority=authority(url))


def compress(body: bytes) -> bytes:
    """Returns a file compressed with zlib; b"" for b""."""
    return zlib.compress(body, 1) if body else b""


def decompress(compressed: bytes) -> bytes:
    """Returns the file that `compress` compressed."""
    return zlib.decompress(compressed) if compressed else b""

"""A file in which a site speaks to crawlers (robots.txt, tdmrep.json), fetched politely over up to five redirects.

Used by rules. Every request takes its turn like any other; what comes is unpacked, and cut one byte above 512 KiB.
"""

import time
from collections.abc import Callable

from tasks.codings import decode
from tasks.crawl.hosts.politeness import Politeness, retry_after
from tasks.crawl.http.address import PORT, PRIVATE
from tasks.crawl.http.client import Answer, Client, FetchError
from tasks.crawl.policy import HOST_DENIED
from tasks.crawl.robots.lines import MAX_BYTES
from tasks.crawl.url import authority, canonical

MAX_REDIRECTS = 5
UNUSABLE = "unusable"
"""The reason of a file that no other try would bring, although its host may be well."""

# Another try would end the same way; of the host's own file these say as much of its pages.
_PERMANENT = (PRIVATE, PORT, "url", "tls", HOST_DENIED)
# One byte more than counts tells that a file goes on.
_READ = MAX_BYTES + 1


class Unavailable(Exception):
    """The file could not be had in this try.

    Attributes:
        reason: why another try would end the same way, as a machine word, or "".
        retry_after_s: the pause that the host asked for, in seconds.
        authority: the host that is busy or did not answer, or "".
    """

    def __init__(self, why: str, *, reason: str = "", retry_after_s: float | None = None, authority: str = "") -> None:
        super().__init__(why)
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.authority = authority


class SiteFiles:
    """Fetches files of sites.

    Args:
        client: sends the requests.
        politeness: the hosts' clocks.
        patience_s: a redirect to a host that has to be left alone for longer is not followed.
    """

    def __init__(self, client: Client, politeness: Politeness, patience_s: float) -> None:
        self._client = client
        self._politeness = politeness
        self._patience_s = patience_s

    async def get(self, url: str, allowed: Callable[[str], bool] = lambda _: True) -> bytes | None:
        """Tries once to fetch the file at `url`.

        Args:
            url: its canonical address.
            allowed: tells of that address, and of each that it redirects to, whether it may be asked for.

        Returns:
            The file, 512 KiB and one byte at most; None where there is none (4xx).

        Raises:
            Unavailable: 429, 5xx, no answer, or an answer that leads nowhere.
        """
        origin = authority(url)
        for hop in range(MAX_REDIRECTS + 1):
            if not allowed(url):
                raise Unavailable(f"robots.txt forbids {url}", reason=UNUSABLE)
            answer = await self._get(url, own=hop == 0, anonymous=authority(url) != origin)
            if not 300 <= answer.status < 400:
                return _file(answer, url)
            target = canonical(answer.location, url) if answer.location is not None else None
            if target is None:
                raise Unavailable(f"status {answer.status} without a usable Location", reason=UNUSABLE)
            url = target
        raise Unavailable(f"more than {MAX_REDIRECTS} redirects", reason=UNUSABLE)

    async def _get(self, url: str, *, own: bool, anonymous: bool) -> Answer:
        host = self._politeness.host(authority(url))
        if not own and (host.given_up or host.next_at - time.monotonic() > self._patience_s):
            raise Unavailable(f"{host.authority} is not to be asked for a while", reason=UNUSABLE)
        try:
            # A redirect may lead to a host that is being crawled: it waits for that host's turn.
            async with self._politeness.turn(host):
                return await self._client.get(url, limit=_READ, anonymous=anonymous)
        except FetchError as error:
            if error.reason not in _PERMANENT:
                raise Unavailable(str(error), authority=host.authority) from error
            raise Unavailable(str(error), reason=error.reason if own else UNUSABLE) from error


def _file(answer: Answer, url: str) -> bytes | None:
    if 200 <= answer.status < 300:
        body = decode(answer.body, ",".join(answer.all("content-encoding")), _READ).data
        if answer.body and not body:
            raise Unavailable("its content coding cannot be undone")
        return body
    if 400 <= answer.status < 500 and answer.status != 429:
        return None
    asked = retry_after(answer.header("retry-after"))
    raise Unavailable(f"status {answer.status}", retry_after_s=asked, authority=authority(url))

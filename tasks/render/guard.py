"""Which servers a page's browser may reach: those that the crawl itself may.

Used by the proxy, for every connection of the browser.
"""

import asyncio
import socket

from tasks.crawl.config import is_loopback
from tasks.crawl.http.address import GuardedResolver, RefusedAddressError, Resolver, is_address, refusal
from tasks.crawl.url import canonical, host_and_port

_LOOKUP_S = 10.0


class Guard:
    """The crawl's rules for addresses, asked by host and port.

    Args:
        allow_loopback: whether this machine may be reached, on any port.
        resolver: looks public names up; the system's by default. Its answers are checked all the same.
    """

    def __init__(self, *, allow_loopback: bool, resolver: Resolver | None = None) -> None:
        self._allow_loopback = allow_loopback
        self._resolver = GuardedResolver(allow_loopback=allow_loopback, inner=resolver)

    async def addresses(self, scheme: str, authority: str) -> list[tuple[str, int]]:
        """Returns the checked (address, port) pairs of a server; connect to these and to nothing else.

        Args:
            scheme: "http" or "https".
            authority: host and perhaps port, as the browser writes them.

        Raises:
            RefusedAddressError: it is not for crawlers.
            OSError: the name is not known, or the name server does not answer.
        """
        url = canonical(f"{scheme}://{authority}/")
        if url is None:
            raise RefusedAddressError(f"{authority} is no host")
        reason = refusal(url, allow_loopback=self._allow_loopback)
        if reason:
            raise RefusedAddressError(f"{authority}: {reason}")
        host, explicit = host_and_port(url)
        port = explicit or (443 if scheme == "https" else 80)
        name = host.strip("[]")
        if is_address(name) and not is_loopback(name):
            return [(name, port)]
        async with asyncio.timeout(_LOOKUP_S):
            answers = await self._resolver.resolve(name, port, socket.AF_UNSPEC)
        return [(answer["host"], port) for answer in answers]

    async def close(self) -> None:
        """Lets the resolver go."""
        await self._resolver.close()

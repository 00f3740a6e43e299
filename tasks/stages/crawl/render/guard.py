"""Access control of a page's browser: the crawl's own rules for servers."""

import asyncio
import socket

from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.url import authority, host_and_port
from tasks.stages.crawl.config import is_loopback
from tasks.stages.crawl.http.address import Grants, GuardedResolver, RefusedAddressError, Resolver, is_address, refusal
from tasks.stages.crawl.policy import HOST_DENIED, Policy

_LOOKUP_S = 10.0


class Guard:
    """The crawl's rules for addresses, by host and port.

    Args:
        allow_loopback: whether this machine may be reached, on any port.
        resolver: looks public names up; the system's by default. Its answers are checked all the same.
        grants: hosts that may be reached at private addresses or on another port.
        policy: denied hosts.
    """

    def __init__(
        self,
        *,
        allow_loopback: bool,
        resolver: Resolver | None = None,
        grants: Grants | None = None,
        policy: Policy | None = None,
    ) -> None:
        self._allow_loopback = allow_loopback
        self._grants = grants or Grants()
        self._policy = policy or Policy()
        self._resolver = GuardedResolver(allow_loopback=allow_loopback, inner=resolver, grants=self._grants)

    def for_page(self, host: str) -> "Guard":
        """Returns the guard of a page of `host`: only this host's grants apply."""
        if not self._grants:
            return self
        grants = self._grants.only(host)
        return Guard(
            allow_loopback=self._allow_loopback, resolver=self._resolver.inner, grants=grants, policy=self._policy
        )

    async def addresses(self, scheme: str, netloc: str) -> list[tuple[str, int]]:
        """Returns the checked (address, port) pairs of a server; connect to these and to nothing else.

        Args:
            scheme: "http" or "https".
            netloc: host and perhaps port, as the browser writes them.

        Raises:
            RefusedAddressError: it is not for crawlers.
            OSError: the name is not known, or the name server does not answer.
        """
        url = canonical(f"{scheme}://{netloc}/")
        if url is None:
            raise RefusedAddressError(f"{netloc} is no host")
        reason = refusal(url, allow_loopback=self._allow_loopback, grants=self._grants)
        if self._policy.denies(authority(url)):
            reason = HOST_DENIED
        if reason:
            raise RefusedAddressError(f"{netloc}: {reason}")
        host, explicit = host_and_port(url)
        port = explicit or (443 if scheme == "https" else 80)
        name = host.strip("[]")
        if is_address(name) and not is_loopback(name):
            return [(name, port)]
        async with asyncio.timeout(_LOOKUP_S):
            answers = await self._resolver.resolve(name, port, socket.AF_UNSPEC)
        return [(answer["host"], port) for answer in answers]

    async def close(self) -> None:
        """Closes the resolver."""
        await self._resolver.close()

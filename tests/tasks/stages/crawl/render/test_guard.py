import asyncio
import socket

import pytest
from aiohttp.abc import AbstractResolver

from tasks.stages.crawl.http.address import Grants, RefusedAddressError
from tasks.stages.crawl.policy import HostsFile, Policy
from tasks.stages.crawl.render.proxy import AddressGuard


class Names(AbstractResolver):
    """A name server for the test."""

    def __init__(self, **names):
        self.names = names

    async def resolve(self, host, port=0, family=socket.AF_INET):
        if host.split(".")[0] not in self.names:
            raise OSError(f"{host} is unknown")
        return self.names[host.split(".")[0]]

    async def close(self):
        pass


def addresses(scheme, authority, *, allow_loopback=False, **names):
    async def run():
        guard = AddressGuard(Names(**names), Grants(allow_loopback=allow_loopback))
        return await guard.addresses(scheme, authority)

    return asyncio.run(run())


def test_a_public_name_is_connected_at_its_checked_address():
    assert addresses("https", "site.example:443", site=["93.184.216.34"]) == [("93.184.216.34", 443)]
    assert addresses("http", "site.example", site=["93.184.216.34", "1.1.1.1"]) == [
        ("93.184.216.34", 80),
        ("1.1.1.1", 80),
    ]
    assert addresses("https", "[2606:2800:220:1::1]:443") == [("2606:2800:220:1::1", 443)]


@pytest.mark.parametrize(
    "authority",
    [
        *("127.0.0.1:80", "localhost", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "10.0.0.1"),
        *("169.254.169.254", "metadata.google.internal", "[fd00:ec2::254]", "100.64.0.1", "printer.local"),
        *("site.example:22", "site.example:6379", "trick.example", "mixed.example", "a@site.example", "", ":80", "a b"),
    ],
)
def test_a_disallowed_server_is_refused(authority):
    with pytest.raises(RefusedAddressError):
        addresses("http", authority, site=["1.1.1.1"], trick=["192.168.1.1"], mixed=["1.1.1.1", "10.0.0.1"])


def test_loopback_is_reachable_if_the_crawl_allows_it():
    assert addresses("http", "127.0.0.1:8080", allow_loopback=True) == [("127.0.0.1", 8080)]
    with pytest.raises(RefusedAddressError):
        addresses("http", "10.0.0.1", allow_loopback=True)


def test_an_unknown_name_is_a_network_error():
    with pytest.raises(OSError, match="unknown"):
        addresses("http", "nobody.example")


def test_a_grant_of_a_host_applies_only_to_its_own_pages():
    grants = Grants({"wiki.corp:8080": ["10.20.0.0/16"]})

    async def run(page):
        guard = AddressGuard(Names(wiki=["10.20.0.5"]), grants).for_page(page)
        return await guard.addresses("http", "wiki.corp:8080")

    assert asyncio.run(run("wiki.corp:8080")) == [("10.20.0.5", 8080)]
    for other in ("wiki.corp", "public.example", "public.example:8080"):
        with pytest.raises(RefusedAddressError):
            asyncio.run(run(other))


def test_a_denied_host_gets_no_subresource_request():
    async def run():
        policy = Policy(HostsFile(deny=("site.example",)))
        guard = AddressGuard(Names(site=["1.1.1.1"]), Grants(), policy)
        return await guard.for_page("other.example").addresses("https", "site.example:443")

    with pytest.raises(RefusedAddressError, match="host_denied"):
        asyncio.run(run())

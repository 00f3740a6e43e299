import asyncio
import ipaddress
import socket

import pytest
from aiohttp.abc import AbstractResolver

from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.url import authority
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.http import dns
from tasks.stages.crawl.http.address import Grants, RefusedAddressError, is_public, is_within, refusal
from tasks.stages.crawl.http.client import Client, FetchError
from tasks.stages.crawl.http.dns import CachingResolver, GuardedResolver

LOOPBACK = [
    "127.1",
    "0x7f.1",
    "2130706433",
    "0177.0.0.1",
    "１２７.０.０.１",
    "127.0.0.1.",
    "[::1]",
    "localhost",
    "a.localhost.",
]
INSIDE = [
    "[::ffff:127.0.0.1]",
    "[::127.0.0.1]",
    "[fe80::1]",
    "[fec0::1]",
    "[fc00::1]",
    "[fd00:ec2::254]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b:1::1]",
    "[2002:7f00:1::]",
    "[2001:0:1::1]",
    "[::]",
    "[ff02::1]",
    "169.254.169.254",
    "168.63.129.16",
    "100.100.100.200",
    "metadata.google.internal",
    "metadata",
    "printer.local",
    "100.64.0.1",
    "10.0.0.1",
    "172.16.5.4",
    "192.168.1.1",
    "192.0.0.170",
    "198.18.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "0.0.0.0",
    "0",
]


@pytest.mark.parametrize("host", LOOPBACK + INSIDE)
def test_a_private_address_is_refused_in_every_spelling(host):
    assert refusal(authority(canonical(f"http://{host}/")), Grants(allow_loopback=False)) == "private_address"


@pytest.mark.parametrize("host", INSIDE)
def test_allowing_loopback_allows_no_other_private_address(host):
    assert refusal(authority(canonical(f"http://{host}/")), Grants(allow_loopback=True)) == "private_address"


@pytest.mark.parametrize("host", LOOPBACK)
def test_loopback_is_reachable_on_any_port_if_the_crawl_allows_it(host):
    assert refusal(authority(canonical(f"http://{host}:8080/")), Grants(allow_loopback=True)) is None


@pytest.mark.parametrize("port", [22, 25, 6379, 8080])
def test_public_hosts_are_requested_on_web_ports_only(port):
    assert refusal(f"example.com:{port}", Grants(allow_loopback=True)) == "port"
    assert refusal("example.com:80", Grants(allow_loopback=False)) is None


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "1.1.1.1"])
def test_public_addresses_pass(address):
    assert is_public(address)


# The registries of special-purpose addresses as of RFC 9780, and ranges that RFC 4291 reserves for other uses than
# unicast.
SPECIAL = (
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24"),
    *("192.0.0.0/29", "192.0.0.8/32", "192.0.0.9/32", "192.0.0.10/32", "192.0.0.170/31", "192.0.2.0/24"),
    *("192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.88.99.2/32", "192.168.0.0/16", "192.175.48.0/24"),
    *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "255.255.255.255/32"),
    *("::1/128", "::/128", "::/96", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64"),
    *("2001::/23", "2001::/32", "2001:1::1/128", "2001:1::2/128", "2001:1::3/128", "2001:2::/48", "2001:3::/32"),
    *("2001:4:112::/48", "2001:10::/28", "2001:20::/28", "2001:30::/28", "2001:db8::/32", "2002::/16"),
    *("2620:4f:8000::/48", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8", "4000::/2"),
)
# Adjacent addresses in assigned ranges.
PUBLIC = (
    *("1.0.0.0", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0"),
    *("169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "191.255.255.255", "192.0.1.0", "192.0.3.0"),
    *("192.31.195.255", "192.31.197.0", "192.88.98.255", "192.88.100.0", "192.167.255.255", "192.169.0.0"),
    *("198.17.255.255", "198.20.0.0", "198.51.99.255", "198.51.101.0", "203.0.112.255", "203.0.114.0"),
    *("223.255.255.255", "2001:200::", "2001:db7:ffff::1", "2001:db9::", "2003::", "2620:4f:7fff::1", "2620:4f:8001::"),
    *("2000::", "3ffe::1", "3fff:1000::", "2a00:1450:4001::1"),
)


@pytest.mark.parametrize("block", SPECIAL)
def test_no_address_of_a_special_purpose_block_is_public(block):
    net = ipaddress.ip_network(block)
    some = {net[0], net[-1], net[net.num_addresses // 2], net[net.num_addresses // 3]}
    assert not any(is_public(str(one)) for one in some)


@pytest.mark.parametrize("address", PUBLIC)
def test_addresses_next_to_special_purpose_blocks_are_public(address):
    assert is_public(address)


def test_a_url_with_a_user_name_is_refused():
    assert canonical("http://a@127.0.0.1/") is None


class FakeResolver(AbstractResolver):
    """A fake name server: each lookup returns the next list of addresses."""

    def __init__(self, *rounds):
        self.rounds = list(rounds)
        self.asked = []

    async def resolve(self, host, port=0, family=socket.AF_INET):
        self.asked.append(host)
        return self.rounds.pop(0) if len(self.rounds) > 1 else self.rounds[0]

    async def close(self):
        pass


def resolve(resolver, host):
    return asyncio.run(resolver.resolve(host, 80))


def test_a_name_with_one_private_answer_among_public_ones_is_refused():
    with pytest.raises(RefusedAddressError, match=r"10\.0\.0\.1"):
        resolve(GuardedResolver(FakeResolver(["1.1.1.1", "10.0.0.1"]), Grants(allow_loopback=True)), "mixed.example")


def test_a_public_name_that_resolves_to_loopback_is_refused_even_if_loopback_is_allowed():
    with pytest.raises(RefusedAddressError):
        resolve(GuardedResolver(FakeResolver(["127.0.0.1"]), Grants(allow_loopback=True)), "trick.example")


def test_names_under_localhost_mean_this_machine_and_never_reach_the_name_server():
    inner = FakeResolver(["8.8.8.8"])
    found = resolve(GuardedResolver(inner, Grants(allow_loopback=True)), "docs.localhost")
    assert found == ["127.0.0.1"]
    assert inner.asked == []
    with pytest.raises(RefusedAddressError):
        resolve(GuardedResolver(inner, Grants(allow_loopback=False)), "docs.localhost")


def test_a_name_that_becomes_private_is_not_connected():
    async def run():
        resolver = GuardedResolver(FakeResolver(["1.1.1.1"], ["127.0.0.1"]), Grants(allow_loopback=False))
        found = await resolver.resolve("rebinding.example", 80)
        assert found == ["1.1.1.1"]
        with pytest.raises(RefusedAddressError):
            await resolver.resolve("rebinding.example", 80)
        config = CrawlConfig(contact="mailto:a@b.example", timeout_s=5.0)
        async with Client(config, FakeResolver(["127.0.0.1"])) as client:
            await client.get("http://rebinding.example/", limit=100)

    with pytest.raises(FetchError) as caught:
        asyncio.run(run())
    assert caught.value.reason == "private_address"


def test_the_address_for_politeness_is_resolved_for_public_names_only():
    async def addresses_of(answers, *urls):
        config = CrawlConfig(contact="mailto:a@b.example")
        async with Client(config, answers) as client:
            return [(await client.locate(url)).address for url in urls]

    public = FakeResolver(["1.1.1.1", "1.0.0.1"])
    urls = [
        f"http://{name}/" for name in ("example.com", "10.0.0.1", "metadata.google.internal", "router.lan", "9.9.9.9")
    ]
    assert asyncio.run(addresses_of(public, *urls, "http://example.com:22/")) == ["1.1.1.1", "", "", "", "9.9.9.9", ""]
    assert public.asked == ["example.com"]
    assert asyncio.run(addresses_of(FakeResolver(["10.0.0.1"]), "http://example.com/")) == [""]


def test_answers_of_the_system_resolver_are_checked_too(monkeypatch):
    monkeypatch.setattr(dns, "_system_servers", lambda: ())
    name = socket.gethostname()
    answers = {where[0] for *_, where in socket.getaddrinfo(name, 80)}
    if all(is_public(answer) for answer in answers):
        pytest.skip(f"{name} has public addresses only")
    with pytest.raises(RefusedAddressError):
        resolve(GuardedResolver(CachingResolver(), Grants(allow_loopback=True)), name)


GRANTS = Grants({"wiki.corp:8080": ["10.20.0.0/16"], "10.20.0.6": ["10.20.0.6/32"], "far.example:81": []})


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://wiki.corp:8080/", None),
        ("http://wiki.corp/", None),  # its name is resolved, and must then be public
        ("http://wiki.corp:8081/", "port"),
        ("http://www.wiki.corp:8080/", "port"),
        ("http://10.20.0.6/", None),
        ("https://10.20.0.6/", None),
        ("http://10.20.0.6:8080/", "port"),
        ("http://10.20.0.7/", "private_address"),
        ("http://far.example:81/", None),
        ("http://far.example:82/", "port"),
    ],
)
def test_a_grant_is_of_one_host_on_one_port(url, reason):
    assert refusal(authority(canonical(url)), GRANTS) == reason


@pytest.mark.parametrize(
    ("host", "port", "answers", "refused"),
    [
        ("wiki.corp", 8080, ["10.20.1.2"], False),
        ("wiki.corp", 8080, ["10.20.1.2", "1.1.1.1"], False),
        ("wiki.corp", 8080, ["10.21.1.2"], True),
        ("wiki.corp", 8080, ["10.20.1.2", "169.254.169.254"], True),
        ("wiki.corp", 8080, ["::ffff:10.20.1.2"], True),
        ("wiki.corp", 80, ["10.20.1.2"], True),
        ("evil.corp", 8080, ["10.20.1.2"], True),
        ("far.example", 81, ["10.20.1.2"], True),
        ("far.example", 81, ["1.1.1.1"], False),
    ],
)
def test_only_a_granted_name_may_resolve_into_its_networks(host, port, answers, refused):
    async def run():
        guard = GuardedResolver(FakeResolver(answers), GRANTS)
        return await guard.resolve(host, port)

    if refused:
        with pytest.raises(RefusedAddressError):
            asyncio.run(run())
    else:
        assert asyncio.run(run()) == answers


def test_cloud_metadata_addresses_cannot_be_granted():
    grants = Grants({"meta.corp": ["100.64.0.0/10", "fd00::/8"]})
    for address in ("100.100.100.200", "fd00:ec2::254", "fd20:ce::254"):
        assert not is_within(address, grants.of("meta.corp", 80))
    assert is_within("100.100.100.201", grants.of("meta.corp", 80))


def test_a_grant_cannot_be_used_through_another_host():
    own = GRANTS.only("wiki.corp:8080")
    assert own.of("wiki.corp", 8080) == GRANTS.of("wiki.corp", 8080)
    assert own.of("10.20.0.6", 80) is None
    assert GRANTS.only("10.20.0.6").of("10.20.0.6", 443) is not None
    assert GRANTS.only("public.example").of("wiki.corp", 8080) is None

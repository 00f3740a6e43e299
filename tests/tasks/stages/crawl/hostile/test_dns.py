"""Group 2: names with false, changing or missing answers. The name server is real, on loopback."""

import asyncio
import socket
import time
from contextlib import closing

import pytest
import uvloop

from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.http import dns
from tasks.stages.crawl.http.address import Grants, RefusedAddressError
from tasks.stages.crawl.http.client import Client, FetchError
from tasks.stages.crawl.http.dns import CachingResolver, GuardedResolver, NoAddressError
from tests.tasks.stages.crawl.hostile.name_server import AAAA, CNAME, SERVFAIL, A, DnsAnswer, NameServer, addresses
from tests.tasks.stages.crawl.site import Site

pytestmark = pytest.mark.real_time


def with_resolver(work, *servers):
    """Runs `work(resolver)` with a resolver for `servers` ("address:port")."""

    async def run():
        resolver = CachingResolver(servers)
        try:
            return await work(resolver)
        finally:
            await resolver.close()

    return uvloop.run(run())


async def resolve(resolver, name, family=socket.AF_UNSPEC):
    return await resolver.resolve(name, 80, family)


@pytest.fixture
def short_lives(monkeypatch):
    """Answers have a TTL of at least a tenth of a second, servers are suspended as briefly."""
    monkeypatch.setattr(dns, "MIN_TTL_S", 0.1)
    monkeypatch.setattr(dns, "NEGATIVE_TTL_S", 0.1)
    monkeypatch.setattr(dns, "_ANSWER_S", 0.3)
    monkeypatch.setattr(dns, "_SKIP_S", 0.5)


def unused_port():
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture
def silent_server():
    """A port that accepts queries and never answers."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as one:
        one.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{one.getsockname()[1]}"


def test_both_address_families_are_queried_and_ipv4_comes_first():
    zone = {"both.example": addresses("both.example", "2606:4700::1", "1.1.1.1")}
    with NameServer(zone) as server:
        assert with_resolver(lambda one: resolve(one, "both.example"), server.address) == ["1.1.1.1", "2606:4700::1"]
        assert with_resolver(lambda one: resolve(one, "both.example", socket.AF_INET), server.address) == ["1.1.1.1"]


def test_an_answer_is_cached_for_its_ttl(short_lives):
    async def work(resolver):
        for _ in range(3):
            await resolve(resolver, "short.example")
            await resolve(resolver, "long.example")
        await asyncio.sleep(1.2)
        await resolve(resolver, "short.example")
        await resolve(resolver, "long.example")

    zone = {
        "short.example": addresses("short.example", "1.1.1.1", ttl=1),
        "long.example": addresses("long.example", "1.1.1.1", ttl=100),
    }
    with NameServer(zone) as server:
        with_resolver(work, server.address)
        assert server.times("short.example") == 2
        assert server.times("long.example") == 1


def test_the_ttl_of_an_answer_is_bounded():
    async def work(resolver):
        await resolve(resolver, "zero.example")
        await resolve(resolver, "zero.example")
        await resolve(resolver, "year.example")
        now = time.monotonic()
        return {name: entry.expires_at - now for (name, _), entry in resolver._cache.items()}

    zone = {
        "zero.example": addresses("zero.example", "1.1.1.1", ttl=0),
        "year.example": addresses("year.example", "1.1.1.1", ttl=365 * 86400),
    }
    with NameServer(zone) as server:
        left = with_resolver(work, server.address)
        assert server.times("zero.example") == 1
    assert 59 < left["zero.example"] <= 60
    assert 3599 < left["year.example"] <= 3600


def test_the_shortest_ttl_of_a_cname_chain_applies():
    async def work(resolver):
        assert await resolve(resolver, "www.example") == ["1.1.1.1"]
        return next(iter(resolver._cache.values())).expires_at - time.monotonic()

    way = DnsAnswer([("www.example", CNAME, 120, "cdn.example"), ("cdn.example", A, 900, "1.1.1.1")])
    with NameServer({"www.example": way}) as server:
        assert 119 < with_resolver(work, server.address) <= 120


def test_concurrent_lookups_of_a_name_make_one_query():
    async def work(resolver):
        return await asyncio.gather(*(resolve(resolver, "slow.example") for _ in range(50)))

    def slow(kind, _):
        return DnsAnswer(addresses("slow.example", "1.1.1.1").records, delay_s=0.2)

    with NameServer({"slow.example": slow}) as server:
        answers = with_resolver(work, server.address)
        assert server.times("slow.example") == 1
    assert answers == [["1.1.1.1"]] * 50


def test_cancelling_one_lookup_does_not_cancel_the_others():
    async def work(resolver):
        hasty = asyncio.ensure_future(resolve(resolver, "slow.example"))
        patient = asyncio.ensure_future(resolve(resolver, "slow.example"))
        await asyncio.sleep(0.05)
        hasty.cancel()
        return await patient

    with NameServer({"slow.example": DnsAnswer(addresses("slow.example", "1.1.1.1").records, delay_s=0.3)}) as server:
        assert with_resolver(work, server.address) == ["1.1.1.1"]
        assert server.times("slow.example") == 1


def test_negative_answers_are_cached(short_lives):
    async def work(resolver):
        for _ in range(3):
            with pytest.raises(NoAddressError, match=r"none\.example does not exist"):
                await resolve(resolver, "none.example")
        await asyncio.sleep(0.2)
        with pytest.raises(NoAddressError):
            await resolve(resolver, "none.example")

    with NameServer({}) as server:
        with_resolver(work, server.address)
        assert server.times("none.example") == 2


def test_the_dns_cache_is_bounded(monkeypatch):
    async def work(resolver):
        for number in range(20):
            await resolve(resolver, f"n{number}.example")
        return [name for name, _ in resolver._cache]

    monkeypatch.setattr(dns, "MAX_NAMES", 5)
    zone = {f"n{number}.example": addresses(f"n{number}.example", "1.1.1.1") for number in range(20)}
    with NameServer(zone) as server:
        assert with_resolver(work, server.address) == [f"n{number}.example" for number in range(15, 20)]


def test_the_second_server_is_queried_if_the_first_is_silent(short_lives, silent_server):
    with NameServer({"a.example": addresses("a.example", "1.1.1.1")}) as second:
        assert with_resolver(lambda one: resolve(one, "a.example"), silent_server, second.address) == ["1.1.1.1"]


def test_the_second_server_is_queried_if_the_first_is_unreachable(short_lives):
    with NameServer({"a.example": addresses("a.example", "1.1.1.1")}) as second:
        first = f"127.0.0.1:{unused_port()}"
        assert with_resolver(lambda one: resolve(one, "a.example"), first, second.address) == ["1.1.1.1"]


def test_the_second_server_is_queried_on_servfail_and_the_first_stays_in_use():
    async def work(resolver):
        for number in range(8):
            await resolve(resolver, f"n{number}.example")

    names = [f"n{number}.example" for number in range(8)]
    with (
        NameServer({name: DnsAnswer(code=SERVFAIL) for name in names}) as first,
        NameServer({name: addresses(name, "1.1.1.1") for name in names}) as second,
    ):
        with_resolver(work, first.address, second.address)
        assert [first.times(name) for name in names] == [1] * 8


def test_a_failing_server_is_suspended_and_used_again_later(short_lives):
    down = True

    def maybe(kind, _):
        return DnsAnswer(silent=True) if down else DnsAnswer([("x.example", A, 300, "1.1.1.1")])

    names = [f"n{number}.example" for number in range(12)]
    with (
        NameServer(dict.fromkeys(names, maybe)) as first,
        NameServer({name: addresses(name, "2.2.2.2") for name in names}) as second,
    ):

        async def work(resolver):
            nonlocal down
            for name in names[:5]:
                assert await resolve(resolver, name, socket.AF_INET) == ["2.2.2.2"]
            queries_when_down = len(first.queries)
            assert queries_when_down == 3  # then the breaker opened
            await asyncio.sleep(0.6)
            await resolve(resolver, names[5], socket.AF_INET)
            assert len(first.queries) == 4  # tried once more, and skipped for twice as long
            await asyncio.sleep(0.6)
            await resolve(resolver, names[6], socket.AF_INET)
            assert len(first.queries) == 4
            down = False
            await asyncio.sleep(0.6)
            assert await resolve(resolver, names[7], socket.AF_INET) == ["1.1.1.1"]
            assert await resolve(resolver, names[8], socket.AF_INET) == ["1.1.1.1"]

        with_resolver(work, first.address, second.address)


def test_suspended_servers_are_queried_if_no_other_is_available(short_lives):
    down = True

    async def work(resolver):
        nonlocal down
        for number in range(3):
            with pytest.raises(NoAddressError):
                await resolve(resolver, f"n{number}.example", socket.AF_INET)
        down = False
        assert await resolve(resolver, "n9.example", socket.AF_INET) == ["1.1.1.1"]

    def maybe(kind, _):
        return DnsAnswer(silent=True) if down else DnsAnswer([("x.example", A, 300, "1.1.1.1")])

    with NameServer({f"n{number}.example": maybe for number in range(10)}) as server:
        with_resolver(work, server.address)


def test_a_silent_address_family_does_not_hide_the_other(short_lives):
    def only_ipv4(kind, _):
        return addresses("a.example", "1.1.1.1") if kind == "A" else DnsAnswer(silent=True)

    with NameServer({"a.example": only_ipv4}) as server:
        assert with_resolver(lambda one: resolve(one, "a.example"), server.address) == ["1.1.1.1"]


def test_without_name_servers_the_system_resolver_is_used(monkeypatch):
    monkeypatch.setattr(dns, "_system_servers", lambda: ())
    assert with_resolver(lambda one: resolve(one, "localhost", socket.AF_INET)) == ["127.0.0.1"]


def reason_of(zone, name="a.example", timeout_s=3.0):
    """Returns why a request to `name` fails, and the queries to the name server."""

    async def run():
        config = CrawlConfig(contact="mailto:a@b.example", timeout_s=timeout_s)
        async with Client(config, CachingResolver([server.address])) as client:
            await client.get(f"http://{name}/", limit=1000)

    with NameServer(zone) as server:
        with pytest.raises(FetchError) as caught:
            uvloop.run(run())
        return caught.value.reason, server.queries


@pytest.mark.parametrize(
    "them",
    [
        ["127.0.0.1"],
        ["10.0.0.1"],
        ["169.254.169.254"],
        ["100.64.0.1"],
        ["::1"],
        ["fd00:ec2::254"],
        ["64:ff9b::7f00:1"],
        ["::ffff:10.0.0.1"],
        ["1.1.1.1", "10.0.0.1"],
        ["1.1.1.1", "fc00::1"],
        ["2606:4700::1", "192.168.0.1"],
        [*(f"1.1.{n // 250}.{n % 250 + 1}" for n in range(500)), "10.0.0.1"],
    ],
    ids=lambda them: f"{them[0]} .. {them[-1]}",
)
def test_a_name_with_any_private_address_is_refused(them):
    assert reason_of({"a.example": addresses("a.example", *them)})[0] == "private_address"


def test_of_500_addresses_a_few_are_used():
    async def work(resolver):
        guarded = await GuardedResolver(resolver, Grants()).resolve("many.example", 80)
        return len(guarded), len(await resolve(resolver, "many.example"))

    many = addresses("many.example", *(f"1.1.{n // 250}.{n % 250 + 1}" for n in range(500)))
    with NameServer({"many.example": many}) as server:
        assert with_resolver(work, server.address) == (dns.MAX_ADDRESSES, 500)


def test_a_loop_of_aliases_ends():
    loop = DnsAnswer([("a.example", CNAME, 60, "b.example"), ("b.example", CNAME, 60, "a.example")])
    reason, queries = reason_of({"a.example": loop, "b.example": loop})
    assert reason == "dns"
    assert len(queries) <= 4


def test_unknown_names_and_server_failures_are_dns_errors():
    assert reason_of({})[0] == "dns"
    assert reason_of({"a.example": DnsAnswer(code=SERVFAIL)})[0] == "dns"
    assert reason_of({"a.example": DnsAnswer()})[0] == "dns"


def test_a_late_answer_is_a_timeout():
    assert reason_of({"a.example": DnsAnswer(silent=True)}, timeout_s=0.5)[0] == "timeout"


def test_a_name_server_that_never_answers_times_out(short_lives):
    assert reason_of({"a.example": DnsAnswer(silent=True)}, timeout_s=20.0)[0] == "dns"


def test_a_name_that_becomes_private_is_refused_after_its_ttl(short_lives):
    def rebinding(kind, before):
        return DnsAnswer() if kind == "AAAA" else addresses("r.example", "127.0.0.1" if before else "1.1.1.1", ttl=0)

    async def work(resolver):
        guarded = GuardedResolver(resolver, Grants(allow_loopback=True))
        assert await guarded.resolve("r.example", 80) == ["1.1.1.1"]
        await asyncio.sleep(0.2)
        with pytest.raises(RefusedAddressError):
            await guarded.resolve("r.example", 80)

    with NameServer({"r.example": rebinding}) as server:
        with_resolver(work, server.address)


def test_a_request_resolves_once_and_connects_to_the_checked_address(monkeypatch):
    """The connection uses the checked address, although every further answer would be another one."""

    def moving(kind, before):
        return DnsAnswer() if kind == "AAAA" else addresses("m.example", f"127.0.0.{1 + before}", ttl=0)

    async def run(port):
        config = CrawlConfig(contact="mailto:a@b.example", allow_loopback=True, timeout_s=5.0)
        async with Client(config, CachingResolver([server.address])) as client:
            # Web ports and real ranges are tested in test_address; here loopback represents the public network.
            return await client.get(f"http://m.example:{port}/", limit=1000)

    monkeypatch.setattr("tasks.stages.crawl.http.address.is_public", lambda _: True)
    monkeypatch.setattr("tasks.stages.crawl.http.client.refusal", lambda *_, **__: None)
    with NameServer({"m.example": moving}) as server, Site({"/": "here"}) as site:
        answer = uvloop.run(run(site.port))
        assert server.times("m.example") == 1
    assert (answer.status, answer.address) == (200, "127.0.0.1")


def test_localhost_names_never_reach_a_name_server():
    assert reason_of({}, "docs.localhost")[1] == []


def test_other_record_types_are_not_addresses():
    odd = DnsAnswer([("a.example", CNAME, 60, "b.example"), ("b.example", AAAA, 60, "2606:4700::1")])
    with NameServer({"a.example": odd}) as server:
        assert with_resolver(lambda one: resolve(one, "a.example"), server.address) == ["2606:4700::1"]

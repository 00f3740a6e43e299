"""Politeness by IP: many hosts behind one address and others behind a second, measured at the server."""

import itertools

import pytest

from tests.tasks.stages.crawl.hostile.conftest import crawl_in
from tests.tasks.stages.crawl.hostile.web import page

pytestmark = pytest.mark.real_time

IP_DELAY_S = 0.15
HOSTS, PAGES = 10, 2


def begins(hosts):
    return sorted(begin for host in hosts for begin, _, _ in host.requests)


@pytest.mark.soak  # gaps between arrivals: with three other workers requests are recorded late
def test_an_ip_address_is_requested_at_its_own_pace_without_delaying_others(web, good_web, tmp_path):
    links = page(b"".join(b"<a href=/%d>x</a>" % number for number in range(PAGES)))
    shared = [web.host(links) for _ in range(HOSTS)]
    others = [good_web.host(links, address="127.0.0.2") for _ in range(2)]
    config = {
        "seeds": [host.url(path) for host in (*shared, *others) for path in ("/", *(f"/{n}" for n in range(PAGES)))],
        "allow_loopback": True,
        "delay_s": 0.02,
        "ip_delay_s": IP_DELAY_S,
        "latency_factor": 0.0,
        "partitions": 1,
        # Fewer than the hosts behind the shared address: waiting hosts must not occupy a slot.
        "concurrency": 2,
    }
    result = crawl_in(tmp_path / "store", config)
    assert len(result.captures) == (HOSTS + 2) * (PAGES + 1)
    for group in (shared, others):
        at = begins(group)
        # A request is recorded slightly after it was sent; the delay varies.
        assert min(later - earlier for earlier, later in itertools.pairwise(at)) >= IP_DELAY_S - 0.05
        assert at[-1] - at[0] >= IP_DELAY_S * (len(at) - 1) - 0.05
    # 50 requests there, 10 here.
    assert begins(others)[-1] < begins(shared)[25]

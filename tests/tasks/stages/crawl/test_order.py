"""The tried URLs depend on the fetch list and the responses, never on the order of responses."""

import random
from collections import Counter, defaultdict

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.formats.web.domain import domain_of, link
from tasks.formats.web.scope import Scope
from tasks.formats.web.url import authority, key
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.frontier.order import UrlOrder
from tasks.stages.crawl.frontier.queues import HostPlan
from tasks.stages.crawl.policy import Policy
from tasks.stages.crawl.storage.fetchlist import Candidate
from tasks.stages.crawl.storage.fetchlog import REDIRECT_TEMPORARY, SUCCESS, Outcome

# Two domains with several hosts, and one single host.
HOSTS = ["x.a.test", "y.a.test", "z.a.test", "x.b.test", "y.b.test", "c.test"]


class Web:
    """A random web: pages with links, some of which are redirects, some forbidden by robots.txt."""

    def __init__(self, seed, size, hosts=HOSTS):
        draw = random.Random(seed)
        self.urls = sorted({f"http://{draw.choice(hosts)}/{number}" for number in range(size)})
        self.links = {url: tuple(draw.sample(self.urls, min(size, draw.randint(0, 5)))) for url in self.urls}
        self.denied = set(draw.sample(self.urls, size // 5))
        self.moved = {url: draw.choice(self.urls) for url in draw.sample(self.urls, size // 6)}
        self.seeds = draw.sample(self.urls, min(size, draw.randint(1, 4)))

    def answer(self, candidate):
        url, asked = candidate.url, candidate.url not in self.denied
        base = Outcome(key(url), url, authority(url), candidate.depth, SUCCESS, requested=asked)
        if asked and url in self.moved:
            return base._replace(status=REDIRECT_TEMPORARY, redirect=self.moved[url])
        return base._replace(outlinks=tuple(map(link, self.links[url])) if asked else ())


def order_of(web, scope=("*.a.test", "*.b.test", "c.test"), plans=None, known=(), **caps):
    config = CrawlConfig(**{"delay_s": 1.0, "partitions": 1, "max_depth": 50, "max_pages": 1000, **caps})
    start = [Candidate(link(url), 0, seed=True) for url in web.seeds]
    return UrlOrder(config, 0, config.max_pages, Scope(scope), start, plans, frozenset(known))


def crawl(web, order, pick):
    """Tries URLs until none is left; `pick` chooses among startable hosts and pending responses."""
    available, in_flight, tried = [], [], defaultdict(list)
    while True:
        available += order.newly_available()
        if not available and not in_flight:
            return dict(tried)
        turn = pick(len(available) + len(in_flight))
        if turn < len(available):
            candidate = order.take(available.pop(turn))
            assert candidate is not None
            in_flight.append(candidate)
            continue
        candidate = in_flight.pop(turn - len(available))
        tried[authority(candidate.url)].append((candidate.url, candidate.depth, candidate.via))
        order.note(candidate, web.answer(candidate))


@settings(max_examples=settings.default.max_examples // 2)
@given(st.integers(0, 10_000), st.integers(6, 80), st.integers(1, 60), st.integers(1, 20), st.integers(1, 40))
@example(seed=1, size=40, max_pages=7, per_host=3, per_domain=5)
def test_the_tried_urls_do_not_depend_on_response_times(seed, size, max_pages, per_host, per_domain):
    web = Web(seed, size)
    caps = {"max_pages": max_pages, "max_pages_per_host": per_host, "max_pages_per_domain": per_domain}
    runs = [lambda n: 0, lambda n: n - 1, random.Random(seed).randrange, random.Random(seed + 1).randrange]
    first, *others = [crawl(web, order_of(web, **caps), pick) for pick in runs]
    # Each host has one order of URLs, for any interleaving of hosts.
    assert all(first == other for other in others)
    tried = [url for urls in first.values() for url, _, _ in urls]
    assert len(tried) == len(set(tried))
    asked = [url for url in tried if url not in web.denied]
    assert len(asked) <= max_pages
    assert max(Counter(map(authority, asked)).values(), default=0) <= per_host
    assert max(Counter(domain_of(authority(url)) for url in asked).values(), default=0) <= per_domain


@settings(max_examples=settings.default.max_examples // 4)
@given(st.integers(0, 10_000), st.integers(6, 80))
def test_without_caps_every_linked_page_is_tried(seed, size):
    web = Web(seed, size)
    reached, todo = set(), list(web.seeds)
    while todo:
        url = todo.pop()
        if url not in reached:
            reached.add(url)
            if url not in web.denied:
                todo += [web.moved[url]] if url in web.moved else web.links[url]
    tried = crawl(web, order_of(web), random.Random(seed).randrange)
    # A chain of redirects may end before its end.
    missing = reached - {url for urls in tried.values() for url, _, _ in urls}
    assert not missing or len(web.moved) > 5


@settings(max_examples=settings.default.max_examples // 4)
@given(st.integers(0, 10_000), st.integers(1, 60))
def test_the_whole_budget_is_used_while_urls_are_left(seed, max_pages):
    web = Web(seed, 60)
    web.denied, web.moved = set(), {}
    whole = sum(map(len, crawl(web, order_of(web), lambda n: 0).values()))
    assert sum(map(len, crawl(web, order_of(web, max_pages=max_pages), lambda n: n - 1).values())) == min(
        whole, max_pages
    )


# --- shared budgets of hosts


def site(host, pages, *more):
    """A web of one host: its first page links to all others, and to `more`."""
    urls = [f"http://{host}/{number}" for number in range(pages)]
    return {urls[0]: (*urls[1:], *more), **dict.fromkeys(urls[1:], ())}


class Sites(Web):
    """Webs of several hosts, crawled from their first pages."""

    def __init__(self, *sites, denied=(), seeds=None):
        self.links = {url: links for one in sites for url, links in one.items()}
        self.denied, self.moved = set(denied), {}
        self.seeds = list(seeds or (next(iter(one)) for one in sites))


def tried(web, order, answers=lambda host: True):
    """Tries URLs until none is left, or only those of silent hosts; returns the number per host."""
    silent = {}
    counts = Counter()
    while hosts := order.newly_available():
        for host in hosts:
            candidate = order.take(host)
            if not answers(host):
                silent[host] = candidate
                continue
            counts[host] += 1
            order.note(candidate, web.answer(candidate))
    return counts


def test_a_silent_host_does_not_reduce_the_share_of_others():
    web = Sites(site("slow.test", 9), site("a.test", 50), site("b.test", 20), site("x.c.test", 5, "http://y.c.test/0"))
    web.links |= site("y.c.test", 5)
    order = order_of(web, scope=["slow.test", "a.test", "b.test", "x.c.test", "y.c.test"])
    counts = tried(web, order, lambda host: host != "slow.test")
    assert counts == {"a.test": 50, "b.test": 20, "x.c.test": 5, "y.c.test": 5}


def test_links_to_other_domains_are_tried_after_the_round_of_all_domains():
    web = Sites(site("a.test", 3, "http://b.test/9"), site("b.test", 3))
    web.links["http://b.test/9"] = ()
    scope = ["a.test", "b.test"]
    assert tried(web, order_of(web, scope), lambda host: host != "b.test") == {"a.test": 3}
    assert tried(web, order_of(web, scope)) == {"a.test": 3, "b.test": 4}


def test_unused_budget_of_a_host_is_given_to_others_before_the_round_ends():
    web = Sites(site("slow.test", 9), site("a.test", 5), site("b.test", 50))
    order = order_of(web, scope=["slow.test", "a.test", "b.test"], max_pages=30)
    counts = tried(web, order, lambda host: host != "slow.test")
    # Ten for each; the five unused ones of a.test are given to b.test and the slow host in turn.
    assert counts == {"a.test": 5, "b.test": 13}
    assert tried(web, order_of(web, ["slow.test", "a.test", "b.test"], max_pages=30)) == {
        "slow.test": 9,
        "a.test": 5,
        "b.test": 16,
    }


def test_a_host_with_a_low_cap_reserves_no_more_than_its_cap():
    web = Sites(site("slow.test", 9), site("b.test", 50))
    plans = {"slow.test": HostPlan(1.0, 3)}
    order = order_of(web, ["slow.test", "b.test"], plans, max_pages=40)
    assert tried(web, order, lambda host: host != "slow.test") == {"b.test": 37}


def test_budget_is_reserved_for_unknown_hosts_within_the_scope():
    web = Sites(site("a.test", 100, *(f"http://b{number}.test/0" for number in range(9))))
    for number in range(9):
        web.links |= site(f"b{number}.test", 10)
    counts = tried(web, order_of(web, ["*.test"], max_pages=60))
    assert sum(counts.values()) == 60
    assert all(counts[f"b{number}.test"] for number in range(9))
    assert tried(web, order_of(web, ["a.test"], max_pages=50)) == {"a.test": 50}


def test_a_url_forbidden_by_robots_txt_uses_no_budget():
    denied = {f"http://a.test/{number}" for number in range(1, 6)}
    web = Sites(site("a.test", 11), denied=denied)
    order = order_of(web, ["a.test"], max_pages=4)
    assert tried(web, order) == {"a.test": 9}
    assert order.spent == 4


def test_known_urls_and_traps_are_not_tried_and_traps_are_logged():
    links = ("http://a.test/known", "http://a.test/x/x/x/x/", "http://a.test/new")
    web = Sites({"http://a.test/": links, "http://a.test/new": ()})
    order = order_of(web, ["a.test"], known={key("http://a.test/known")})
    assert tried(web, order) == {"a.test": 2}
    assert [(candidate.url, reason) for candidate, reason in order.refused] == [("http://a.test/x/x/x/x/", "trap_path")]


def test_an_endless_site_takes_bounded_memory():
    url = "http://a.test/0"
    web = Sites({url: ()}, seeds=[url])
    order = order_of(web, ["*.test"], max_pages_per_host=30)
    long = "x" * 700
    for page in range(30):
        candidate = order.take("a.test")
        outlinks = [link(f"http://{host}.test/{page}/{number}/{long}") for number in range(700) for host in "ab"]
        order.note(candidate, web.answer(Candidate(link(url), 0))._replace(outlinks=tuple(outlinks)))
        waiting, _ = order.waiting
        # A multiple of the remaining requests, and links to the other host up to 32 MiB.
        assert waiting < 2 * (8 * 30 + 4) + (32 << 20) / 900
    assert order.dropped > 15_000


@pytest.mark.parametrize("seed", range(30))
def test_a_lowered_cap_applies_only_to_its_host(seed, tmp_path):
    """At any moment, with any pending responses: the host ends at its cap, and the crawl finishes."""
    draw, web = random.Random(seed), Web(seed, 120)
    (tmp_path / "hosts.toml").write_text("")
    policy = Policy(path=str(tmp_path / "hosts.toml"))
    config = CrawlConfig(delay_s=1.0, partitions=1, max_depth=50, max_pages=1000)
    start = [Candidate(link(url), 0, seed=True) for url in web.urls[::3]]
    order = UrlOrder(config, 0, 1000, Scope(("*.a.test", "*.b.test", "c.test")), start, policy=policy)
    available, in_flight, asked, step, moment = set(order.available), [], Counter(), 0, draw.randint(0, 40)
    while available or in_flight:
        if step == moment:
            before, at_work = asked.copy(), {authority(one.url) for one in in_flight}
            (tmp_path / "hosts.toml").write_text('[hosts."x.a.test"]\nmax_pages = 5\n[hosts."c.test"]\nmax_pages = 1\n')
            policy.reload()
            order.lower_caps()
        step += 1
        if available and (not in_flight or draw.random() < 0.5):
            candidate = order.take(available.pop())
            in_flight += [candidate] if candidate else []
        elif in_flight:
            candidate = in_flight.pop(draw.randrange(len(in_flight)))
            outcome = web.answer(candidate)
            asked[authority(candidate.url)] += outcome.requested
            order.note(candidate, outcome)
        available |= set(order.newly_available())
    assert step > moment
    for host, cap in {"x.a.test": 5, "c.test": 1}.items():
        assert asked[host] <= max(cap, before[host] + (host in at_work))
    free = {host for url in web.urls if (host := authority(url)) not in ("x.a.test", "c.test")}
    listed = {one.url for one in start if authority(one.url) in free} - web.denied
    assert sum(asked[host] for host in free) >= len(listed)

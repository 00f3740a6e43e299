"""Which URLs are tried depends on the fetch list and the answers, never on which host answers first."""

import random
from collections import Counter, defaultdict

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.crawl.candidate import Candidate
from tasks.crawl.config import CrawlConfig
from tasks.crawl.db.fetchlog import REDIRECT_TEMPORARY, SUCCESS, Outcome
from tasks.crawl.frontier.order import HostPlan, Order
from tasks.crawl.url import Scope, authority, domain_of, key, link

# Two domains with hosts of their own, and one host alone.
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
    start = [Candidate(url, 0, seed=True) for url in web.seeds]
    return Order(config, 0, config.max_pages, Scope(scope), start, plans, frozenset(known))


def crawl(web, order, pick):
    """Tries URLs until none is left; `pick` says whose turn it is, among hosts to begin and answers under way."""
    able, flying, tried = [], [], defaultdict(list)
    while True:
        able += order.ready()
        if not able and not flying:
            return dict(tried)
        turn = pick(len(able) + len(flying))
        if turn < len(able):
            candidate = order.take(able.pop(turn))
            assert candidate is not None
            flying.append(candidate)
            continue
        candidate = flying.pop(turn - len(able))
        tried[authority(candidate.url)].append((candidate.url, candidate.depth, candidate.via))
        order.note(candidate, web.answer(candidate))


@settings(max_examples=150, deadline=None, database=None)
@given(st.integers(0, 10_000), st.integers(6, 80), st.integers(1, 60), st.integers(1, 20), st.integers(1, 40))
@example(seed=1, size=40, max_pages=7, per_host=3, per_domain=5)
def test_what_is_tried_does_not_depend_on_who_answers_first(seed, size, max_pages, per_host, per_domain):
    web = Web(seed, size)
    caps = {"max_pages": max_pages, "max_pages_per_host": per_host, "max_pages_per_domain": per_domain}
    runs = [lambda n: 0, lambda n: n - 1, random.Random(seed).randrange, random.Random(seed + 1).randrange]
    first, *others = [crawl(web, order_of(web, **caps), pick) for pick in runs]
    # Each host its URLs in one order, however the hosts take turns.
    assert all(first == other for other in others)
    tried = [url for urls in first.values() for url, _, _ in urls]
    assert len(tried) == len(set(tried))
    asked = [url for url in tried if url not in web.denied]
    assert len(asked) <= max_pages
    assert max(Counter(map(authority, asked)).values(), default=0) <= per_host
    assert max(Counter(domain_of(authority(url)) for url in asked).values(), default=0) <= per_domain


@settings(max_examples=50, deadline=None, database=None)
@given(st.integers(0, 10_000), st.integers(6, 80))
def test_without_caps_every_page_that_is_linked_is_tried(seed, size):
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


@settings(max_examples=50, deadline=None, database=None)
@given(st.integers(0, 10_000), st.integers(1, 60))
def test_the_whole_budget_is_used_while_anything_is_left_to_try(seed, max_pages):
    web = Web(seed, 60)
    web.denied, web.moved = set(), {}
    whole = sum(map(len, crawl(web, order_of(web), lambda n: 0).values()))
    assert sum(map(len, crawl(web, order_of(web, max_pages=max_pages), lambda n: n - 1).values())) == min(
        whole, max_pages
    )

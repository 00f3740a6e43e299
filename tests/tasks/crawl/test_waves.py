import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.crawl.candidate import Candidate
from tasks.crawl.config import CrawlConfig
from tasks.crawl.db.fetchlog import SUCCESS, Outcome
from tasks.crawl.frontier.waves import HostPlan, Waves
from tasks.crawl.url import Scope, authority, key, link

HOSTS = ["a.localhost", "b.localhost", "c.localhost"]


def web(seed, size):
    """A random web of `size` pages over three hosts: URL -> links."""
    draw = random.Random(seed)
    urls = [f"http://{draw.choice(HOSTS)}/{number}" for number in range(size)]
    return {url: tuple(draw.sample(urls, min(size, draw.randint(0, 5)))) for url in urls}, urls[0]


def crawl(pages, start, shuffle, denied=(), **caps):
    """Runs the waves over a web; answers within a round come in the order that `shuffle` makes of them."""
    config = CrawlConfig(**{"allow_loopback": True, "delay_s": 0.0, "partitions": 1, "max_depth": 50, **caps})
    waves = Waves(config, 0, config.max_pages, Scope(HOSTS), [Candidate(start, 0)])
    order = []
    while chosen := waves.next_round():
        order.append([candidate.url for candidate in chosen])
        shuffle(chosen)
        for candidate in chosen:
            asked = candidate.url not in denied
            links = tuple(map(link, pages[candidate.url])) if asked else ()
            name, host = key(candidate.url), authority(candidate.url)
            waves.note(
                candidate,
                Outcome(name, candidate.url, host, candidate.depth, SUCCESS, requested=asked, outlinks=links),
            )
    return order


@settings(max_examples=60, deadline=None, database=None)
@given(st.integers(0, 10_000), st.integers(1, 60), st.integers(1, 40), st.integers(1, 15))
def test_what_is_tried_does_not_depend_on_the_order_of_answers(seed, size, max_pages, per_host):
    pages, start = web(seed, size)
    denied = set(random.Random(seed + 1).sample(sorted(pages), size // 4)) - {start}
    caps = {"max_pages": max_pages, "max_pages_per_host": per_host}
    straight = crawl(pages, start, lambda chosen: None, denied, **caps)
    shuffled = crawl(pages, start, random.Random(seed).shuffle, denied, **caps)
    assert straight == shuffled
    tried = [url for one in straight for url in one]
    assert len(tried) == len(set(tried))
    asked = [url for url in tried if url not in denied]
    assert len(asked) <= max_pages
    assert all(sum(authority(url) == host for url in asked) <= per_host for host in HOSTS)


def test_without_caps_every_page_that_is_linked_is_tried():
    pages, start = web(7, 50)
    reached, todo = set(), [start]
    while todo:
        url = todo.pop()
        if url not in reached:
            reached.add(url)
            todo += pages[url]
    tried = [url for one in crawl(pages, start, lambda chosen: None) for url in one]
    assert set(tried) == reached


def test_a_request_that_robots_forbids_costs_no_budget():
    pages = {"http://a.localhost/": tuple(f"http://a.localhost/{n}" for n in range(10))}
    pages.update({f"http://a.localhost/{n}": () for n in range(10)})
    denied = {f"http://a.localhost/{n}" for n in range(5)}
    order = crawl(pages, "http://a.localhost/", lambda chosen: None, denied, max_pages=4)
    tried = [url for one in order for url in one if url not in denied]
    assert tried == ["http://a.localhost/", *(f"http://a.localhost/{n}" for n in (5, 6, 7))]


def test_a_host_with_a_long_crawl_delay_gets_less_of_a_wave():
    urls = [f"http://{host}.localhost/{n}" for host in "ab" for n in range(100)]
    config = CrawlConfig(allow_loopback=True, delay_s=0.0, partitions=1)
    plans = {"a.localhost": HostPlan(1.0, 500, wave=3)}
    waves = Waves(config, 0, config.max_pages, Scope(HOSTS), [Candidate(url, 0) for url in urls], plans)
    chosen = Counter(authority(candidate.url) for candidate in waves.next_round())
    assert chosen == {"a.localhost": 3, "b.localhost": 32}


def test_links_to_known_urls_and_traps_are_not_tried_and_traps_are_told():
    known = {key("http://a.localhost/known")}
    config = CrawlConfig(allow_loopback=True, delay_s=0.0, partitions=1)
    start = Candidate("http://a.localhost/", 0, seed=True)
    waves = Waves(config, 0, config.max_pages, Scope(HOSTS), [start], known=known)
    assert waves.next_round() == [start]
    links = tuple(map(link, ("http://a.localhost/known", "http://a.localhost/x/x/x/x/", "http://a.localhost/new")))
    waves.note(start, Outcome(key(start.url), start.url, "a.localhost", 0, SUCCESS, requested=True, outlinks=links))
    assert [candidate.url for candidate in waves.next_round()] == ["http://a.localhost/new"]
    assert [(candidate.url, reason) for candidate, reason in waves.refused] == [
        ("http://a.localhost/x/x/x/x/", "trap_path")
    ]

"""The crawler beside Scrapy and beside bare aiohttp: pages per CPU-second on the same web, in turn.

    python -m benchmarks.crawl [--rounds 3] [--hosts 100] [--pages 50]

Makes a web of virtual hosts on loopback (`corpus`, `server`: nginx, gzip on the wire) and crawls it from the hosts'
front pages: with the stage fetch as the shell runs it (robots.txt, links, traps, opt-outs, WARC with index and logs);
with Scrapy (robots.txt, links, duplicate filter; nothing stored); and, for what Python can do at best, with aiohttp
alone, which is told the URLs. nginx' log must show that each of them asked for every page once, and for no other.
Beside the pages Sluice asks every host for robots.txt and tdmrep.json (404 here), Scrapy for robots.txt alone.

The figure is pages over CPU seconds, user and system, of the whole process and its children. Starting up (imports,
settings, helper processes) is measured for every crawler in every round by the same command on one page, the largest,
and taken off; the figures with it are in the result as well. Ratios are taken within a round, the result is their
median. At last `independence` measures how much slow and silent hosts hold good ones up. Needs nginx (`apt-get install
nginx-light`) and, once, PyPI; writes `benchmarks/results/crawl.json`. Five minutes on two cores.
"""

import argparse
import json
import sys
import time
from collections import Counter
from importlib.metadata import version
from statistics import median
from typing import Any

from benchmarks.crawl import corpus, independence
from benchmarks.crawl.contenders import CONCURRENCY, PEERS, STATE, Aiohttp, Cost, Scrapy, Sluice
from benchmarks.crawl.server import MissingServerError, Server, serve
from benchmarks.harness import keep

_NO_PAGES = ("/robots.txt ", "/.well-known/tdmrep.json ")
_OURS = ("aiohttp", "uvloop", "selectolax", "ada-url", "fastwarc", "pyarrow")


def fetched(server: Server, made: corpus.Corpus) -> None:
    """Checks by the server's log that a crawl asked for every page once and for nothing that robots.txt forbids.

    Raises:
        RuntimeError: it did not; the figures of such a crawl are not comparable.
    """
    asked = Counter(line for line in server.asked() if not any(path in line for path in _NO_PAGES))
    wanted = Counter(f"{page} 200" for page in made.pages)
    if asked != wanted:
        missing, more = list(wanted - asked)[:3], list(asked - wanted)[:3]
        raise RuntimeError(f"{asked.total()} requests instead of {wanted.total()}; missing {missing}, too many {more}")


def one_round(crawlers: dict[str, Any], server: Server, made: corpus.Corpus) -> dict[str, Any]:
    """Runs every crawler once on one page and once on all; returns its figures by name."""
    begin = [f"http://{host}:{server.port}/" for host in made.hosts]
    largest, *pages = (f"http://{page.replace('/', f':{server.port}/', 1)}" for page in [made.largest, *made.pages])
    figures = {}
    for name, crawler in crawlers.items():
        start = crawler.cost([largest], [largest])
        server.asked()
        whole = crawler.cost(begin, pages)
        fetched(server, made)
        figures[name] = _figures(len(pages), start, whole)
        print(f"{name:8} {json.dumps(figures[name])}", file=sys.stderr, flush=True)
    return figures


def _figures(pages: int, start: Cost, whole: Cost) -> dict[str, float]:
    return {
        "cpu_seconds": round(whole.cpu_s, 2),
        "start_cpu_seconds": round(start.cpu_s, 2),
        "pages_per_cpu_second": round(pages / (whole.cpu_s - start.cpu_s), 1),
        "with_start": round(pages / whole.cpu_s, 1),
        "peak_mb": round(whole.peak_bytes / 1e6),
    }


def summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the medians over the rounds, of the crawlers and of the ratios within a round."""
    speeds = {name: median(one[name]["pages_per_cpu_second"] for one in rounds) for name in rounds[0]}
    ratios = {}
    for key, name in (("pages_per_cpu_second", ""), ("with_start", " with start")):
        for peer in ("scrapy", "aiohttp"):
            each = [one["sluice"][key] / one[peer][key] for one in rounds]
            ratios[f"sluice/{peer}{name}"] = {
                "median": round(median(each), 2),
                "rounds": [round(one, 2) for one in each],
            }
    return {"pages_per_cpu_second": speeds, "ratio": ratios, "rounds": rounds}


def _short(value: float) -> float:
    return round(value, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hosts", type=int, default=100)
    parser.add_argument("--pages", type=int, default=50, help="per host")
    given = parser.parse_args()
    begin = time.monotonic()
    shape = corpus.Shape(given.hosts, given.pages)
    web = STATE / f"web-{corpus.VERSION}-{shape.hosts}x{shape.pages_per_host}"
    made = corpus.make(web, shape)
    crawlers = {"sluice": Sluice(STATE), "scrapy": Scrapy(STATE), "aiohttp": Aiohttp(STATE)}
    try:
        with serve(web) as server:
            rounds = [one_round(crawlers, server, made) for _ in range(given.rounds)]
    except MissingServerError as error:
        sys.exit(f"sluice: {error}")
    result = {
        "benchmark": "crawl",
        "versions": {name: version(name) for name in _OURS},
        "peers": PEERS,
        "corpus": {name: value for name, value in vars(made).items() if name not in ("hosts", "pages", "largest")}
        | {"hosts": len(made.hosts), "pages": len(made.pages)},
        "concurrency": CONCURRENCY,
        **summary(rounds),
        "independence": independence.measured(STATE),
        "wall_seconds": round(time.monotonic() - begin, 1),
    }
    keep("crawl", result)


if __name__ == "__main__":
    main()

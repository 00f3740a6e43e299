"""The crawler: pages per CPU-second against Scrapy and aiohttp, good hosts next to bad ones, the cost of a capture.

    python -m benchmarks.crawl fetch [--rounds 3] [--hosts 100] [--pages 50]
    python -m benchmarks.crawl warc [--rounds 5]

`fetch`: creates a web of virtual hosts on loopback (`crawl_web`: nginx, gzip on the wire) and crawls it from the hosts'
front pages: with the stage fetch as run from the shell (robots.txt, links, traps, opt-outs, WARC with index and logs);
with Scrapy (robots.txt, links, duplicate filter; nothing stored); and, as an upper bound for Python, with bare
aiohttp, which gets the list of URLs. nginx's log must show that each of them requested every page once, and no other.
In addition Sluice requests robots.txt and tdmrep.json (404 here) of every host, Scrapy only robots.txt.

The figure is pages over CPU seconds, user and system, of the whole process and its children. The start (imports,
settings, helper processes) is measured for every crawler in every round by the same command on one page, the largest,
and subtracted; the figures including it are in the result as well. Ratios are taken within a round, the result is their
median.

`independence`, a part of `fetch`: how much other hosts delay good ones. A server on loopback answers for all hosts,
distinguished by name: good ones at once, slow ones after four seconds, silent ones never. The stage fetch crawls the
good hosts alone, then together with each kind of others; the server's clock gives the seconds from the first request to
a good host to the last. Each crawl is stopped when the good hosts are finished.

Needs nginx (`apt-get install nginx-light`) and, once, PyPI. Five minutes on two cores. Writes `crawl.json`.

`warc`: CPU microseconds and bytes of response, request and metadata of a capture, as gzip and as zstd. Pages of the
same synthetic web, once as compressed by the server and once plain. Both compressions in turn within a round; the ratio
is taken within a round, the result is the median. Half a minute. Writes `warc_writer.json`.
"""

import argparse
import asyncio
import gzip
import io
import json
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from itertools import groupby, zip_longest
from pathlib import Path
from statistics import median
from typing import Any, get_args

from benchmarks.crawl_web import Corpus, MissingServerError, Nginx, Shape, folder_of, make, serve
from benchmarks.harness import ROOT, STATE, Cost, cost, in_turn, keep, parser, peer_python
from tasks.formats.web.url import authority
from tasks.stages.crawl.http.client import Response
from tasks.stages.crawl.storage.warc import Compression, WarcWriter, suffix

HERE = STATE / "crawl"
PROGRAMS = str(Path(__file__).with_name("peers.py"))
CONCURRENCY = 64
PEERS = ("scrapy==2.19.0", "uvloop==0.23.0")
GOOD, PAGES, DELAY_S, SLOW_S = 4, 100, 0.05, 4.0
OTHERS = {
    "one host that answers in 4 s": ["slow0"],
    "20 hosts that answer in 4 s": [f"slow{number}" for number in range(20)],
    "100 silent hosts": [f"silent{number}" for number in range(100)],
    "1,000 silent hosts": [f"silent{number}" for number in range(1000)],
}
_GOOD = [f"good{number}" for number in range(GOOD)]
_LIMIT_S = 300.0
_NO_PAGES = ("/robots.txt ", "/.well-known/tdmrep.json ")
_OURS = ("aiohttp", "uvloop", "selectolax", "ada-url", "fastwarc", "pyarrow")
SMALL = Shape(hosts=10, pages_per_host=50)
_WHEN = datetime(2026, 1, 1, tzinfo=UTC)
_HEADERS = (
    ("Server", "nginx/1.22.1"),
    ("Date", "Thu, 01 Jan 2026 00:00:00 GMT"),
    ("Content-Type", "text/html; charset=utf-8"),
    ("Last-Modified", "Tue, 14 Nov 2023 22:13:20 GMT"),
    ("ETag", '"6553f100-176f"'),
)
_NOTES = {"fetchTimeMs": "12", "hopsFromSeed": "3", "via": "http://site001.localhost:8080/guide/"}


Crawler = Callable[[list[str], list[str]], Cost]
"""Runs a crawler over pages, given its seeds and all of the pages."""


def sluice(seeds: list[str], pages: list[str]) -> Cost:
    """Runs the stages of a crawl up to fetch, as from the shell, in a temporary store; returns the cost of fetch."""
    store = HERE / "store"
    shutil.rmtree(store, ignore_errors=True)
    crawl = {
        "seeds": seeds,
        "include_hosts": ["*." + authority(seeds[0]).partition(".")[2]],
        "allow_loopback": True,
        "partitions": 1,
        "max_pages": _limit(pages),
        "max_pages_per_host": len(pages),
        "max_pages_per_domain": len(pages),
        "max_hosts_per_domain": len(pages),
        "max_depth": 50,
        "delay_s": 0.0,
        "latency_factor": 0.0,
        "concurrency": CONCURRENCY,
    }
    for stage in ("inject", "rank", "generate"):
        cost(command(stage, crawl, store))
    try:
        return cost(command("fetch", crawl, store))
    finally:
        shutil.rmtree(store, ignore_errors=True)


def command(stage: str, crawl: dict[str, Any], store: Path) -> list[str]:
    """Returns the shell command that runs a stage of a crawl of one partition."""
    recipe = {
        "name": "bench",
        "crawl": crawl,
        "canary": {"arms": 0, "anchors": ["uniform"]},
        "place": {"store": str(store), "mlflow": ""},
    }
    member = ["--member", "p0"] if stage in ("generate", "fetch") else []
    return [sys.executable, "-m", "tasks", stage, "--recipe", json.dumps(recipe), *member]


def scrapy(seeds: list[str], pages: list[str]) -> Cost:
    """Runs Scrapy, in an environment that is created on the first run; nothing is stored."""
    program = [peer_python("crawl/peers", PEERS), "-P", PROGRAMS, "scrapy"]
    return cost([*program, json.dumps(seeds), str(_limit(pages)), str(CONCURRENCY)])


def aiohttp(_: list[str], pages: list[str]) -> Cost:
    """Requests the pages with bare aiohttp, host by host in turn like a polite crawler, with keep-alive."""
    by_host = groupby(sorted(pages), key=authority)
    ranks = zip_longest(*(list(held) for _, held in by_host))
    urls = HERE / "urls.txt"
    urls.write_text("\n".join(url for rank in ranks for url in rank if url))
    return cost([sys.executable, "-P", PROGRAMS, "aiohttp", str(urls), str(CONCURRENCY)])


def _limit(pages: list[str]) -> int:
    """Returns the page budget of a crawl: one page, or many more than exist, so that the crawl ends by itself."""
    return 1 if len(pages) == 1 else 10 * len(pages)


def fetched(server: Nginx, made: Corpus) -> None:
    """Checks in the server's log that a crawl requested every page once and nothing that robots.txt forbids.

    Raises:
        RuntimeError: it did not, so its figures are not comparable.
    """
    requested = Counter(line for line in server.requests() if not any(path in line for path in _NO_PAGES))
    wanted = Counter(f"{page} 200" for page in made.pages)
    if requested != wanted:
        missing, more = list(wanted - requested)[:3], list(requested - wanted)[:3]
        raise RuntimeError(
            f"{requested.total()} requests instead of {wanted.total()}; missing {missing}, too many {more}"
        )


def one_round(crawlers: dict[str, Crawler], server: Nginx, made: Corpus) -> dict[str, Any]:
    """Runs every crawler once on one page and once on all; returns its figures by name."""
    begin = [f"http://{host}:{server.port}/" for host in made.hosts]
    largest, *pages = (f"http://{page.replace('/', f':{server.port}/', 1)}" for page in [made.largest, *made.pages])
    figures = {}
    for name, crawler in crawlers.items():
        start = crawler([largest], [largest])
        server.requests()
        whole = crawler(begin, pages)
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


class UnequalHosts:
    """Serves pages 0 to PAGES - 1 of every host, each with links to the next ones, in a thread.

    Attributes:
        port: TCP port on 127.0.0.1.
        times: monotonic times of requests to good hosts, in seconds.
    """

    def __init__(self) -> None:
        self.times: list[float] = []
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()
        self._ready.wait()

    def _run(self) -> None:
        self._loop.run_until_complete(self._begin())
        self._loop.run_forever()

    async def _begin(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=4096)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ", 2)[1].decode()
                host = head.partition(b"Host: ")[2].partition(b".")[0].decode()
                writer.write(await self._answer(host, path))
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    async def _answer(self, host: str, path: str) -> bytes:
        if host.startswith("silent"):
            await asyncio.sleep(_LIMIT_S)
        if host.startswith("slow"):
            await asyncio.sleep(SLOW_S)
        if not path[1:].isdigit():
            return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
        if host.startswith("good"):
            self.times.append(time.monotonic())
        links = [
            f'<a href="/{one}">{one}</a>' for one in range(3 * int(path[1:]) + 1, 3 * int(path[1:]) + 4) if one < PAGES
        ]
        body = f"<html><title>{host}{path}</title><p>Page {path} of {host}. {' '.join(links)}</html>".encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body


def independence() -> dict[str, Any]:
    """Returns seconds of the good hosts by kind of other hosts, and their share of the pace without others."""
    server = UnequalHosts()
    alone = _seconds(server, [])
    beside = {name: _seconds(server, others) for name, others in OTHERS.items()}
    return {
        "good_hosts": GOOD,
        "pages_each": PAGES,
        "alone_s": round(alone, 2),
        "beside_s": {name: round(seconds, 2) for name, seconds in beside.items()},
        "pace_kept": {name: round(alone / seconds, 3) for name, seconds in beside.items()},
    }


def _seconds(server: UnequalHosts, others: list[str]) -> float:
    """Crawls the good hosts together with others; returns seconds from the first page of a good host to the last."""
    store = HERE / "store"
    shutil.rmtree(store, ignore_errors=True)
    hosts = [f"{name}.localhost:{server.port}" for name in [*_GOOD, *others]]
    crawl = {
        "seeds": [f"http://{host}/0" for host in hosts],
        "allow_loopback": True,
        "partitions": 1,
        "max_pages": 10 * PAGES * len(hosts),
        "delay_s": DELAY_S,
        "concurrency": CONCURRENCY,
    }
    for stage in ("inject", "rank", "generate"):
        subprocess.run(command(stage, crawl, store), cwd=ROOT, check=True, capture_output=True)
    server.times.clear()
    process = subprocess.Popen(command("fetch", crawl, store), cwd=ROOT, stderr=subprocess.DEVNULL)
    begin = time.monotonic()
    while len(server.times) < GOOD * PAGES:
        if process.poll() is not None or time.monotonic() - begin > _LIMIT_S:
            raise RuntimeError(f"{len(server.times)} of {GOOD * PAGES} pages of good hosts after {_LIMIT_S} s")
        time.sleep(0.05)
    process.terminate()
    process.wait()
    shutil.rmtree(store)
    return server.times[-1] - server.times[0]


def fetch(given: argparse.Namespace) -> None:
    """Crawls the web with all crawlers, then good hosts together with others."""
    begin = time.monotonic()
    shape = Shape(given.hosts, given.pages)
    web = folder_of(shape)
    made = make(web, shape)
    crawlers: dict[str, Crawler] = {"sluice": sluice, "scrapy": scrapy, "aiohttp": aiohttp}
    try:
        with serve(web) as server:
            rounds = [one_round(crawlers, server, made) for _ in range(given.rounds)]
    except MissingServerError as error:
        sys.exit(f"sluice: {error}")
    result = {
        "versions": {name: version(name) for name in _OURS},
        "peers": PEERS,
        "corpus": {name: value for name, value in vars(made).items() if name not in ("hosts", "pages", "largest")}
        | {"hosts": len(made.hosts), "pages": len(made.pages)},
        "concurrency": CONCURRENCY,
        **summary(rounds),
        "independence": independence(),
        "wall_seconds": round(time.monotonic() - begin, 1),
    }
    keep("crawl", result)


def answers() -> dict[str, list[tuple[str, Response]]]:
    """Returns the pages with their URLs, compressed and plain."""
    folder = folder_of(SMALL)
    made = make(folder, SMALL)
    found: dict[str, list[tuple[str, Response]]] = {"came as gzip": [], "came plain": []}
    for page in made.pages:
        host, _, path = page.partition("/")
        body = (
            folder / host / f"{path}index.html.gz" if page.endswith("/") else folder / host / f"{path}.gz"
        ).read_bytes()
        request = f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: sluice/0.1\r\nAccept: */*\r\n\r\n".encode()
        for kind, headers, data in (
            ("came as gzip", (*_HEADERS, ("Content-Encoding", "gzip")), body),
            ("came plain", _HEADERS, gzip.decompress(body)),
        ):
            found[kind].append((f"http://{page}", Response(200, "OK", headers, data, "", "127.0.0.1", request, 0.012)))
    return found


def capture_cost(pages: list[tuple[str, Response]], compression: Compression) -> tuple[float, float]:
    """Writes captures of all pages to memory; returns CPU microseconds and bytes for each."""
    writer = WarcWriter(io.BytesIO(), f"warc/x{suffix(compression)}", "sluice", "sluice", compression)
    begin = time.process_time()
    for url, answer in pages:
        writer.capture(url, _WHEN, answer, _NOTES)
    return (time.process_time() - begin) / len(pages) * 1e6, writer.bytes / len(pages)


def compressions(pages: list[tuple[str, Response]], rounds: int) -> dict[str, Any]:
    """Returns the medians of both compressions, and of their ratio."""
    each = in_turn({one: partial(capture_cost, pages, one) for one in get_args(Compression)}, rounds)
    pairs = zip(each["zstd"], each["gzip"], strict=True)
    return {
        "microseconds": {name: round(median(taken for taken, _ in costs), 1) for name, costs in each.items()},
        "bytes": {name: round(costs[0][1]) for name, costs in each.items()},
        "zstd/gzip": round(median(zstd[0] / gzip[0] for zstd, gzip in pairs), 2),
    }


def warc(given: argparse.Namespace) -> None:
    """Writes captures in both compressions."""
    result = {kind: compressions(pages, given.rounds) for kind, pages in answers().items()}
    keep("warc_writer", {"versions": {name: version(name) for name in ("pyarrow", "isal")}, **result})


def main() -> None:
    options = parser(__doc__)
    commands = options.add_subparsers(required=True)
    one = commands.add_parser("fetch", help="pages per CPU-second against peers")
    one.add_argument("--rounds", type=int, default=3)
    one.add_argument("--hosts", type=int, default=100)
    one.add_argument("--pages", type=int, default=50, help="per host")
    one.set_defaults(run=fetch)
    one = commands.add_parser("warc", help="cost of a capture, gzip and zstd")
    one.add_argument("--rounds", type=int, default=5)
    one.set_defaults(run=warc)
    given = options.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()

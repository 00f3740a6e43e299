"""Programs for peers, each run by the Python of an environment with the peer; nothing of Sluice is imported.

    python -P benchmarks/peers.py scrapy '<JSON list of seeds>' PAGES CONCURRENCY
    python -P benchmarks/peers.py aiohttp FILE_OF_URLS CONCURRENCY
    python -P benchmarks/peers.py pages WARC_FOLDER OUT   datatrove: WARC files to kept and rejected documents
    python -P benchmarks/peers.py verdicts TEXTS OUT      datatrove: first reason of each filter for each text
    python -P benchmarks/peers.py speed TEXTS             datatrove: CPU seconds of each filter on all texts, as JSON

-P prevents the modules of this folder from shadowing libraries. TEXTS are JSON lines.
"""

import asyncio
import json
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

_BROAD_CRAWL = {
    "ROBOTSTXT_OBEY": True,
    "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.DownloaderAwarePriorityQueue",
    "TWISTED_REACTOR": "twisted.internet.asyncioreactor.AsyncioSelectorReactor",
    "ASYNCIO_EVENT_LOOP": "uvloop.Loop",
    "REACTOR_THREADPOOL_MAXSIZE": 20,
    "DOWNLOAD_DELAY": 0,
    "DOWNLOAD_TIMEOUT": 15,
    "LOG_ENABLED": False,
    "COOKIES_ENABLED": False,
    "RETRY_ENABLED": False,
    "REFERER_ENABLED": False,
    "HTTPPROXY_ENABLED": False,
    "TELNETCONSOLE_ENABLED": False,
    "REMOTE_CONTROL_ENABLED": False,
    "MEMUSAGE_ENABLED": False,
    "DEPTH_STATS_VERBOSE": False,
}
"""Settings of Scrapy's guide to broad crawls, and others that reduce its work."""


def scrapy(seeds: str, pages: str, concurrency: str) -> None:
    """Crawls from the seeds and stores nothing.

    Names are resolved immediately; see `_BROAD_CRAWL` for the settings.
    """
    from scrapy import Request, Spider
    from scrapy.crawler import CrawlerProcess
    from scrapy.linkextractors import LinkExtractor
    from scrapy.resolver import CachingThreadedResolver
    from twisted.internet.defer import succeed

    class Loopback(CachingThreadedResolver):  # type: ignore[misc]
        """Resolves every name to this machine."""

        def getHostByName(self, name: str, timeout: Any = None) -> Any:
            """See Twisted."""
            return succeed("127.0.0.1")

    class BroadSpider(Spider):  # type: ignore[misc]
        """Follows every link within *.localhost."""

        name = "broad"

        def __init__(self, start_urls: list[str]) -> None:
            super().__init__(start_urls=start_urls)
            # With this filter, links to other hosts never become requests.
            self.extractor = LinkExtractor(allow_domains=[start_urls[0].split("/")[2].partition(".")[2]])

        async def start(self) -> AsyncIterator[Any]:
            """Yields the seeds; Scrapy's own method exempts them from the duplicate filter and fetches them twice."""
            for url in self.start_urls:
                yield Request(url)

        def parse(self, response: Any) -> Iterator[Any]:
            """Yields the links of a page."""
            for link in self.extractor.extract_links(response):
                yield Request(link.url)

    limits = {"CONCURRENT_REQUESTS": int(concurrency), "CLOSESPIDER_PAGECOUNT": int(pages)}
    process = CrawlerProcess({**_BROAD_CRAWL, **limits, "DNS_RESOLVER": Loopback})
    process.crawl(BroadSpider, start_urls=json.loads(seeds))
    process.start()


def aiohttp(urls: str, concurrency: str) -> None:
    """Requests a known list of pages with bare aiohttp on uvloop, and drops the bodies, still compressed.

    An upper bound for Python: no robots.txt, no links, nothing written.
    """
    import uvloop
    from aiohttp import ClientSession, DummyCookieJar, TCPConnector
    from aiohttp.abc import AbstractResolver, ResolveResult
    from yarl import URL

    class Loopback(AbstractResolver):
        """Resolves every name to this machine."""

        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[ResolveResult]:
            """See `AbstractResolver`."""
            return [ResolveResult(hostname=host, host="127.0.0.1", port=port, family=family, proto=0, flags=0)]

        async def close(self) -> None:
            """Has nothing to close."""

    async def fetch() -> None:
        connector = TCPConnector(limit=0, resolver=Loopback())
        async with ClientSession(connector=connector, auto_decompress=False, cookie_jar=DummyCookieJar()) as session:
            waiting = iter(Path(urls).read_text().split())

            async def work() -> None:
                for url in waiting:
                    async with session.get(URL(url, encoded=True)) as response:
                        await response.read()

            await asyncio.gather(*(work() for _ in range(int(concurrency))))

    uvloop.run(fetch())


def pages(warcs: str, out: str) -> None:
    """Runs FineWeb's steps (datatrove's example fineweb.py) that both sides have, in order, in one process."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.extractors import Trafilatura
    from datatrove.pipeline.readers import WarcReader
    from datatrove.pipeline.writers.jsonl import JsonlWriter

    filters = [one(exclusion_writer=JsonlWriter(f"{out}/removed/{name}")) for name, one in _filters().items()]
    steps = [
        WarcReader(warcs, glob_pattern="*.warc.gz"),
        Trafilatura(favour_precision=True, timeout=10),
        *filters,
        JsonlWriter(f"{out}/kept"),
    ]
    LocalPipelineExecutor(pipeline=steps, tasks=1, workers=1, logging_dir=f"{out}/logs").run()


def verdicts(texts: str, out: str) -> None:
    """Applies every filter to every text, each time to the original text."""
    import numpy

    numpy.seterr(all="ignore")
    filters = {name: one() for name, one in _filters().items()}
    with Path(texts).open() as lines, Path(out).open("w") as file:
        for line in lines:
            file.write(json.dumps({name: _verdict(one, json.loads(line)) for name, one in filters.items()}) + "\n")


def speed(texts: str) -> None:
    """Times every filter over all texts, and their word tokenizer alone."""
    import numpy
    from datatrove.utils.word_tokenizers import load_word_tokenizer

    numpy.seterr(all="ignore")
    held = [json.loads(line) for line in Path(texts).read_text().splitlines()]
    filters = {name: one() for name, one in _filters().items()}
    runs: dict[str, Any] = {"words": load_word_tokenizer("eng").word_tokenize}
    runs |= {name: partial(_verdict, one) for name, one in filters.items()}
    runs["all rules"] = lambda text: [_verdict(one, text) for one in filters.values()]
    spent = {}
    for name, run in runs.items():
        # Warms up its caches and lazy imports, which are not measured.
        run("It rained, and nobody minded that.")
        before = time.process_time()
        for text in held:
            run(text)
        spent[name] = time.process_time() - before
    print(json.dumps(spent))


def _filters() -> dict[str, Any]:
    from datatrove.pipeline import filters

    return {
        "gopher_repetition": filters.GopherRepetitionFilter,
        "gopher_quality": filters.GopherQualityFilter,
        "c4": filters.C4QualityFilter,
        "fineweb": filters.FineWebQualityFilter,
    }


def _verdict(one: Any, text: str) -> str:
    from datatrove.data import Document

    try:
        answer = one.filter(Document(text=text, id="0"))
    except ZeroDivisionError:
        return "division by zero"
    return "" if answer is True else str(answer[1])


if __name__ == "__main__":
    programs = {one.__name__: one for one in (scrapy, aiohttp, pages, verdicts, speed)}
    programs[sys.argv[1]](*sys.argv[2:])

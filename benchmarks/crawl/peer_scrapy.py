"""Scrapy in the crawl benchmark: `python peer_scrapy.py '<json list of seeds>' <pages> <concurrency>`.

Runs in the peers' environment; imports nothing of Sluice. Settings are those that Scrapy's guide to broad crawls
advises, and what beyond them saves it work: uvloop, no log, no telnet, no retries, no cookies, referers or proxies,
nothing stored, and names that are answered at once.
"""

import json
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import scrapy
from scrapy.crawler import CrawlerProcess
from scrapy.linkextractors import LinkExtractor
from scrapy.resolver import CachingThreadedResolver
from twisted.internet.defer import succeed


class Loopback(CachingThreadedResolver):  # type: ignore[misc]
    """Every name is this machine."""

    def getHostByName(self, name: str, timeout: Any = None) -> Any:
        """Answers at once."""
        return succeed("127.0.0.1")


class BroadSpider(scrapy.Spider):
    """Follows every link within *.localhost."""

    name = "broad"

    def __init__(self, start_urls: list[str]) -> None:
        super().__init__(start_urls=start_urls)
        # Filtered here, links to other hosts never become requests.
        self.extractor = LinkExtractor(allow_domains=[start_urls[0].split("/")[2].partition(".")[2]])

    async def start(self) -> AsyncIterator[scrapy.Request]:
        """Yields the seeds; Scrapy's own exempts them from the duplicate filter, so that they are fetched twice."""
        for url in self.start_urls:
            yield scrapy.Request(url)

    def parse(self, response: Any) -> Iterator[scrapy.Request]:
        """Yields the links of a page."""
        for link in self.extractor.extract_links(response):
            yield scrapy.Request(link.url)


def settings(pages: int, concurrency: int) -> dict[str, Any]:
    return {
        "ROBOTSTXT_OBEY": True,
        "CONCURRENT_REQUESTS": concurrency,
        "CLOSESPIDER_PAGECOUNT": pages,
        "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.DownloaderAwarePriorityQueue",
        "TWISTED_REACTOR": "twisted.internet.asyncioreactor.AsyncioSelectorReactor",
        "ASYNCIO_EVENT_LOOP": "uvloop.Loop",
        "REACTOR_THREADPOOL_MAXSIZE": 20,
        "DOWNLOAD_DELAY": 0,
        "DOWNLOAD_TIMEOUT": 15,
        "DNS_RESOLVER": Loopback,
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


def main() -> None:
    seeds, pages, concurrency = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    process = CrawlerProcess(settings(pages, concurrency))
    process.crawl(BroadSpider, start_urls=seeds)
    process.start()


if __name__ == "__main__":
    main()

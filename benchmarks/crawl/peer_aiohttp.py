"""Bare aiohttp + uvloop in the crawl benchmark: `python peer_aiohttp.py <file of URLs> <concurrency>`.

What Python can do at best: requests pages that are known beforehand and drops the bodies, still compressed. No robots,
no links, nothing written.
"""

import asyncio
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import uvloop
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL


class Loopback(AbstractResolver):
    """Every name is this machine."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Answers at once."""
        return [ResolveResult(hostname=host, host="127.0.0.1", port=port, family=family, proto=0, flags=0)]

    async def close(self) -> None:
        """Nothing is held."""


async def fetch(urls: list[str], concurrency: int) -> None:
    connector = aiohttp.TCPConnector(limit=0, resolver=Loopback())
    async with aiohttp.ClientSession(
        connector=connector, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
    ) as session:
        waiting = iter(urls)
        await asyncio.gather(*(_work(session, waiting) for _ in range(concurrency)))


async def _work(session: aiohttp.ClientSession, waiting: Iterator[str]) -> None:
    for url in waiting:
        async with session.get(URL(url, encoded=True)) as response:
            await response.read()


if __name__ == "__main__":
    uvloop.run(fetch(Path(sys.argv[1]).read_text().split(), int(sys.argv[2])))

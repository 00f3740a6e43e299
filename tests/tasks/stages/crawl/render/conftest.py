"""A private network that must not be reached, and Chromium if it is installed."""

import asyncio
import socket

import psutil
import pytest
from aiohttp.abc import AbstractResolver

from tasks.core.errors import InputError
from tasks.stages.crawl.config import RenderConfig
from tasks.stages.crawl.http.address import Grants
from tasks.stages.crawl.render.proxy import AddressGuard
from tests.tasks.stages.crawl.site import PrivateServer

QUICK = {"settle_ms": 300, "timeout_s": 10.0}


@pytest.fixture
def chromium() -> str:
    """The browser executable; skips if there is none."""
    pytest.importorskip("playwright.async_api", reason="rendering is not tested: no package playwright")
    from tasks.stages.crawl.render.browser import find_chromium

    try:
        return find_chromium()
    except InputError as error:
        pytest.skip(f"rendering is not tested: {error}")


@pytest.fixture
def inside():
    server = PrivateServer()
    yield server
    server.close()


class Trick(AbstractResolver):
    """A name server that resolves every name to this machine."""

    async def resolve(self, host, port=0, family=socket.AF_INET):
        return ["127.0.0.1"]

    async def close(self):
        pass


class OneSite(AddressGuard):
    """The crawl's guard with an exception for the test site."""

    def __init__(self, port):
        super().__init__(Trick(), Grants())
        self.port = port

    def for_page(self, host):
        return self

    async def addresses(self, scheme, authority):
        if authority == f"127.0.0.1:{self.port}":
            return [("127.0.0.1", self.port)]
        return await super().addresses(scheme, authority)


@pytest.fixture
def render(chromium, tmp_path):
    from tasks.stages.crawl.render.browser import Browser
    from tasks.stages.crawl.render.queue import CapturedPage

    def run(site, html, *, url="", guard=OneSite, headers=(), allowed=lambda url: True, **settings):
        async def work():
            config = RenderConfig(**{"enabled": True, "chromium": chromium, **QUICK, **settings})
            agent = "sluice/0.1 (+mailto:a@b.example)"
            async with Browser(config, agent, guard(site.port), str(tmp_path)) as browser:
                body = html if isinstance(html, bytes) else html.encode()
                return await browser.render(CapturedPage(url or site.url(), headers, body), allowed)

        return asyncio.run(work())

    return run


@pytest.fixture
def browsers():
    """Returns the live browser processes of this process."""
    return lambda: [one for one in psutil.Process().children(recursive=True) if "chrom" in one.name()]

import asyncio

import pytest

from tasks.crawl.page.parser import INLINE_BYTES, Parser
from tasks.robots_tag import Directives

SMALL = b"<a href=/small>x</a>"
LARGE = b"<a href=/large>x</a>" + b"<p>text</p>" * (INLINE_BYTES // 10)
MANY_ATTRIBUTES = b"<a href=/many>x</a><p " + b" ".join(b"%x" % number for number in range(10_000)) + b">"
ENDLESS = b"<p " + b" ".join(b"%x" % number for number in range(600_000)) + b">"


def read(*pages, timeout_s=20.0):
    """The links of each page, read one after the other, and how many children were at work."""

    async def run():
        parser = Parser("sluice", timeout_s)
        try:
            found = [await parser.read(page, "http://h/", Directives()) for page in pages]
            return [page and [link.url for link in page.links] for page in found], len(parser._idle)
        finally:
            await parser.close()

    return asyncio.run(run())


def test_small_pages_need_no_child_and_large_ones_share_one():
    assert read(SMALL, SMALL) == ([["http://h/small"]] * 2, 0)
    assert read(LARGE, SMALL, LARGE) == ([["http://h/large"], ["http://h/small"], ["http://h/large"]], 1)


def test_a_small_page_with_a_very_long_tag_is_read_in_the_child():
    assert len(MANY_ATTRIBUTES) < INLINE_BYTES
    assert read(MANY_ATTRIBUTES) == ([["http://h/many"]], 1)


def test_a_page_that_takes_too_long_is_given_up_and_the_next_one_is_read():
    assert read(ENDLESS, LARGE, timeout_s=1.0) == ([None, ["http://h/large"]], 1)


def test_a_reader_who_gives_up_does_not_leave_its_answer_to_the_next():
    async def run():
        parser = Parser("sluice")
        try:
            await parser.read(LARGE, "http://h/", Directives())  # the child is up
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await parser.read(ENDLESS, "http://h/", Directives())
            page = await parser.read(LARGE.replace(b"/large", b"/after"), "http://h/", Directives())
            return [link.url for link in page.links]
        finally:
            await parser.close()

    assert asyncio.run(run()) == ["http://h/after"]


def test_two_large_pages_are_read_at_the_same_time():
    async def run():
        parser = Parser("sluice")
        try:
            hostile = asyncio.ensure_future(parser.read(ENDLESS, "http://h/", Directives()))
            page = await parser.read(LARGE, "http://h/", Directives())
            assert not hostile.done(), "a page that stalls must not hold up the other child"
            assert await hostile is None
            return len(page.links)
        finally:
            await parser.close()

    assert asyncio.run(run()) == 1

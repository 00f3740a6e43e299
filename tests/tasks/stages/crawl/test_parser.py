import asyncio
import contextlib
import os
import pickle
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.core.child_process import LENGTH
from tasks.formats.web.robots_tag import Directives
from tasks.stages.crawl.page import parser as module
from tasks.stages.crawl.page.links import parse_page
from tasks.stages.crawl.page.parser import INLINE_BYTES, PageParser
from tests.soak import soak_but

pytestmark = pytest.mark.real_time

SMALL = b"<a href=/small>x</a>"
LARGE = b"<a href=/large>x</a>" + b"<p>text</p>" * (INLINE_BYTES // 10)
MANY_ATTRIBUTES = b"<a href=/many>x</a><p " + b" ".join(b"%x" % number for number in range(10_000)) + b">"
ENDLESS = b"<p " + b" ".join(b"%x" % number for number in range(600_000)) + b">"


def read(*pages, cpu_s=20.0):
    """The links of each page, or the reason why it was not parsed; and the number of idle children at the end."""

    async def run():
        parser = PageParser("sluice", cpu_s)
        try:
            found = [await parser.read(page, "http://h/", Directives()) for page in pages]
            return [page.unread or [link.url for link in page.links] for page in found], len(parser._idle)
        finally:
            await parser.close()

    return asyncio.run(run())


def test_small_pages_need_no_child_and_large_ones_share_one():
    assert read(SMALL, SMALL) == ([["http://h/small"]] * 2, 0)
    assert read(LARGE, SMALL, LARGE) == ([["http://h/large"], ["http://h/small"], ["http://h/large"]], 1)


def test_a_small_page_with_a_very_long_tag_is_read_in_the_child():
    assert len(MANY_ATTRIBUTES) < INLINE_BYTES
    assert read(MANY_ATTRIBUTES) == ([["http://h/many"]], 1)


def test_a_page_that_takes_too_long_is_skipped_and_the_next_one_is_read():
    assert read(ENDLESS, LARGE, cpu_s=1.0) == (["it takes more than 1 CPU seconds", ["http://h/large"]], 1)


def read_by_a_stopped_child(monkeypatch, still_s, cpu_time):
    """The results of two pages if the child is stopped during the first, as on a busy machine."""
    ask = module._exchange

    async def stopping(child, question):
        os.kill(child.pid, signal.SIGSTOP)
        return await ask(child, question)

    async def run():
        parser = PageParser("sluice")
        try:
            await parser.read(LARGE, "http://h/", Directives())  # the child is up
            with monkeypatch.context() as patch:
                patch.setattr(module, "_exchange", stopping)
                patch.setattr(module, "_STALL_S", still_s)
                patch.setattr(module, "_cpu_time", cpu_time)
                first = await parser.read(LARGE, "http://h/", Directives())
            return first, await parser.read(LARGE, "http://h/", Directives())
        finally:
            await parser.close()

    return asyncio.run(run())


@pytest.mark.timeout(60)
def test_a_page_keeps_its_links_even_if_its_child_is_starved_of_cpu(monkeypatch):
    looks = []

    def cpu_time(pid):
        # The child gets a little CPU time before each check; finally the machine is free again.
        looks.append(pid)
        if len(looks) == 20:
            os.kill(pid, signal.SIGCONT)
        return len(looks)

    first, _ = read_by_a_stopped_child(monkeypatch, 0.01, cpu_time)
    assert ([link.url for link in first.links], first.unread) == (["http://h/large"], "")
    assert len(looks) >= 20


@pytest.mark.timeout(60)
def test_a_stalled_child_is_killed_and_the_next_page_is_read(monkeypatch):
    first, second = read_by_a_stopped_child(monkeypatch, 0.1, module._cpu_time)
    assert first.unread == "the parser process has made no progress for 0.1 s"
    assert [link.url for link in second.links] == ["http://h/large"]


def test_a_cancelled_request_does_not_leave_its_response_to_the_next():
    async def run():
        parser = PageParser("sluice")
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


def test_two_large_pages_are_read_concurrently():
    async def run():
        parser = PageParser("sluice", 1.0)
        try:
            hostile = asyncio.ensure_future(parser.read(ENDLESS, "http://h/", Directives()))
            page = await parser.read(LARGE, "http://h/", Directives())
            assert not hostile.done(), "a page that stalls must not hold up the other child"
            assert (await hostile).unread
            return len(page.links)
        finally:
            await parser.close()

    assert asyncio.run(run()) == 1


REFUSES = b"<meta name=robots content='noindex, noai'><!-- --><meta content=1 name='TDM-Reservation'>"


def said(page, html, cpu_s=20.0):
    async def run():
        parser = PageParser("sluice", cpu_s)
        try:
            return await parser.read(html, "http://h/", Directives(noarchive=True)), page
        finally:
            await parser.close()

    return asyncio.run(run())[0]


def test_robots_directives_of_an_unreadable_page_are_read_from_its_source():
    page = said(None, REFUSES + ENDLESS, 0.5)
    assert (page.noindex, page.noai, page.tdm, page.noarchive) == (True, True, True, True)
    assert (page.links, page.unread) == ((), "it takes more than 0.5 CPU seconds")


@pytest.mark.parametrize(
    ("meta", "noindex"),
    [
        (b"<META\nNAME = Robots\tCONTENT=noindex>", True),
        (b"<meta content='x' name=sluice/><meta name=sluice content=none>", True),
        (b'<meta name="robots" content="&#110;oindex">', True),
        (b"<meta name=otherbot content=noindex>", False),
        (b"<metadata name=robots content=noindex>", False),
        ("<meta name=robots content=noindex>".encode("utf-16"), True),
    ],
)
def test_directives_from_the_source_agree_with_a_parser(monkeypatch, meta, noindex):
    monkeypatch.setattr(module, "parse_page", lambda *_: 1 // 0)
    page = said(None, meta)
    assert page.noindex is noindex
    assert re.fullmatch(r"ZeroDivisionError: integer .* by zero \(test_parser\.py:\d+\)", page.unread)


def test_an_exception_on_a_page_is_reported_and_the_next_one_is_read(monkeypatch):
    def fails(html, *rest):
        if html == SMALL:
            raise KeyError("href")
        return parse_page(html, *rest)

    monkeypatch.setattr(module, "parse_page", fails)
    (first, second), _ = read(SMALL, b"<a href=/b>b</a>")
    assert re.fullmatch(r"KeyError: 'href' \(test_parser\.py:\d+\)", first)
    assert second == ["http://h/b"]


@contextlib.contextmanager
def child():
    """The child process alone: a function that sends it requests, and the process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tasks.stages.crawl.page.parser"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[4],
    )

    def ask(question):
        data = pickle.dumps(question)
        process.stdin.write(LENGTH.pack(len(data)) + data)
        process.stdin.flush()
        (length,) = LENGTH.unpack(process.stdout.read(LENGTH.size))
        return pickle.loads(process.stdout.read(length))

    with process:
        try:
            yield ask, process
        finally:
            process.kill()


def test_a_child_that_fails_on_a_page_reports_the_cause():
    with child() as (ask, _):
        assert "TypeError: parse_page() missing" in ask((20.0, (b"<p>",)))  # one argument is missing


@pytest.mark.parametrize(
    "piece", soak_but({0, 1}, [b"<p>", b"<a href=/%d>", b"<p a b c d e f g h i j k l>", b"<p>A <em>line</em>"])
)
def test_a_page_of_4_mib_takes_less_than_300_mb_or_is_skipped(piece):
    html = b"".join(piece % number if b"%" in piece else piece for number in range((4 << 20) // len(piece)))
    with child() as (ask, process):
        answer = ask((600.0, (html, "http://h/", "sluice", Directives(), "utf-8")))
        memory = int(re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())[1])
    assert memory < 300 << 10
    assert answer == "it takes too much memory" or not answer.unread
    assert memory > 100 << 10, "the page is no test of that"

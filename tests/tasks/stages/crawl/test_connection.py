"""Connections: the first reachable address, one pooled connection per host, and no unsolicited bytes.

Large bodies wait on the wire while others occupy the memory budget, and none waits forever.
"""

import asyncio
import socket
import threading
import time
from contextlib import closing, contextmanager

import psutil
import pytest
import uvloop

from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.http import connection
from tasks.stages.crawl.http.client import Client, FetchError
from tasks.stages.crawl.http.connection import (
    BODY_MEMORY,
    FREE_BODY,
    BodyMemory,
    LookUpError,
    SocketBudget,
    connect_any,
)
from tests.tasks.stages.crawl.hostile.web import CertificateAuthority

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"


@contextmanager
def server(serve, context=None):
    """Runs `serve(socket, number)` for every connection and closes it; yields the URL and the connections."""
    opened = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def run():
            while True:
                try:
                    link, _ = listening.accept()
                except OSError:
                    return
                opened.append(link)
                threading.Thread(target=talk, args=(link, len(opened)), daemon=True).start()

        def talk(link, number):
            with link, context.wrap_socket(link, server_side=True) if context else link as talking:
                serve(talking, number)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield f"http{'s' if context else ''}://127.0.0.1:{listening.getsockname()[1]}/", opened
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def answering(link, number):
    while link.recv(65536):
        link.sendall(ANSWER + b"%05d" % number)


def bodies(url, count=2, pause_s=0.0):
    async def run():
        found = []
        async with Client(CrawlConfig(allow_loopback=True, timeout_s=5.0)) as client:
            for _ in range(count):
                found.append((await client.get(url, limit=100)).body)
                await asyncio.sleep(pause_s)
        return found

    return uvloop.run(run())


def test_a_connection_is_reused_for_the_next_request():
    with server(answering) as (url, opened):
        assert bodies(url, 5) == [b"00001"] * 5
    assert len(opened) == 1


def test_a_connection_closed_by_the_server_is_reopened():
    def once(link, number):
        link.recv(65536)
        link.sendall(ANSWER + b"%05d" % number)

    with server(once) as (url, _):
        assert bodies(url, 3) == [b"00001", b"00002", b"00003"]
        assert bodies(url, 3, pause_s=0.05) == [b"00004", b"00005", b"00006"]


def test_a_request_is_resent_only_if_it_failed_on_a_reused_connection():
    seen = []

    def silent(link, number):
        seen.append(link.recv(65536))

    with server(silent) as (url, _), pytest.raises(FetchError, match="protocol"):
        bodies(url)
    assert len(seen) == 1


def test_an_unsolicited_response_is_discarded():
    def twice(link, number):
        while link.recv(65536):
            link.sendall(ANSWER + b"%05d" % number)
            time.sleep(0.05)
            link.sendall(ANSWER + b"wrong")

    with server(twice) as (url, _):
        assert bodies(url, 3, pause_s=0.15) == [b"00001", b"00002", b"00003"]


def test_the_connection_pool_is_bounded(monkeypatch):
    monkeypatch.setattr(connection, "MAX_IDLE", 2)

    async def run(urls):
        async with Client(CrawlConfig(allow_loopback=True)) as client:
            for _ in range(2):
                for url in urls:
                    await client.get(url, limit=100)

    with server(answering) as (url, opened):
        port = url.rsplit(":", 1)[1]
        asyncio.run(run([f"http://h{number}.localhost:{port}" for number in range(4)]))
        assert len(opened) == 8
        opened.clear()
        asyncio.run(run([f"http://h{number}.localhost:{port}" for number in range(2)]))
        assert len(opened) == 2


def test_idle_connections_are_closed_after_a_while(monkeypatch):
    monkeypatch.setattr(connection, "_IDLE_S", 0.1)
    monkeypatch.setattr(connection, "_SWEEP_S", 0.05)
    with server(answering) as (url, opened):
        assert bodies(url, 2, pause_s=0.4) == [b"00001", b"00002"]
        assert len(opened) == 2


def test_an_idle_connection_is_closed_for_another_host_at_the_limit():
    """Five hosts at a time with at most six open connections: pooled ones must not block new ones."""
    most_open = []

    async def run(port):
        budget = SocketBudget(visits=5, sockets=6, second_attempts=1)
        async with Client(CrawlConfig(allow_loopback=True, timeout_s=5.0), sockets=budget) as client:
            for begin in range(0, 20, 5):
                urls = [f"http://h{number}.localhost:{port}/" for number in range(begin, begin + 5)]
                await asyncio.gather(*(client.get(url, limit=100) for url in urls))
                links = psutil.Process().net_connections("tcp")
                most_open.append(sum(bool(link.raddr) and link.raddr.port == int(port) for link in links))
            before = len(opened)
            await client.get(urls[-1], limit=100)
            assert len(opened) == before == 20, "the newest is kept"

    with server(answering) as (url, opened):
        uvloop.run(run(url.rstrip("/").rsplit(":", 1)[1]))
    assert max(most_open) == 6


@pytest.mark.parametrize("kind", ["refusing", "silent"])
def test_the_next_address_is_tried_if_the_first_refuses(kind):
    async def run(port):
        link = await connect_any(["127.0.0.2", "127.0.0.3", "127.0.0.1"], port, asyncio.Semaphore(2))
        with closing(link):
            return link.getpeername()[0]

    with server(answering) as (url, _), contextmanager(_full)(int(url.rsplit(":", 1)[1].strip("/")), kind) as port:
        assert uvloop.run(run(port)) == "127.0.0.1"


def _full(port, kind):
    """Loopback addresses whose accept queues are full: they answer no further connection."""
    links = []
    if kind == "silent":
        for address in ("127.0.0.2", "127.0.0.3"):
            links.append(socket.socket())
            links[-1].bind((address, port))
            links[-1].listen(0)
            for _ in range(3):
                links.append(socket.socket())
                links[-1].setblocking(False)
                links[-1].connect_ex((address, port))
    yield port
    for link in links:
        link.close()


def test_an_error_is_raised_if_no_address_accepts_a_connection():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        asyncio.run(connect_any(["127.0.0.2", "127.0.0.1"], port, asyncio.Semaphore(2)))
    with pytest.raises(LookUpError):
        asyncio.run(connect_any([], port, asyncio.Semaphore(2)))


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_body_delimited_by_close_needs_no_tls_close_notify(tmp_path, monkeypatch, runner):
    authority = CertificateAuthority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))

    def cut_off(link, number):
        link.recv(65536)
        link.sendall(b"HTTP/1.1 200 OK\r\n\r\nhello")
        socket.socket(fileno=link.detach()).close()

    async def run(url):
        async with Client(CrawlConfig(allow_loopback=True, timeout_s=5.0)) as client:
            return await client.get(url, limit=100)

    with server(cut_off, authority.server("tls.localhost")) as (url, _):
        answer = runner(run(url.replace("127.0.0.1", "tls.localhost")))
    assert (answer.body, answer.address) == (b"hello", "127.0.0.1")


def large(link, number):
    body = b"%05d" % number + b"x" * 3_000_000
    link.recv(65536)
    link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


def test_a_large_response_waits_for_memory_without_using_its_timeout(monkeypatch):
    monkeypatch.setattr(connection, "BODY_MEMORY", 4_000_000)

    async def run(url):
        received, finished = asyncio.Event(), asyncio.Event()

        async def visit(client):
            await client.get(url, limit=4_000_000)
            received.set()
            await finished.wait()

        async with Client(CrawlConfig(allow_loopback=True, timeout_s=2.0)) as client:
            first = asyncio.ensure_future(visit(client))
            await received.wait()
            second = asyncio.ensure_future(client.get(url, limit=4_000_000))
            done, _ = await asyncio.wait([second], timeout=2.5)
            assert not done
            # Small ones go on meanwhile.
            small = await client.get(url, limit=1000)
            assert (small.truncated, len(small.body)) == ("length", 1000)
            finished.set()
            await first
            last = await second
            return len(last.body), last.seconds

    with server(large) as (url, _):
        size, seconds = uvloop.run(run(url))
    assert size == 3_000_005
    assert seconds < 2, "waiting is not the host's doing"


def test_a_large_response_is_truncated_at_its_limit():
    async def run(url):
        async with Client(CrawlConfig(allow_loopback=True, timeout_s=5.0)) as client:
            return await client.get(url, limit=1000, body_limit=lambda status, headers: 2_000_000)

    with server(large) as (url, _):
        answer = uvloop.run(run(url))
    assert (answer.truncated, len(answer.body)) == ("length", 2_000_000)


def test_an_aborted_large_response_releases_its_memory():
    def broken(link, number):
        link.recv(65536)
        link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n" + b"x" * 3_000_000)

    async def run(url):
        async with Client(CrawlConfig(allow_loopback=True, timeout_s=5.0)) as client:
            for _ in range(6):
                with pytest.raises(FetchError, match="protocol"):
                    await client.get(url, limit=1000, body_limit=lambda status, headers: 9_000_000)

    with server(broken) as (url, _):
        uvloop.run(asyncio.wait_for(run(url), 20))


LARGE = 8 << 20


class FakeConnection:
    """Records whether reading is paused."""

    def __init__(self):
        self.read = True

    def pause(self):
        assert self.read
        self.read = False

    def resume(self):
        assert not self.read
        self.read = True


def test_large_bodies_wait_for_memory_in_fifo_order():
    async def scenario():
        memory, count = BodyMemory(), BODY_MEMORY // (LARGE - FREE_BODY)
        ends = [asyncio.Event() for _ in range(count + 3)]
        visits = [asyncio.create_task(end.wait()) for end in ends]
        fakes = [FakeConnection() for _ in visits]
        for visit, fake in zip(visits, fakes, strict=True):
            memory.reserve(visit, fake, FREE_BODY)
            for size in range(1 << 20, LARGE + 1, 1 << 20):
                if fake.read:
                    memory.reserve(visit, fake, size)
        assert [fake.read for fake in fakes] == [True] * count + [False] * 3
        # The first never waits, regardless of the memory of others.
        memory.reserve(visits[0], fakes[0], 2 * LARGE)
        assert fakes[0].read
        ends[0].set()
        await visits[0]
        await asyncio.sleep(0)
        assert all(fake.read for fake in fakes)

    asyncio.run(scenario())


def test_small_bodies_need_no_reservation():
    async def scenario():
        memory = BodyMemory()
        visits = [asyncio.create_task(asyncio.sleep(0)) for _ in range(2000)]
        fakes = [FakeConnection() for _ in visits]
        for visit, fake in zip(visits, fakes, strict=True):
            memory.reserve(visit, fake, FREE_BODY)
        assert all(fake.read for fake in fakes)
        await asyncio.gather(*visits)

    asyncio.run(scenario())

import asyncio
import gzip
import resource
import socket
import threading
import time
import zlib
from contextlib import contextmanager

import pytest
from aiohttp import web

from tasks.formats.web.content_encoding import decode
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.http.client import Client, FetchError
from tasks.stages.crawl.page.links import refresh_target
from tests.tasks.stages.crawl.site import Site


def get(url, limit=1 << 20, keep_partial=False, **settings):
    async def run():
        config = CrawlConfig(**{"allow_loopback": True, "timeout_s": 3.0, "max_body_bytes": limit, **settings})
        async with Client(config) as client:
            return await client.get(url, limit=limit, keep_partial=keep_partial)

    return asyncio.run(run())


@contextmanager
def raw_server(*chunks, repeat=0.0):
    """Answers one connection with raw bytes; repeats the last chunk for `repeat` seconds."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.recv(65536)
            end = time.monotonic() + repeat
            try:
                for chunk in chunks:
                    connection.sendall(chunk)
                while time.monotonic() < end:
                    connection.sendall(chunks[-1])
            except OSError:
                return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"
    finally:
        server.close()
        thread.join(10)


def test_a_body_is_stored_as_compressed_by_the_server():
    body = gzip.compress(b"hello" * 100)
    headers = {"Content-Encoding": "gzip"}
    with Site({"/": lambda _: web.Response(body=body, headers=headers, content_type="text/html")}) as site:
        answer = get(site.url())
    assert answer.body == body
    assert not answer.truncated
    assert answer.address == "127.0.0.1"
    assert decode(answer.body, "gzip", 1000).data == b"hello" * 100


def test_requests_name_the_crawler_and_its_contact():
    with Site({"/": "x"}) as site:
        get(site.url(), contact="https://example.org/bot")
        _, headers = site.headers[-1]
    assert headers["User-Agent"] == "sluice/0.1 (+https://example.org/bot)"


def test_a_redirect_is_reported_and_never_followed():
    with Site({"/": lambda _: web.Response(status=302, headers={"Location": "/secret"}), "/secret": "s"}) as site:
        assert get(site.url()).status == 302
        assert site.paths() == ["/"]


def test_an_endless_body_is_truncated_at_the_limit():
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    with raw_server(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", chunk, repeat=30) as url:
        begin = time.monotonic()
        answer = get(url, limit=200_000)
    assert answer.truncated
    assert len(answer.body) == 200_000
    assert time.monotonic() - begin < 5


def test_a_truncated_body_is_returned_only_on_request():
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhello"
    with raw_server(reply) as url:
        answer = get(url, keep_partial=True)
    assert (answer.status, answer.body, answer.truncated) == (200, b"hello", "disconnect")
    with raw_server(reply) as url, pytest.raises(FetchError, match="protocol: the connection ends within the body"):
        get(url)
    broken = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\nno chunk\n"
    with raw_server(broken) as url, pytest.raises(FetchError, match="no size of a chunk"):
        get(url, keep_partial=True)


@pytest.mark.parametrize(
    ("value", "target"),
    [
        ("0; url=/a", "/a"),
        ("5;URL='http://h/b c'", "http://h/b c"),
        ('1.5, "/c"', "/c"),
        ("3 /d", "/d"),
        ("0", None),
        ("url=/e", None),
        ("", None),
    ],
)
def test_refresh_headers_are_followed_like_in_browsers(value, target):
    assert refresh_target(value) == target


def test_a_slow_response_ends_at_the_total_timeout():
    async def drip(request):
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(100):
            await response.write(b"x")
            await asyncio.sleep(0.1)
        return response

    with Site({"/": drip}) as site:
        begin = time.monotonic()
        with pytest.raises(FetchError) as caught:
            get(site.url(), timeout_s=0.6)
    assert caught.value.reason == "timeout"
    assert time.monotonic() - begin < 3


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 20_000_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"X%d: a\r\n" % n for n in range(200_000)) + b"\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort",
        b"hello, this is no HTTP\r\n\r\n",
    ],
    ids=["huge header", "many headers", "two lengths", "two content-lengths", "negative", "nul", "short", "no http"],
)
def test_malformed_responses_are_refused(head):
    with raw_server(head) as url, pytest.raises(FetchError) as caught:
        get(url)
    assert caught.value.reason == "protocol"


def test_an_endless_header_takes_bounded_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with raw_server(b"HTTP/1.1 200 OK\r\nX: ", b"a" * 65536, repeat=20) as url, pytest.raises(FetchError):
        get(url)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


@pytest.mark.parametrize("wbits", [31, 15, -15])
def test_a_bomb_is_inflated_to_the_limit_only(wbits):
    stream = zlib.compressobj(9, wbits=wbits)
    bomb = b"".join(stream.compress(b"\0" * (1 << 20)) for _ in range(100)) + stream.flush()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    body = decode(bomb, "gzip" if wbits == 31 else "deflate", 1 << 20)
    assert len(body.data) == 1 << 20
    assert not body.complete
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


def test_an_unreachable_host_gives_a_reason():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(FetchError) as caught:
        get(f"http://127.0.0.1:{port}/")
    assert caught.value.reason == "connect"


def test_every_response_over_a_pooled_connection_has_its_ip_address():
    peers = []

    def note(request):
        peers.append(request.transport.get_extra_info("peername"))
        return web.Response(text="x")

    async def run(url):
        config = CrawlConfig(allow_loopback=True)
        async with Client(config) as client:
            return [await client.get(url, limit=100) for _ in range(3)]

    with Site({"/": note}) as site:
        answers = asyncio.run(run(site.url()))
    assert len(set(peers)) == 1
    assert [answer.address for answer in answers] == ["127.0.0.1"] * 3


def test_waiting_for_an_ip_address_does_not_count_as_request_time():
    waits = []

    def begin(address):
        waits.append((address, len(site.requests)))
        return 0.8

    async def run(url):
        config = CrawlConfig(allow_loopback=True, timeout_s=0.6)
        async with Client(config, begin=begin) as client:
            return await client.get(url, limit=100)

    with Site({"/": "x"}) as site:
        start = time.monotonic()
        answer = asyncio.run(run(site.url()))
        assert site.requests[0][0] - start >= 0.8
    assert waits == [("127.0.0.1", 0)]
    assert (answer.status, answer.seconds < 0.6) == (200, True)


def test_the_client_refuses_a_private_address():
    with pytest.raises(FetchError) as caught:
        get("http://169.254.169.254/latest/meta-data/")
    assert caught.value.reason == "private_address"

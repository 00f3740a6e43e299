import asyncio
import contextlib

import pytest

from tasks.stages.crawl.http.address import Grants, RefusedAddressError
from tasks.stages.crawl.render.proxy import AddressGuard, Proxy
from tests.tasks.stages.crawl.render.test_guard import Names


class Only(AddressGuard):
    """Allows one server, by any name, at a given address."""

    def __init__(self, port):
        super().__init__(Names(), Grants())
        self.port = port
        self.asked = []

    async def addresses(self, scheme, authority):
        self.asked.append((scheme, authority))
        if authority.endswith(f":{self.port}"):
            return [("127.0.0.1", self.port)]
        return await super().addresses(scheme, authority)


@contextlib.asynccontextmanager
async def server(answer=b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", endless=False, keep=False):
    """A server that answers every connection with the same bytes; yields its port and the received heads."""
    heads = []

    async def serve(reader, writer):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                heads.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(answer)
                while endless:
                    writer.write(b"x" * 4096)
                    await writer.drain()
                await writer.drain()
                if not keep:
                    break
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1], heads
    finally:
        listening.close()


async def say(proxy, data, *, more=b""):
    """Sends bytes to the proxy and returns the whole response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(data)
    received = b""
    if more:
        received = await reader.read(65536)
        writer.write(more)
    async with asyncio.timeout(10):
        received += await reader.read()
    writer.close()
    return received


def run(work):
    return asyncio.run(work)


def get(port, path="/a?b=1", extra=""):
    return f"GET http://site.test:{port}{path} HTTP/1.1\r\nHost: other.test\r\n{extra}\r\n".encode()


def test_a_plain_request_reaches_only_the_server_of_its_url():
    async def work():
        async with server() as (port, heads):
            guard = Only(port)
            async with Proxy(guard, 1000, 10) as proxy:
                extra = "Proxy-Connection: keep-alive\r\nUpgrade: h2c\r\nAccept: */*\r\n"
                answer = await say(proxy, get(port, extra=extra))
                assert answer.endswith(b"\r\n\r\nhi")
                assert proxy.received == len(answer)
            assert guard.asked == [("http", f"site.test:{port}")]
            head = f"GET /a?b=1 HTTP/1.1\r\nHost: site.test:{port}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
            assert heads == [head.encode()]

    run(work())


def test_a_tunnel_carries_bytes_in_both_directions():
    async def work():
        async with server() as (port, heads), Proxy(Only(port), 1000, 10) as proxy:
            begin = f"CONNECT site.test:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            answer = await say(proxy, begin, more=b"anything\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert answer.endswith(b"hi")
            assert heads == [b"anything\r\n\r\n"]

    run(work())


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST http://site.test:PORT/ HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405),
        (b"GET http://site.test:PORT/ HTTP/1.1\r\nContent-Length: 20\r\n\r\nGET /second HTTP/1.1", 405),
        (b"GET http://site.test:PORT/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\nHost: site.test:PORT\r\n\r\n", 405),
        (b"GET ftp://site.test:PORT/ HTTP/1.1\r\n\r\n", 405),
        (b"GET http://127.0.0.1:1/ HTTP/1.1\r\n\r\n", 403),
        (b"GET http://169.254.169.254/latest/ HTTP/1.1\r\n\r\n", 403),
        (b"CONNECT 127.0.0.1:1 HTTP/1.1\r\n\r\n", 403),
        (b"CONNECT [::1]:443 HTTP/1.1\r\n\r\n", 403),
        (b"CONNECT metadata.google.internal:443 HTTP/1.1\r\n\r\n", 403),
        (b"nonsense\r\n\r\n", 400),
    ],
)
def test_only_get_requests_to_public_servers_are_forwarded(request_, status):
    async def work():
        async with server() as (port, heads), Proxy(Only(port), 1000, 10) as proxy:
            answer = await say(proxy, request_.replace(b"PORT", str(port).encode()))
            assert answer.startswith(f"HTTP/1.1 {status} ".encode())
            assert heads == []
            assert bool(proxy.refused) == (status == 403)

    run(work())


def test_a_second_request_on_a_connection_is_not_forwarded():
    async def work():
        async with server(keep=True) as (port, heads), Proxy(Only(port), 1000, 10) as proxy:
            await say(proxy, get(port), more=get(port, "/second"))
            assert len(heads) == 1

    run(work())


def test_the_byte_cap_of_a_page_cuts_off_its_network():
    async def work():
        async with server(endless=True) as (port, _), Proxy(Only(port), 100_000, 10) as proxy:
            first, second = await asyncio.gather(say(proxy, get(port)), say(proxy, get(port)))
            assert len(first) + len(second) <= 100_000
            assert proxy.spent == "bytes"
            assert (await say(proxy, get(port))).startswith(b"HTTP/1.1 429 ")

    run(work())


def test_the_request_cap_of_a_page_cuts_off_its_network():
    async def work():
        async with server() as (port, heads), Proxy(Only(port), 1000, 2) as proxy:
            answers = [await say(proxy, get(port)) for _ in range(3)]
            assert [answer[9:12] for answer in answers] == [b"200", b"200", b"429"]
            assert len(heads) == 2

    run(work())


def test_a_name_is_resolved_once_per_page_against_dns_rebinding():
    class Rebinding(Only):
        async def addresses(self, scheme, authority):
            if self.asked:
                raise RefusedAddressError("private now")
            return await super().addresses(scheme, authority)

    async def work():
        async with server() as (port, heads):
            guard = Rebinding(port)
            async with Proxy(guard, 1000, 10) as proxy:
                await say(proxy, get(port))
                await say(proxy, get(port))
            assert len(heads) == 2
            assert len(guard.asked) == 1

    run(work())


def test_an_endless_request_head_times_out():
    async def work():
        async with server() as (port, _), Proxy(Only(port), 1000, 10) as proxy:
            assert await say(proxy, b"GET http://" + b"a" * 100_000) == b""

    run(work())

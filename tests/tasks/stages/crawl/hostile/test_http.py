"""Group 5: responses that are not HTTP, contradictory, or endless."""

import asyncio
import socket

import pytest

from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.http.client import Client, FetchError
from tests.tasks.stages.crawl.hostile.web import HEAD, endless, page

pytestmark = pytest.mark.real_time

CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\n"

# Refused by the client: there is no capture, and the log has the reason.
PROTOCOL = {
    "endless header": endless(PLAIN + b"X: ", b"a" * 65536),
    "header of 20 MB": PLAIN + b"X: " + b"a" * 20_000_000 + b"\r\n\r\n",
    "headers without end": endless(PLAIN, b"X: a\r\n" * 1000),
    "200k headers": PLAIN + b"".join(b"X%d: a\r\n" % number for number in range(200_000)) + b"\r\n",
    "endless chunk extension": endless(CHUNKED + b"5;", b"a=b;" * 16384),
    "endless chunk size": endless(CHUNKED, b"0" * 65536),
    "endless trailers": endless(CHUNKED + b"2\r\nhi\r\n0\r\n", b"X: a\r\n" * 1000),
    "one byte per chunk": endless(CHUNKED, b"1\r\nx\r\n" * 10_000),
    "flood of 100 Continue": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "flood of 103 Early Hints": endless(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 1000),
    "length and chunks": HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "negative length": HEAD + b"Content-Length: -5\r\n\r\nhello",
    "length of 30 digits": HEAD + b"Content-Length: " + b"9" * 30 + b"\r\n\r\nhello",
    "length that is no number": HEAD + b"Content-Length: 0x5\r\n\r\nhello",
    "chunk of negative size": CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n",
    "chunk of huge size": CHUNKED + b"F" * 30 + b"\r\nhello",
    "NUL in a header": HEAD + b"X: a\0b\r\nContent-Length: 0\r\n\r\n",
    "lengths in one line": HEAD + b"Content-Length: 5, 6\r\n\r\nhello!",
    "field of 101 KB": HEAD + b"X: " + b"a" * (101 << 10) + b"\r\nContent-Length: 0\r\n\r\n",
    "6,000 fields": HEAD + b"X: a\r\n" * 6000 + b"Content-Length: 0\r\n\r\n",
    "a line without a colon": HEAD + b"nothing\r\nContent-Length: 0\r\n\r\n",
    "gzip as transfer coding": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "another protocol from here": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n" + page(b"x"),
    "HTTP/0.9": b"<html>hello</html>",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "no status": b"HTTP/1.1\r\n\r\n",
    "status of four digits": b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n",
    "nothing at all": b"",
}
SLOW = {
    "slow header": endless(PLAIN, b"X", 0.05),
    "slow body": endless(HEAD + b"Content-Length: 100000\r\n\r\n", b"x", 0.05),
    "slow chunks": endless(CHUNKED, b"1\r\nx\r\n", 0.05),
    "silence after the head": endless(HEAD + b"Content-Length: 5\r\n\r\n", b"", 0.5),
    "silence": endless(b"", b"", 0.5),
    "slow flood of 100 Continue": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 1.0),
}
# Kept, truncated at [crawl] max_body_bytes and marked.
ENDLESS = {
    "endless body": endless(HEAD + b"\r\n", b"x" * 65536),
    "endless chunks": endless(CHUNKED, b"10000\r\n" + b"x" * 65536 + b"\r\n"),
    "length of 1 TB": endless(HEAD + b"Content-Length: 1000000000000\r\n\r\n", b"x" * 65536),
}
# Kept as far as received, and marked.
SHORT = {
    "body shorter than told": HEAD + b"Content-Length: 5000\r\n\r\nshort",
    "chunk shorter than told": CHUNKED + b"FF\r\nshort",
}


def test_non_http_is_refused_and_endless_responses_are_truncated(web, crawl):
    refused = {name: web.host(answer) for name, answer in PROTOCOL.items()}
    slow = {name: web.host(answer) for name, answer in SLOW.items()}
    cut = {name: web.host(answer) for name, answer in ENDLESS.items()}
    short = {name: web.host(answer) for name, answer in SHORT.items()}
    result = crawl(*refused.values(), *slow.values(), *cut.values(), *short.values())
    assert result.reasons(refused) == dict.fromkeys(refused, "protocol")
    assert result.reasons(slow) == dict.fromkeys(slow, "timeout")
    for name, host in cut.items():
        capture = result.captures[host.url()]
        assert (capture["truncated"], capture["bytes"]) == (True, 1 << 20), name
    for name, host in short.items():
        capture = result.captures[host.url()]
        assert (capture["truncated"], capture["bytes"]) == (True, 5), name
    # Three tries each, repeated over a new connection if a pooled one was closed; no flood is read to its end.
    for name, host in {**refused, **slow, **cut}.items():
        assert len([path for path in host.paths() if path == "/"]) <= 6, name
        assert host.sent < 40 << 20, name


def test_a_valid_response_with_unusual_parts_is_kept(web, crawl):
    answers = {
        "interim responses": b"HTTP/1.1 100 Continue\r\n\r\n" + b"HTTP/1.1 103 Early Hints\r\n\r\n" + page(b"x"),
        "chunk extension": CHUNKED + b"5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\n",
        "header of 20 KB": page(b"x", "Content-Security-Policy: " + "a" * 20_000),
        "no length": HEAD + b"\r\nhello",
        "no reason": b"HTTP/1.1 200\r\nContent-Type: text/html\r\nContent-Length: 1\r\n\r\nx",
        "HTTP/1.0": b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\nhello",
        "letters of latin-1": page(b"x", "X: \xe9\xff"),
        "equal lengths": page(b"x", "Content-Length: 1"),
        "equal lengths in one line": HEAD + b"Content-Length: 1, 1\r\n\r\nx",
        "bytes behind the body": HEAD + b"Content-Length: 1\r\n\r\nx and more",
        "bytes behind the chunks": CHUNKED + b"5\r\nhello\r\n0\r\n\r\nand more",
        "bytes behind no body": page(b"", status="404 Not Found") + b"more",
        "CR in a header": page(b"x", "X: a\rb"),
        "lines that end in CR CR LF": page(b"x").replace(b"\r\n", b"\r\r\n"),
        "bare line feeds": page(b"x").replace(b"\r\n", b"\n"),
        "blank in a header's name": page(b"x", "X y: a"),
        "blank before the colon": page(b"x", "X : a").replace(b"Length:", b"Length :"),
        "no name of a header": page(b"x", ": a"),
        "folded": page(b"x", "X: a\r\n b\r\n\tc"),
        "2,000 headers": page(b"x", *(f"X-{number}: a" for number in range(2000))),
        "header of 99 KB": page(b"x", "X: " + "a" * 99_000),
        "control characters": page(b"x", "X: a\x01\x7f", "X\x02: a"),
        "HTTP/2 in words": page(b"x").replace(b"HTTP/1.1", b"HTTP/2"),
    }
    hosts = {name: web.host(answer) for name, answer in answers.items()}
    result = crawl(*hosts.values())
    assert result.reasons(hosts) == {**dict.fromkeys(hosts, ""), "bytes behind no body": "http_404"}
    captures = {name: result.captures[host.url()] for name, host in hosts.items() if name != "bytes behind no body"}
    assert not any(one["truncated"] for one in captures.values())
    assert {one["bytes"] for one in captures.values()} == {1, 5}


def fetch(url, monkeypatch=None, **settings):
    async def run():
        async with Client(CrawlConfig(allow_loopback=True, timeout_s=2.0, **settings)) as client:
            return await client.get(url, limit=1000)

    return asyncio.run(run())


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"])
def test_proxy_variables_are_ignored(web, monkeypatch, variable):
    proxy = web.host(page(b"from the proxy"))
    site = web.host(page(b"from the site"))
    monkeypatch.setenv(variable, proxy.url())
    assert fetch(site.url()).body == b"from the site"
    assert proxy.connections == 0


def test_netrc_credentials_are_not_sent(web, monkeypatch, tmp_path):
    file = tmp_path / "netrc"
    file.write_text("machine 127.0.0.1 login user password secret\n")
    file.chmod(0o600)
    monkeypatch.setenv("NETRC", str(file))
    site = web.host(page(b"x"))
    assert b"Authorization" not in fetch(site.url()).request


def test_cookies_are_not_kept(web):
    site = web.host(page(b"x", "Set-Cookie: a=b; Path=/"))

    async def run():
        async with Client(CrawlConfig(allow_loopback=True)) as client:
            await client.get(site.url(), limit=1000)
            return await client.get(site.url("/2"), limit=1000)

    assert b"Cookie" not in asyncio.run(run()).request


def test_no_request_is_sent_over_a_connection_to_a_private_address(web, monkeypatch):
    """The last of three checks alone, as if the first two had been bypassed."""
    site = web.host(page(b"x"))
    monkeypatch.setattr("tasks.stages.crawl.http.client.refusal", lambda *_, **__: None)

    async def run():
        async with Client(CrawlConfig(contact="mailto:a@b.example")) as client:
            await client.get(site.url(), limit=1000)

    with pytest.raises(FetchError) as caught:
        asyncio.run(run())
    assert caught.value.reason == "private_address"
    assert site.requests == []


def test_a_refused_connection_is_a_reason():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(FetchError) as caught:
        fetch(f"http://127.0.0.1:{port}/")
    assert caught.value.reason == "connect"

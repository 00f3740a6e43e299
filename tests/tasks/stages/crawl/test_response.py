"""Parsing HTTP responses: those that curl reads are read, ambiguous ones are refused, in any segmentation."""

import random
import shutil
import socketserver
import subprocess
import threading
import time

import pytest

from tasks.stages.crawl.http.response import (
    MAX_HEAD,
    DisconnectError,
    ProtocolError,
    ResponseParser,
    parse_head,
)

LIMIT = 1 << 20
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
FIVE = b"Content-Length: 5\r\n\r\nhello"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
CHUNKS = b"5\r\nhello\r\n0\r\n\r\n"


def many(count, value=b"a"):
    return b"".join(b"X-%d: %b\r\n" % (number, value) for number in range(count))


# Each of them has the body "hello" for curl and for us.
READ = {
    "plain": OK + FIVE,
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\n\r\nhello",
    "HTTP/2 in words": b"HTTP/2 200 OK\r\n" + FIVE,
    "small letters": b"http/1.1 200 OK\r\n" + FIVE,
    "no reason": b"HTTP/1.1 200\r\n" + FIVE,
    "no blank behind the status": b"HTTP/1.1 200OK\r\n" + FIVE,
    "two blanks before the status": b"HTTP/1.1  200 OK\r\n" + FIVE,
    "reason in latin-1": b"HTTP/1.1 200 \xe9\r\n" + FIVE,
    "until the end": OK + b"\r\nhello",
    "100 Continue": b"HTTP/1.1 100 Continue\r\n\r\n" + OK + FIVE,
    "103 with a length": b"HTTP/1.1 103 Early Hints\r\nContent-Length: 9\r\n\r\n" + OK + FIVE,
    "bytes behind the body": OK + FIVE + b", and more",
    "bytes behind chunks": CHUNKED + CHUNKS + b"more",
    "blank before a colon": OK + b"X : a\r\n" + FIVE,
    "tab before a colon": OK + b"X\t: a\r\n" + FIVE,
    "blank before the colon of the length": OK + FIVE.replace(b":", b" :"),
    "blank within a name": OK + b"X y: a\r\n" + FIVE,
    "no name": OK + b": a\r\n" + FIVE,
    "letters outside ASCII in a name": OK + b"X-\xc3\xa9: a\r\n" + FIVE,
    "control characters": OK + b"X\x01: a\x02\x7f\r\n" + FIVE,
    "lone CR": OK + b"X: a\rb\r\n" + FIVE,
    "a length behind a lone CR": OK + b"X: a\rContent-Length: 3\r\n" + FIVE,
    "CR CR LF": (OK + FIVE).replace(b"\r\n", b"\r\r\n"),
    "LF alone": (OK + FIVE).replace(b"\r\n", b"\n"),
    "folded": OK + b"X: a\r\n b\r\n\tc\r\n" + FIVE,
    "length twice": OK + b"Content-Length: 5\r\n" + FIVE,
    "length twice in one line": OK + FIVE.replace(b"5", b"5, 5"),
    "blanks around the length": OK + FIVE.replace(b" 5", b" \t 5 \t "),
    "129 fields": OK + many(129) + FIVE,
    "4,990 fields": OK + many(4990) + FIVE,
    "field of 33 KB": OK + b"X: " + b"a" * 33_000 + b"\r\n" + FIVE,
    "field of 99 KB": OK + b"X: " + b"a" * 99_000 + b"\r\n" + FIVE,
    "head of 290 KB": OK + many(29, b"a" * 10_000) + FIVE,
    "identity": OK + b"Transfer-Encoding: identity\r\n" + FIVE,
    "chunks": CHUNKED + CHUNKS,
    "chunked in capitals": CHUNKED.replace(b"chunked", b"CHUNKED") + CHUNKS,
    "chunked twice": CHUNKED.replace(b"chunked", b"chunked, chunked") + CHUNKS,
    "chunks with LF alone": CHUNKED + CHUNKS.replace(b"\r\n", b"\n"),
    "chunks with extensions": CHUNKED + b"5;a=b\r\nhello\r\n0;c\r\n\r\n",
    "chunks with blanks": CHUNKED + b"5 \t\r\nhello\r\n0\r\n\r\n",
    "chunks with zeros": CHUNKED + b"0005\r\nhello\r\n000\r\n\r\n",
    "chunks with trailers": CHUNKED + b"2\r\nhe\r\n3\r\nllo\r\n0\r\nX: y\r\nZ: w\r\n\r\n",
}
# Refused by both.
REFUSED = {
    "nothing": b"",
    "HTTP/0.9": b"<html>hello</html>",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "ICY": b"ICY 200 OK\r\n" + FIVE,
    "line before the status": b"\r\nHTTP/1.1 200 OK\r\n" + FIVE,
    "HTTP/1.2": b"HTTP/1.2 200 OK\r\n" + FIVE,
    "HTTP/1": b"HTTP/1 200 OK\r\n" + FIVE,
    "four digits": b"HTTP/1.1 2000 OK\r\n" + FIVE,
    "two digits": b"HTTP/1.1 20 OK\r\n" + FIVE,
    "status below 100": b"HTTP/1.1 099 OK\r\n" + FIVE,
    "no status": b"HTTP/1.1 OK\r\n" + FIVE,
    "CR alone": (OK + FIVE).replace(b"\r\n", b"\r"),
    "NUL in a value": OK + b"X: a\0b\r\n" + FIVE,
    "NUL in a name": OK + b"X\0: a\r\n" + FIVE,
    "NUL in the reason": b"HTTP/1.1 200 O\0K\r\n" + FIVE,
    "no colon": OK + b"hello\r\n" + FIVE,
    "folded from nothing": b"HTTP/1.1 200 OK\r\n X: a\r\n" + FIVE,
    "negative length": OK + FIVE.replace(b"5", b"-5"),
    "no length in the field": OK + FIVE.replace(b"5", b""),
    "a word for a length": OK + FIVE.replace(b"5", b"five"),
    "head of 600 KB": OK + many(60, b"a" * 10_000) + FIVE,
    "an unknown coding": CHUNKED.replace(b"chunked", b"junk") + CHUNKS,
    "an unknown coding in chunks": CHUNKED.replace(b"chunked", b"junk, chunked") + CHUNKS,
    "body too short": OK + FIVE.replace(b"5", b"50"),
    "no last chunk": CHUNKED + b"5\r\nhello\r\n",
    "last chunk without its end": CHUNKED + b"5\r\nhello\r\n0\r\n",
    "chunk too long": CHUNKED + b"3\r\nhello\r\n0\r\n\r\n",
    "no chunk": CHUNKED + b"<p>hello",
    "chunk of 0x5": CHUNKED + b"0x5\r\nhello\r\n0\r\n\r\n",
    "blank before a chunk": CHUNKED + b" 5\r\nhello\r\n0\r\n\r\n",
    "chunk of 17 digits": CHUNKED + b"0" * 16 + CHUNKS,
    "field of 103 KB": OK + b"X: " + b"a" * 105_000 + b"\r\n" + FIVE,
}
# Read by curl, and refused here because their end or content is ambiguous.
DOUBTFUL = {
    "two lengths": OK + b"Content-Length: 6\r\n" + FIVE,
    "two lengths in one line": OK + FIVE.replace(b"5", b"5, 6"),
    "length with a sign": OK + FIVE.replace(b"5", b"+5"),
    "length in hex": OK + FIVE.replace(b"5", b"0x5"),
    "length of 30 digits": OK + FIVE.replace(b"5", b"9" * 30),
    "length and letters": OK + FIVE.replace(b"5", b"5x"),
    "length and chunks": CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\n") + CHUNKS,
    "chunk size and letters": CHUNKED + b"5g\r\nhello\r\n0\r\n\r\n",
    "head without end": OK,
    "101": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n" + OK + FIVE,
    "6,000 fields": OK + many(6000) + FIVE,
}


def read(data, step=0, **options):
    response = ResponseParser(LIMIT, **options)
    for start in range(0, len(data), step or len(data) or 1):
        response.feed(data[start : start + (step or len(data))])
        if response.done:
            return response
    response.end()
    return response


def feed_all(response, pieces):
    for piece in pieces:
        response.feed(piece)


@pytest.mark.parametrize("name", READ)
def test_responses_that_curl_reads_are_read_in_any_segmentation(name):
    for step in (0, 1, 2, 3, 7) if len(READ[name]) < 1000 else (0, 1009):
        found = read(READ[name], step)
        assert (found.status, found.body, found.truncated) == (200, b"hello", "")


@pytest.mark.parametrize("name", [*REFUSED, *DOUBTFUL])
def test_ambiguous_responses_are_refused_in_any_segmentation(name):
    data = {**REFUSED, **DOUBTFUL}[name]
    for step in (0, 1, 2, 3, 7) if len(data) < 1000 else (0, 1009):
        with pytest.raises(ProtocolError):
            read(data, step)


class _Raw(socketserver.StreamRequestHandler):
    def handle(self):
        number = int(self.rfile.readline().split()[1].strip(b"/"))
        while self.rfile.readline().strip():
            pass
        self.wfile.write(self.server.answers[number])


def test_curl_reads_and_refuses_the_same(tmp_path):
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    names, answers = zip(*{**READ, **DOUBTFUL, **REFUSED}.items(), strict=True)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Raw) as server:
        server.answers, server.daemon_threads = answers, True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"

        def ask(*numbers):
            body_limit = "".join(f'url = "{url}/{number}"\noutput = "{tmp_path}/{number}"\n' for number in numbers)
            settings = 'silent\nmax-time = 20\nno-keepalive\nwrite-out = "%{exitcode} "\n'
            done = subprocess.run([curl, "-q", "-K", "-"], input=settings + body_limit, capture_output=True, text=True)
            return [code == "0" for code in done.stdout.split()]

        # Some of the last ones make curl close the connection.
        several = len(names) - len(REFUSED)
        taken = ask(*range(several)) + [ask(number) == [True] for number in range(several, len(names))]
        server.shutdown()
    whole = {name for name, good in zip(names, taken, strict=True) if good}
    assert whole == READ.keys() | DOUBTFUL.keys() - ({"6,000 fields"} - whole)  # newer ones refuse as many fields
    for number, name in enumerate(names):
        if name in READ:
            assert (tmp_path / str(number)).read_bytes() == b"hello", name


def test_a_bare_cr_becomes_a_space_and_folded_lines_are_joined():
    _, _, _, headers = parse_head(b"HTTP/1.1 200 OK\r\nX:  a\rSet-Cookie: b \r\nY : c\r\n  d\r\n\te")
    assert headers == (("X", "a Set-Cookie: b"), ("Y", "c d e"))


@pytest.mark.parametrize(
    ("data", "reusable"),
    [
        (OK + FIVE, True),
        (CHUNKED + CHUNKS, True),
        (OK + FIVE + b"x", False),
        (CHUNKED + CHUNKS + b"x", False),
        (OK + b"Connection: keep-alive, Close\r\n" + FIVE, False),
        (b"HTTP/1.0 200 OK\r\n" + FIVE, False),
        (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\n" + FIVE, True),
        (OK + b"\r\nhello", False),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\n\r\n", True),
        (b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", True),
        (b"HTTP/1.1 204 No Content\r\n\r\nx", False),
    ],
)
def test_a_connection_is_reused_only_after_a_complete_response(data, reusable):
    assert read(data).reusable is reusable


@pytest.mark.parametrize("step", [0, 1, 7])
@pytest.mark.parametrize("data", [OK + b"Content-Length: 9\r\n\r\nhello", CHUNKED + b"9\r\nhello"])
def test_the_received_part_of_a_truncated_body_is_available(data, step):
    response = ResponseParser(LIMIT)
    feed_all(response, [data[at : at + (step or len(data))] for at in range(0, len(data), step or len(data))])
    with pytest.raises(DisconnectError):
        response.end()
    assert response.truncate()
    assert (response.done, response.body, response.truncated) == (True, b"hello", "disconnect")
    assert not response.reusable


@pytest.mark.parametrize("data", [b"HTTP/1.1 200 OK\r\nX", OK + b"Content-Length: 9\r\n\r\n", OK + FIVE])
def test_only_a_response_that_ends_within_its_body_is_truncated(data):
    response = ResponseParser(LIMIT)
    response.feed(data)
    assert not response.truncate()
    assert response.truncated == ""


def test_a_body_is_truncated_at_the_limit_and_an_unwanted_one_is_not_read():
    for head in (OK + b"\r\n", OK + b"Content-Length: 3000000\r\n\r\n"):
        found = read(head + b"x" * 2_000_000)
        assert (len(found.body), found.truncated, found.reusable) == (LIMIT, "length", False)
    asked = []

    def unwanted(status, headers):
        asked.append((status, dict(headers)["Content-Type"]))
        return False

    response = ResponseParser(LIMIT, unwanted)
    response.feed(OK + b"Content-Length: 50000\r\n\r\n")
    assert (response.done, response.body, response.reusable) == (True, b"", False)
    short = read(OK + FIVE, body_limit=unwanted)
    assert (short.done, short.body, short.reusable) == (True, b"", True)
    assert asked == [(200, "text/html")] * 2


@pytest.mark.parametrize(
    "piece",
    [b"X: a\r\n" * 100, b"\r" * 1000, b"\n " * 500, b"a" * 1000, b"X: \r" * 300, b" " * 1000],
    ids=["fields", "CR", "folds", "a", "lone CR", "blanks"],
)
def test_an_endless_head_is_refused_in_linear_time(piece):
    response, begin = ResponseParser(LIMIT), time.process_time()
    response.feed(OK + b"X: a")
    with pytest.raises(ProtocolError):
        feed_all(response, [piece] * (MAX_HEAD // len(piece) + 1))
    assert time.process_time() - begin < 5  # a hundred times its time; quadratic time would take hours


def test_a_body_of_mostly_one_byte_chunks_is_refused():
    response = ResponseParser(LIMIT)
    feed_all(response, [CHUNKED, *[b"1\r\nx\r\n" * 1000] * 20])
    with pytest.raises(ProtocolError, match="chunked coding"):
        feed_all(response, [b"1\r\nx\r\n" * 1000] * 200)


def test_any_corrupted_response_is_read_or_refused():
    chance = random.Random(20261122)
    seeds = [data for data in [*READ.values(), *REFUSED.values()] if len(data) < 1000]
    parts = [
        b"\r\n",
        b"\n",
        b"\r",
        b"\0",
        b":",
        b" ",
        b"5",
        b"0\r\n\r\n",
        b"Content-Length: 7\r\n",
        b"\xff",
        b"\r\n\r\n",
    ]
    outcomes = set()
    for _ in range(4000):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(data) + 1)
            data[at : at + chance.choice((0, 0, 1, 5))] = chance.choice(parts)
        found = []
        for step in (0, 1, chance.randint(2, 9)):
            try:
                one = read(bytes(data), step)
                found.append((one.status, one.headers, one.body))
                assert not any(set(name + value) & set("\r\n\0") for name, value in one.headers)
            except ProtocolError:
                found.append(None)
        assert found[0] == found[1] == found[2], bytes(data)
        outcomes.add(found[0] is None)
    assert outcomes == {True, False}

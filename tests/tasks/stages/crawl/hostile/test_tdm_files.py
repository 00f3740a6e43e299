"""Group 6, the other file: tdmrep.json that is huge, endless, broken, or redirects to private addresses."""

import gzip

import pytest

from tests.tasks.stages.crawl.hostile.web import HEAD, TDMREP, endless, page, redirect

pytestmark = pytest.mark.real_time

RESERVED = b'[{"location": "/", "tdm-reservation": 1}]'


def file(body, *headers):
    return page(body, *headers, kind="application/json")


def hostile():
    hundred_mb = b" " * (100 << 20)
    return {
        "100 MB": file(RESERVED + hundred_mb),
        "bomb": file(gzip.compress(RESERVED + hundred_mb), "Content-Encoding: gzip"),
        "endless": endless(HEAD + b"\r\n" + RESERVED, b" " * 65536),
        "drip": endless(HEAD + b"\r\n", b"[", 0.2),
        "silence": endless(b"", b"", 0.5),
        "no HTTP": b"SSH-2.0-x\r\n",
        "brackets": file(b"[" * 200_000 + b"]" * 200_000),
        "a number of 400,000 digits": file(b"[" + b"9" * 400_000 + b"]"),
        "broken coding": file(b"\0" + RESERVED, "Content-Encoding: br"),
        "to the network": redirect("http://10.0.0.1/tdmrep.json"),
        "to metadata": redirect("http://169.254.169.254/latest/meta-data/"),
        "to a file": redirect("file:///etc/passwd"),
        "to itself": redirect(TDMREP),
        "to 1 MB": redirect("/" + "a" * (1 << 20)),
        "Retry-After -1": page(b"", "Retry-After: -1", status="503 Busy"),
    }


# About 13,000 rules without a match, and patterns with catastrophic backtracking as regular expressions.
COSTLY = {
    "13k rules": file(b"[" + b",".join([b'{"location":"/x*y","tdm-reservation":1}'] * 13_000) + b"]"),
    "star bomb": file(b'[{"location": "/' + b"*a" * 200_000 + b'b$", "tdm-reservation": 1}]'),
}


def test_a_hostile_file_affects_no_page(web, crawl):
    hosts = {name: web.host(page(b"x"), tdm=answer) for name, answer in {**hostile(), **COSTLY}.items()}
    reserved = web.host(page(b"x"), tdm=file(RESERVED))
    result = crawl(*hosts.values(), reserved)
    assert result.reasons(hosts) == dict.fromkeys(hosts, "")
    assert result.reason(reserved) == "ai_optout"
    for name, host in hosts.items():
        assert host.paths().count(TDMREP) == {"to itself": 2}.get(name, 1), name
        assert host.sent < 8 << 20, name

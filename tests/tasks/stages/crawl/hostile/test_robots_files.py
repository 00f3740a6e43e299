"""Group 6: robots.txt and Retry-After that are huge, broken, hostile or absurd."""

import gzip

import pytest

from tests.tasks.stages.crawl.hostile.web import HEAD, NOT_FOUND, endless, page, redirect

pytestmark = pytest.mark.real_time

OPEN = b"User-agent: *\nDisallow: /private\n"
SHUT = b"User-agent: *\nDisallow: /\n"


def text(body, *headers, status="200 OK"):
    return page(body, *headers, status=status, kind="text/plain")


def status(line, *headers):
    return page(b"", *headers, status=line)


def hundred_mb():
    return b"# nothing\n" * (10 << 20)


def allowing():
    return {
        "none": NOT_FOUND,
        "forbidden": status("403 Forbidden"),
        "gone": status("410 Gone"),
        "empty": text(b""),
        "100 MB": text(OPEN + hundred_mb() + SHUT),
        "a page": page(
            b"<!DOCTYPE html>\n<html><head><title>Not found</title></head>\n<body>User-agent: x</body></html>"
        ),
        "star bomb": text(b"User-agent: *\nDisallow: /" + b"*a" * 8000 + b"b"),
        "100k groups": text(b"".join(b"User-agent: bot%d\nDisallow: /\n\n" % number for number in range(100_000))),
        "25k rules": text(b"User-agent: *\n" + b"Disallow: /*a*b*c*d*e$\n" * 25_000),
        "bomb": text(gzip.compress(OPEN + hundred_mb()), "Content-Encoding: gzip"),
        "Crawl-delay nan": text(OPEN + b"Crawl-delay: nan"),
        "Crawl-delay inf": text(OPEN + b"Crawl-delay: inf"),
        "Crawl-delay -1": text(OPEN + b"Crawl-delay: -1"),
        "Crawl-delay of 5000 digits": text(OPEN + b"Crawl-delay: " + b"9" * 5000),
    }


def denying():
    return {
        "100 MB that forbid at once": text(SHUT + hundred_mb()),
        "UTF-8 with a mark": text(b"\xef\xbb\xbf" + SHUT),
        "UTF-16": text(SHUT.decode().encode("utf-16")),
        "UTF-16 of the other end": text(b"\xfe\xff" + SHUT.decode().encode("utf-16-be")),
        "NULs": text(b"\0\0" + SHUT.replace(b"\n", b"\0\n\0")),
        "CR only": text(SHUT.replace(b"\n", b"\r")),
        "in the midst of a page": page(b"<html><body>\n" + SHUT + b"</body></html>"),
        "stars": text(b"User-agent: *\nDisallow: " + b"*" * 10_000),
        "endless": endless(HEAD + b"\r\n" + SHUT, b"# more\n" * 10_000),
    }


UNAVAILABLE = {
    "500": status("500 Oops"),
    "503": status("503 Busy"),
    "429": status("429 Too Many Requests"),
    "timeout": endless(b"", b"", 0.5),
    "drip": endless(HEAD + b"\r\n", b"U", 0.2),
    "redirect loop": redirect("/robots.txt"),
    "no HTTP": b"SSH-2.0-x\r\n",
    "broken coding": text(b"\0broken", "Content-Encoding: br"),
    "Retry-After -1": status("503 Busy", "Retry-After: -1"),
}


# The host requested a pause longer than the cycle: it is respected, and its URLs stay due.
POSTPONED = {
    "Retry-After of a day": status("503 Busy", "Retry-After: 86400"),
    "Retry-After 9999": status("429 Slow", "Retry-After: Fri, 31 Dec 9999 23:59:59 GMT"),
}


def test_robots_files_of_every_kind_allow_forbid_or_postpone(web, crawl):
    def hosts(robots):
        return {name: web.host(page(b"x"), robots=answer) for name, answer in robots.items()}

    allowed, denied, unavailable, postponed = map(hosts, (allowing(), denying(), UNAVAILABLE, POSTPONED))
    result = crawl(*allowed.values(), *denied.values(), *unavailable.values(), *postponed.values())
    assert result.reasons(allowed) == dict.fromkeys(allowed, "")
    assert result.reasons(denied) == dict.fromkeys(denied, "robots_denied")
    assert result.reasons(unavailable) == dict.fromkeys(unavailable, "robots_unavailable")
    assert set(result.reasons(postponed).values()) <= {"robots_unavailable", None}
    assert all(host.paths() == ["/robots.txt"] for host in postponed.values())
    for name, host in {**denied, **unavailable}.items():
        assert set(host.paths()) == {"/robots.txt"}, name
        assert len(host.paths()) <= 6, name  # three tries, or one with five redirects
    assert all(host.sent < 8 << 20 for host in {**allowed, **denied}.values())


def test_a_crawl_delay_of_30_years_postpones_the_host_to_the_next_cycle(web, crawl):
    host = web.host(page(b"x"), robots=text(b"User-agent: *\nCrawl-delay: 1e9"))
    result = crawl(host, time_box_s=5.0)
    assert host.paths() == ["/robots.txt"]
    assert result.reason(host) in (None, "host_backoff")


MAD_PAUSES = {
    "negative": "-5",
    "in the past": "Wed, 21 Oct 2015 07:28:00 GMT",
    "year 9999": "Fri, 31 Dec 9999 23:59:59 GMT",
    "1e18": "1e18",
    "18 digits": "9" * 18,
    "5000 digits": "9" * 5000,
    "no date": "Wed, 99 Foo 2026 25:61:61 GMT",
    "nothing": "",
    "a zone": "Wed, 21 Oct 2026 07:28:00 +9999",
}


def test_any_retry_after_postpones_the_page_to_another_cycle(web, crawl):
    hosts = {
        name: web.host(page(b"", f"Retry-After: {value}", status="503 Busy")) for name, value in MAD_PAUSES.items()
    }
    result = crawl(*hosts.values())
    assert result.reasons(hosts) == dict.fromkeys(hosts, "http_503")
    assert {result.rows[host.url()]["status"] for host in hosts.values()} == {"fetch_retry"}
    assert all(len(host.paths()) <= 2 + 3 for host in hosts.values())

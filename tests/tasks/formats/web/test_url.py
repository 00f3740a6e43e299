import json

import pyarrow as pa
import pytest
import tldextract

from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.domain import is_public_suffix, partition, registered_domain
from tasks.formats.web.scope import Scope
from tasks.formats.web.url import (
    MAX_CANONICAL_URL,
    MAX_CAPTURED_URL,
    MAX_CRAWLED_URL,
    authority,
    host_and_port,
    host_of,
    is_trap,
    key,
    web_parts,
)
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.inject import scope_from
from tasks.stages.extract.captures import url_refusal
from tasks.stages.extract.page_metadata import absolute_url


def expected(whatwg):
    """The expected canonical form, from the result of the URL standard."""
    if whatwg is None or not whatwg.startswith(("http://", "https://")):
        return None
    whatwg = whatwg.replace(";jsessionid=ABC123", "")  # omitted on purpose
    scheme, _, host, *path = whatwg.partition("#")[0].split("/", 3)
    return "/".join([scheme, "", host.rstrip("."), *path])


def test_edge_cases_follow_the_url_standard(shared_data):
    for row in json.loads((shared_data / "urls" / "edge_cases.json").read_text()):
        want = None if "user:pw@" in row["href"] else expected(row["whatwg"])
        assert canonical(row["href"], row["base"]) == want, row["id"]


def test_real_links_follow_the_url_standard_except_for_tracking_parameters(shared_data):
    file = str(shared_data / "urls" / "real_links.jsonl.zst")
    rows = [json.loads(line) for line in pa.input_stream(file, compression="zstd").read().splitlines()]
    tracked = 0
    for row in rows:
        got, want = canonical(row["href"], row["base"]), expected(row["whatwg"])
        if got != want:
            assert want is not None, row
            assert "?" in want, row
            assert got == want.partition("?")[0] or got.startswith(want.partition("?")[0] + "?"), row
            tracked += 1
    assert len(rows) > 6000
    assert 0 < tracked < len(rows) / 20


@pytest.mark.parametrize(
    ("url", "want"),
    [
        ("http://h/a?utm_source=x&utm_medium=y", "http://h/a"),
        ("http://h/a?q=1&UTM_Source=x&r=2", "http://h/a?q=1&r=2"),
        ("http://h/a?fbclid=abc&q=%20", "http://h/a?q=%20"),
        ("http://h/a?utmost=1", "http://h/a?utmost=1"),
        ("http://h/a?gbraid=1&srsltid=2&_gl=3&q=1", "http://h/a?q=1"),
        ("http://h./a", "http://h/a"),
        ("http://user@h/", None),
        ("http://:secret@h/", None),
        ("file:///etc/passwd", None),
        ("javascript:alert(1)", None),
        ("http://h/" + "a" * 5000, None),
        ("http://h/\ud800", None),
        ("", None),
    ],
)
def test_canonical_form_drops_tracking_and_refuses_urls_that_cannot_be_crawled(url, want):
    assert canonical(url) == want


@pytest.mark.parametrize(
    ("url", "want"),
    [
        ("http://h/a.jsp;jsessionid=1A2B.node1?q=1", "http://h/a.jsp?q=1"),
        ("http://h/a;JSessionID=1/b;v=2", "http://h/a/b;v=2"),
        ("http://h/..;jsessionid=1", "http://h/"),
        ("http://h/a/%2e.;jsessionid=1/b?q=/..;jsessionid=1", "http://h/b?q=/..;jsessionid=1"),
        ("http://h/a?x=;jsessionid=1", "http://h/a?x=;jsessionid=1"),
        ("http://h/a?ASPSESSIONIDQQABCDEF=KLMN&CFID=1&CFTOKEN=2&id=3", "http://h/a?id=3"),
        ("http://h/forum?t=5&sid=0123456789abcdef0123456789abcdef", "http://h/forum?t=5"),
        ("http://h/forum?s=0123456789abcdef0123456789abcdef&t=5", "http://h/forum?t=5"),
        ("http://h/talks?session_id=12", "http://h/talks?session_id=12"),
        ("http://h/search?s=crawler&sid=3", "http://h/search?s=crawler&sid=3"),
        ("http://h/?s=donaudampfschifffahrtsgesellschaft", "http://h/?s=donaudampfschifffahrtsgesellschaft"),
        ("http://h/(S(lit3py55t21z5v55vlm25s55))/a.aspx", "http://h/(S(lit3py55t21z5v55vlm25s55))/a.aspx"),
    ],
)
def test_session_ids_are_dropped_and_similar_page_names_are_kept(url, want):
    assert canonical(url) == want
    assert canonical(want) == want


@pytest.mark.parametrize(
    ("path", "trap"),
    [
        ("a/a/a", True),
        ("x/a/b/c/a/b/c/a/b/c", True),
        ("a/b/c/d/a/b/c/d/a/b/c/d/e", True),
        ("a/b/a/c/a/d", False),
        ("3.11/library/library/asyncio", False),
        ("/".join("abcdefghijklmnopqrst"), False),
        ("/".join("abcdefghijklmnopqrstuv"), True),
        ("q?a/a/a/a", False),
        ("", False),
    ],
)
def test_a_path_that_repeats_itself_three_times_or_never_ends_is_a_trap(path, trap):
    assert is_trap(f"http://h/{path}") is trap


def test_canonical_form_is_a_fixed_point(shared_data):
    for row in json.loads((shared_data / "urls" / "edge_cases.json").read_text()):
        url = canonical(row["href"], row["base"])
        assert url is None or canonical(url) == url


def test_keys_and_partitions_never_change():
    assert key("https://example.com/").hex() == "3259687d649f8e86106dd28ba70f1016"
    assert partition("https://example.com/", 1024) == partition("http://www.example.com/x?y", 1024) == 614


@pytest.mark.parametrize(
    ("host", "domain"),
    [
        ("a.b.co.uk", "b.co.uk"),
        ("example.com", "example.com"),
        ("co.uk", "co.uk"),
        ("docs.localhost", "docs.localhost"),
        ("a.docs.localhost", "docs.localhost"),
        ("127.0.0.1", "127.0.0.1"),
        ("[::1]", "[::1]"),
    ],
)
def test_registered_domain_follows_the_public_suffix_list(host, domain):
    assert registered_domain(host) == domain


def test_registered_domains_and_suffixes_are_those_of_tldextract():
    """Every eighth rule of the list, in Unicode and encoded, with up to three labels before it."""
    reference = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)
    suffixes = [rule.lstrip("!").replace("*", "any") for rule in sorted(reference.tlds)[::8]]
    suffixes += [
        "ck",
        "www.ck",
        "any.ck",
        "kawasaki.jp",
        "city.kawasaki.jp",
        "公司.cn",
        "localhost",
        "xn--",
    ]
    for suffix in suffixes:
        encoded = [one if one.isascii() else f"xn--{one.encode('punycode').decode()}" for one in suffix.split(".")]
        for before in ("", "a.", "b.a.", "c.xn--bcher-kva.a."):
            host = before + ".".join(encoded)
            found = reference(host)
            parts = [part for part in (found.domain, found.suffix) if part]
            assert registered_domain(host) == (".".join(parts) if found.suffix else ".".join(host.split(".")[-2:])), (
                host
            )
            assert is_public_suffix(host) == ("." not in host or not found.domain), host


def test_host_and_port_are_parsed_from_every_kind_of_authority():
    assert authority("https://h:8443/a") == "h:8443"
    assert host_and_port("http://[::1]:80a/".replace("80a", "81")) == ("[::1]", 81)
    assert host_and_port("http://[::1]/") == ("[::1]", None)


def test_scope_treats_only_www_like_the_bare_name():
    scope = Scope(["example.com", "127.0.0.1:8000", "*.example.org"])
    assert scope.covers("http://www.example.com/")
    assert not scope.covers("http://evilexample.com/")
    assert not scope.covers("http://sub.example.com/")
    assert scope.covers("http://127.0.0.1:8000/")
    assert not scope.covers("http://127.0.0.1:8001/")
    assert scope.covers("http://example.org/")
    assert scope.covers("http://a.example.org/")
    assert not scope.covers("http://evilexample.org/")


def test_a_prefix_covers_nothing_else_of_its_host():
    scope = Scope(["example.com", "other.org"], prefixes=["https://www.example.com/docs/", "https://p.net/a"])
    assert scope.covers("http://example.com/docs/x?y")
    assert not scope.covers("http://example.com/blog/")
    assert not scope.covers("http://example.com/docs")
    assert scope.covers("http://other.org/anything")
    assert scope.covers("https://p.net/a/b")
    assert not scope.covers("https://p.net/b")
    with pytest.raises(ValueError, match="ftp"):
        Scope([], prefixes=["ftp://h/"])


def test_patterns_narrow_the_scope_of_hosts_and_prefixes():
    scope = Scope(["h"], include_pattern=r"/(en|de)/", exclude_pattern=r"[?&]print=1|/private/")
    assert scope.covers("http://h/en/a")
    assert not scope.covers("http://h/fr/a")
    assert not scope.covers("http://h/de/a?print=1")
    assert not scope.covers("http://h/en/private/a")
    assert not scope.covers("http://elsewhere/en/a")


def test_the_scope_of_a_crawl_is_its_hosts_or_its_seeds_and_its_prefixes():
    named = scope_from(
        CrawlConfig(seeds=("http://seed/",), contact="mailto:a@b.example", include_hosts=("h",)), ["seed"]
    )
    assert named.covers("http://h/")
    assert not named.covers("http://seed/")
    narrowed = {"include_prefixes": ("http://p/docs/",), "exclude_pattern": "x$"}
    scope = scope_from(CrawlConfig(seeds=("http://seed/",), contact="mailto:a@b.example", **narrowed), ["seed"])
    assert scope.covers("http://seed/a", "seed")
    assert scope.covers("http://p/docs/")
    assert not scope.covers("http://p/")
    assert not scope.covers("http://seed/x")


@pytest.mark.parametrize(
    ("url", "host", "is_web"),
    [
        ("https://user:pass@WWW.Example.ORG:8443/a", "www.example.org", True),
        ("http://me@you@a.example/", "a.example", True),
        ("http://[2001:DB8::1]:80/a", "2001:db8::1", True),
        ("http://[::1", "", False),
        ("http://a.example", "a.example", True),
        ("http://a.example?q=@b.example/", "a.example", True),
        ("http://a.example.:99999/", "a.example.", True),
        ("http://%65xample.org/", "%65xample.org", True),
        ("http://Bücher.example/", "bücher.example", True),
        ("http://a℀b.example/", "", False),
        ("HTTPS://a.example/", "a.example", True),
        ("ftp://a.example/x", "a.example", False),
        ("//a.example/x", "a.example", False),
        ("http:///robots.txt", "", False),
        ("http:a.example", "", False),
        ("urn:isbn:0451450523", "", False),
        ("a.example/x", "", False),
        ("", "", False),
    ],
)
def test_the_host_of_any_text(url: str, host: str, is_web: bool) -> None:
    assert host_of(url) == host
    assert (web_parts(url) is not None) == is_web
    if is_web:
        assert web_parts(url).host == host


def test_a_url_at_the_length_limit_is_accepted_and_a_longer_one_is_not() -> None:
    start = "http://a.example/"
    fits = {
        limit: start + "x" * (limit - len(start)) for limit in (MAX_CRAWLED_URL, MAX_CAPTURED_URL, MAX_CANONICAL_URL)
    }
    assert canonical(fits[MAX_CRAWLED_URL]) == fits[MAX_CRAWLED_URL]
    assert canonical(fits[MAX_CRAWLED_URL] + "x") is None
    assert url_refusal(fits[MAX_CAPTURED_URL]) == ""
    assert url_refusal(fits[MAX_CAPTURED_URL] + "x") == "url_invalid"
    assert absolute_url(fits[MAX_CANONICAL_URL], "", start) == fits[MAX_CANONICAL_URL]
    assert absolute_url(fits[MAX_CANONICAL_URL] + "x", "", start) == ""

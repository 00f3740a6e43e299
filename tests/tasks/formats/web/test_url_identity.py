"""Identity of a page: all that compares URLs agrees on which spellings are equivalent (RFC 3986, section 6.2.2)."""

import string
from urllib.parse import quote

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.formats.documents.tombstones import Tombstones, document_identity, page_term
from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.domain import host_name, link
from tasks.formats.web.robots import Robots
from tasks.formats.web.scope import Scope
from tasks.formats.web.url import WITHOUT_ESCAPES, distinct, identity, key
from tasks.run.trace.graph import mask_of_pages
from tasks.stages.crawl.frontier.queues import HostQueue, QueuedUrl
from tasks.stages.dedup.preference import page_key


def escapes(char: str) -> list[str]:
    upper = "".join(f"%{byte:02X}" for byte in char.encode())
    return [upper, upper.lower()]


# What a URL consists of, each with all its spellings; no two of them are equivalent.
UNRESERVED = [[char, *escapes(char)] for char in "aZ7~-_"]
OTHERS = [[char, *escapes(char)] for char in ("é", "مر", "中", "|", "^", '"')]
RESERVED = [[char] for char in "/&=+,:@!$()*;[]"]
ESCAPED_RESERVED = [escapes(char) for char in "/&=+?#%,:;[]"]
NO_ESCAPE = [["%zz", "%25zz"]]
PIECES = [*UNRESERVED, *OTHERS, *RESERVED, *ESCAPED_RESERVED, *NO_ESCAPE]
HOSTS = ["http://a.example", "HTTP://A.EXAMPLE:80", "http://a.example.", "http://a%2eexample"]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[str, str, bool]:
    """Two spellings of a page, or of two pages that differ in one piece; and whether they are of one."""
    numbers = draw(st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=6))
    others, same = list(numbers), draw(st.booleans())
    if not same:
        at = draw(st.integers(0, len(numbers) - 1))
        others[at] = (numbers[at] + draw(st.integers(1, len(PIECES) - 1))) % len(PIECES)

    def spelled(of: list[int]) -> str:
        text = "".join(draw(st.sampled_from(PIECES[number])) for number in of)
        return f"{draw(st.sampled_from(HOSTS))}/x{text}x{query}x{draw(st.sampled_from(['', '#top']))}"

    query = draw(st.sampled_from(["", "?q=%2f&r="]))
    return spelled(numbers), spelled(others), same


@given(pairs())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_takedown_trace_crawl_and_dedup_agree_on_pairs_of_spellings(
    pair: tuple[str, str, bool],
) -> None:
    one, other, same = pair
    first, second = canonical(one), canonical(other)
    assert first is not None
    assert second is not None
    queue = HostQueue(1.0, 10)
    queue.push(QueuedUrl(0, 0, 0, first), key(first), 1 << 20)
    row = pa.table({"url": [other]})
    stone = Tombstones(urls=frozenset([document_identity(one)]))
    says = {
        "crawl DB": key(first) == key(second) and link(first).key == link(second).key,
        "fetch": key(second) in queue,
        "links": len(distinct([first, second])) == 1,
        "scope": not Scope(["a.example"], taken_down=stone).covers(second),
        "takedown": stone.covers_raw_url(other),
        "corpus": stone.mask(row).tolist() == [True],
        "trace": mask_of_pages([one])(row).tolist() == [True],
        "index": page_term(one) == page_term(other),
        "captures": page_key(one) == page_key(other),
    }
    assert set(says.values()) == {same}, (pair, says)
    for url in (first, second):
        assert identity(identity(url)) == identity(url)
        assert WITHOUT_ESCAPES.fullmatch(identity(url).replace("%", ""))


@given(st.lists(st.sampled_from([*UNRESERVED, *OTHERS[:3], *ESCAPED_RESERVED[:4]]), min_size=1, max_size=5), st.data())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_a_robots_rule_refuses_every_spelling_of_its_path(pieces: list[list[str]], data: st.DataObject) -> None:
    rule, url = ("".join(data.draw(st.sampled_from(piece)) for piece in pieces) for _ in range(2))
    robots = Robots(f"User-agent: *\nDisallow: /x{rule}$".encode(), "sluice")
    assert not robots.allows(canonical(f"http://a.example/x{url}"))


@pytest.mark.parametrize(
    ("spellings", "page"),
    [
        (("http://h/%d9%85/", "http://h/%D9%85/", "http://h/م/"), "http://h/%D9%85/"),
        (("http://h/%7Eann/", "http://h/%7eann/", "http://h/~ann/"), "http://h/~ann/"),
        (("http://h/?q=é|", "http://h/?q=%c3%a9%7c"), "http://h/?q=%C3%A9%7C"),
        (("http://h/100%", "http://h/100%25"), "http://h/100%25"),
        (("http://h/%%34%31", "http://h/%2541"), "http://h/%2541"),  # never decoded twice
        (("http://bücher.example", "http://XN--BCHER-KVA.example:80/#a"), "http://xn--bcher-kva.example/"),
        (("http://me:secret@h/a", "http://h./a", "http://@h/a"), "http://h/a"),
        (("http://h/a?%75tm_source=x&q=1", "http://h/a;%6Asessionid=1?q=1"), "http://h/a?q=1"),
        (("http://h/" + "%7e" * 2000, "http://h/" + "~" * 2000), "http://h/" + "~" * 2000),
        (("http://h/a%2e%2e/b", "http://h/a../b"), "http://h/a../b"),
        (("http://h/a/%2E%2e/b", "http://h/b"), "http://h/b"),
    ],
)
def test_equivalent_spellings_of_a_document_url_have_one_identity(spellings: tuple[str, ...], page: str) -> None:
    assert {document_identity(url) for url in spellings} == {page}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *((f"/a{char}b", f"/a{quote(char, safe='')}b") for char in "/:@!$&'()*+,;="),
        ("/?a=1&b=2", "/?a=1%26b=2"),
        ("/?a+b", "/?a%20b"),
        ("/?a", "/"),
        ("/?", "/"),
        ("/a/", "/a"),
        ("/A", "/a"),
        ("/%2541", "/A"),
        ("/%C3%A9", "/e%CC%81"),  # as bytes: composed and combining letters
        ("/%E9", "/%C3%A9"),
    ],
)
def test_spellings_that_a_server_may_tell_apart_stay_different(one: str, other: str) -> None:
    assert document_identity(f"http://h{one}") != document_identity(f"http://h{other}")


def test_the_canonical_form_keeps_the_spelling_in_which_a_page_is_requested() -> None:
    for path in ("/%d9%85/", "/%D9%85/", "/%7Eann/", "/~ann/", "/100%", "/a|b"):
        assert canonical(f"http://h{path}") == f"http://h{path}"


def test_plain_urls_are_their_own_identity() -> None:
    url = f"http://h/{string.ascii_letters}{string.digits}-._~!$&'()*+,;=:@/?/?[]"
    assert identity(url) is url


def test_a_domain_covers_documents_whose_url_has_a_user_name() -> None:
    assert host_name("http://me:secret@www.a.example:8080/x") == "www.a.example"
    row = pa.table({"url": ["http://me:secret@www.a.example/x", "http://a.example@b.example/"]})
    assert Tombstones(domains=frozenset(["a.example"])).mask(row).tolist() == [True, False]
    assert Tombstones(urls=frozenset(["https://a.example/x"])).mask(row).tolist() == [True, False]


def test_prefixes_of_a_scope_cover_every_spelling() -> None:
    scope = Scope(["h"], prefixes=["http://h/%d9%85/"])
    assert [scope.covers(f"http://h/{path}") for path in ("%D9%85/a", "%d9%85/%62", "%D9%86/a")] == [True, True, False]

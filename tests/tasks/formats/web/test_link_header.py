"""The HTTP header Link, by the grammar and appendix B of RFC 8288."""

import time

import pytest

from tasks.formats.web.link_header import links_of

URL = "http://h/d/page?q"


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ('<http://o/a>; rel="canonical"', ["canonical http://o/a"]),
        ("<a>; rel=canonical", ["canonical http://h/d/a"]),
        ("</a>;rel=Canonical;type=text/html", ["canonical http://h/a"]),
        ("<>; rel=canonical", []),
        ("<?x=1>; rel=canonical", ["canonical http://h/d/page?x=1"]),
        ("<//o/b>; rel = canonical", ["canonical http://o/b"]),
        ("</a>; rel=next, </b>; rel=canonical", ["next http://h/a", "canonical http://h/b"]),
        ("</a,b;c>; rel=canonical", ["canonical http://h/a,b;c"]),
        ('</a>; title="x, </no>; rel=canonical"; rel=next', ["next http://h/a"]),
        (r'</a>; title="a \" b, </no>; rel=no"; rel=canonical', ["canonical http://h/a"]),
        ('</a>; rel="next canonical"', ["canonical next http://h/a"]),
        ("</a>; rel=next; rel=canonical", ["next http://h/a"]),  # 3.3: the first of several
        ('</a>; anchor="#part"; rel=canonical', ["canonical http://h/a"]),
        ('</a>; anchor="/other"; rel=canonical', []),  # 3.2: about another resource
        ('</a>; anchor="page?q"; rel=canonical', ["canonical http://h/a"]),
        ("</a>; rel", ["http://h/a"]),
        ("</a>", ["http://h/a"]),
        (",, </a>; rel=x ,", ["x http://h/a"]),
        ("broken; rel=canonical, </a>; rel=canonical", ["canonical http://h/a"]),
        ("</a; rel=canonical, </b>; rel=canonical", ["canonical http://h/b"]),
        ('</a>; title="open; rel=canonical', ["http://h/a"]),
        ("<javascript:x>; rel=canonical", ["canonical None"]),
        ("</th\u00c3\u00a9>; rel=canonical", ["canonical http://h/th%C3%A9"]),  # UTF-8 decoded as Latin-1
        ("</th\u00e9>; rel=canonical", ["canonical http://h/th%C3%A9"]),
        ("", []),
        ("<" * 50_000, []),
        ('</a>; x="' + "\\" * 50_001, ["http://h/a"]),
        ("<a,", []),
    ],
)
def test_links_about_the_page_are_found(header, found):
    assert [" ".join([*sorted(one.relations), str(one.url)]) for one in links_of([header], URL)] == found


@pytest.mark.parametrize("gap", [",", " ", ", ", "<,", "<a>;", "<a>;x=\\"])
def test_a_hostile_header_is_read_in_linear_time(gap):
    begun = time.process_time()
    list(links_of([gap * (200_000 // len(gap)) + "x"], URL))
    assert time.process_time() - begun < 10  # quadratic time would take minutes


def test_several_headers_are_read_in_their_order_up_to_a_limit():
    links = list(links_of(["</a>; rel=x", '</b>; rel=y; type="Application/RSL+XML; a=b"'], URL))
    assert [(one.url, one.type) for one in links] == [("http://h/a", ""), ("http://h/b", "application/rsl+xml")]
    assert len(list(links_of(["</a>; rel=x"] * 500, URL))) == 100

"""Contract of tasks.stages.extract.html: cheap bounds accept honest pages and refuse the same pages as a
count of every tag."""

import random

import pytest

from tasks.stages.extract.html import _refuse_tags, refuse_bombs
from tasks.stages.extract.row import Rejected


def reason(html: str) -> str:
    """The reason for a refusal of a page, or ""."""
    try:
        refuse_bombs(html.encode())
    except Rejected as refused:
        return refused.reason
    return ""


def exact(html: str) -> str:
    """The same, without the bounds."""
    try:
        _refuse_tags(html.encode())
    except Rejected as refused:
        return refused.reason
    return ""


def test_a_long_index_of_closed_elements_is_not_a_bomb() -> None:
    entry = '<li><a href="x.html"><code>name</code> <em>in</em> <span>module</span></a></li>'
    assert reason(f"<ul>{entry * 12_000}</ul>") == ""


@pytest.mark.parametrize("name", ["div", "DIV", "span", "x-y"])
def test_elements_left_open_among_closed_ones_are_found(name: str) -> None:
    assert reason(f"<p><b>a</b></p><{name}>" * 4_100) == "nesting"


def test_an_end_tag_with_another_name_closes_nothing() -> None:
    assert reason("<div></span>" * 4_100) == "nesting"


def test_formatting_elements_left_open_before_many_paragraphs_are_found() -> None:
    assert reason("<B>" * 150 + "<p>a</p>" * 8_000) == "formatting"


def test_options_are_counted_in_upper_and_lower_case() -> None:
    assert reason("<select>" + "<oPtIon>a" * 10_001) == "options"


def test_rare_open_elements_among_many_are_found() -> None:
    assert reason("<i></i>" * 150_000 + "<div>" * 4_100) == "nesting"


def test_every_page_refused_by_a_tag_by_tag_count_is_refused() -> None:
    chance = random.Random(11)
    names = [
        "div",
        "DIV",
        "span",
        "b",
        "Code",
        "i",
        "p",
        "option",
        "a",
        "table",
        "td",
        "optgroup",
        "optgroups",
        "dialogue1",
    ]
    for _ in range(40):
        weights = [chance.random() ** 3 for _ in names]
        closed = chance.choice([0.0, 0.2, 0.45, 0.5])
        tags = chance.choices(names, weights, k=chance.choice([2_500, 5_000, 12_000]))
        html = "".join(f"<{'/' if chance.random() < closed else ''}{name}>x" for name in tags)
        assert reason(html) == exact(html)


@pytest.mark.parametrize("html", ["<optgroups>", "<COLGROUP2>", "<fieldset1></fieldset>", "<blockquote>"])
def test_a_tag_name_prefix_is_another_name(html: str) -> None:
    assert reason(html * 4_100) == "nesting"


@pytest.mark.parametrize("space", [" ", "\t", "\n", "\f", "\r", "  \n"])
def test_attributes_are_counted_at_html_white_space(space: str) -> None:
    assert reason(f"<p {f'ab{space}' * 10_001}>") == "attributes"
    assert reason(f"<p {f'ab{space}' * 9_990}>") == ""


def test_attributes_are_split_at_no_other_white_space() -> None:
    assert reason("<p a='" + "word\u00a0" * 10_001 + "'>") == reason("<p a='" + "字\u3000" * 10_001 + "'>") == ""


@pytest.mark.parametrize(("name", "count", "expected"), [("div", 4_000, ""), ("div", 4_001, "nesting")])
def test_limits_are_inclusive(name: str, count: int, expected: str) -> None:
    assert reason(f"<{name}>" * count) == expected
    assert reason("<select>" + "<option>" * 10_000) == ""


def attributes(count: int) -> str:
    return " ".join(f"a{number}" for number in range(count))


@pytest.mark.parametrize(
    "html",
    [
        f"<p><a {attributes(3000)}>" + "<p>x" * 5000,
        f"<p><a {attributes(3000)}>" + "<p>x" * 1900,
        f"<p><b {attributes(3000)}>" + "<p>x" * 1900,
        f"<p><nobr\t{attributes(3000)}>" + "<p>x" * 1900,
        "<p>" + "".join(f"<B c={number} {attributes(40)}>" for number in range(200)) + "<p>x" * 1000,
        "".join(f"<font {attributes(60)} c={number}>" for number in range(100)) + "<div>x</div>" * 1000,
        "<p><strong/a/b/c/d/e/f/g/h=1 i=2 j=3 k=4>" * 300 + "<p>x" * 3000,
    ],
    ids=range(7),
)
def test_attributes_of_open_elements_count_too(html: str) -> None:
    assert len(html) < 60_000
    assert reason(html) == "formatting"


@pytest.mark.parametrize(
    "html",
    [
        "<p><a href='x' class='a b c d e f' title='t' rel=nofollow data-a=1 data-b=2>text</a>" * 3000,
        f"<p><a href=x {attributes(300)}>text</a>" + "<p>x</p>" * 3000,
        "<p>" + "<code class='xref py py-func docutils literal notranslate'><span>x</span></code> " * 4000,
        "<font face=Arial size=2 color=red>" * 100 + "<p>x" * 1500,
        "<p><b>" * 900 + "x",
        "<p><a href='x'>" + "long text " * 5000 + "</a>" + "<p>x</p>" * 300,
    ],
    ids=range(6),
)
def test_pages_with_many_formatting_elements_pass(html: str) -> None:
    assert reason(html) == ""

"""Contract of tasks.extract.bombs: cheap bounds let honest pages pass, and refuse what going tag by tag refuses."""

import random

import pytest

from tasks.extract.bombs import _refuse_tags, refuse_bombs
from tasks.extract.row import Rejected


def reason(html: str) -> str:
    """The reason for which a page is refused, or ""."""
    try:
        refuse_bombs(html.encode())
    except Rejected as refused:
        return refused.reason
    return ""


def exact(html: str) -> str:
    """The same without the bounds."""
    try:
        _refuse_tags(html.encode())
    except Rejected as refused:
        return refused.reason
    return ""


def test_a_long_index_of_closed_elements_is_no_bomb() -> None:
    entry = '<li><a href="x.html"><code>name</code> <em>in</em> <span>module</span></a></li>'
    assert reason(f"<ul>{entry * 12_000}</ul>") == ""


@pytest.mark.parametrize("name", ["div", "DIV", "span", "x-y"])
def test_elements_left_open_among_closed_ones_are_found(name: str) -> None:
    assert reason(f"<p><b>a</b></p><{name}>" * 4_100) == "nesting"


def test_an_end_tag_of_another_name_closes_nothing() -> None:
    assert reason("<div></span>" * 4_100) == "nesting"


def test_formatting_elements_left_open_before_many_paragraphs_are_found() -> None:
    assert reason("<B>" * 150 + "<p>a</p>" * 8_000) == "formatting"


def test_options_in_any_case_are_counted() -> None:
    assert reason("<select>" + "<oPtIon>a" * 10_001) == "options"


def test_names_hidden_by_nothing_but_their_number_are_found() -> None:
    assert reason("<i></i>" * 150_000 + "<div>" * 4_100) == "nesting"


def test_no_page_passes_that_going_tag_by_tag_refuses() -> None:
    chance = random.Random(11)
    names = ["div", "DIV", "span", "b", "Code", "i", "p", "option", "a", "table", "td"]
    for _ in range(40):
        weights = [chance.random() ** 3 for _ in names]
        closed = chance.choice([0.0, 0.2, 0.45, 0.5])
        tags = chance.choices(names, weights, k=chance.choice([2_500, 5_000, 12_000]))
        html = "".join(f"<{'/' if chance.random() < closed else ''}{name}>x" for name in tags)
        assert reason(html) == exact(html)

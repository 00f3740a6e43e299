"""Tables of the pages: sorted and paged by their address."""

import re

from markupsafe import Markup
from sluice_ui.frame import Address, Version, sparkline, table

HEAD = ("name", "#rows", "")
ROWS = [
    [Markup("<a>{}</a>").format(name), rows, "x"] for name, rows in (("b", 10), ("C", 9), ("a", None), ("<d>", 200))
]


def shown(query: dict[str, str], most: int = 50) -> str:
    return str(table(Address("/page", query), "files", HEAD, ROWS, most))


def names(text: str) -> list[str]:
    return re.findall(r"<td><a>(.*?)</a>", text)


def test_rows_keep_their_order_until_a_column_is_chosen() -> None:
    assert names(shown({})) == ["b", "C", "a", "&lt;d&gt;"]
    assert names(shown({"files.sort": "nothing"})) == ["b", "C", "a", "&lt;d&gt;"]
    assert names(shown({"files.sort": ""})) == ["b", "C", "a", "&lt;d&gt;"]
    assert names(shown({"other.sort": "name"})) == ["b", "C", "a", "&lt;d&gt;"]


def test_text_is_sorted_regardless_of_case_and_numbers_by_value() -> None:
    assert names(shown({"files.sort": "name"})) == ["&lt;d&gt;", "a", "b", "C"]


def test_rows_without_a_value_are_last_in_both_orders() -> None:
    assert names(shown({"files.sort": "-rows"})) == ["&lt;d&gt;", "b", "C", "a"]
    assert names(shown({"files.sort": "rows"})) == ["C", "b", "&lt;d&gt;", "a"]


def test_the_number_in_a_link_is_sorted_by_its_value() -> None:
    rows = [[Markup("<a>{}</a>").format(f"{step:,}"), step, "x"] for step in (1200, 9, 30)]
    text = str(table(Address("/page", {"steps.sort": "name"}), "steps", HEAD, rows))
    assert names(text) == ["9", "30", "1,200"]


def test_a_title_links_to_its_order_and_a_second_click_reverses_it() -> None:
    assert 'href="/sluice/page?q=1&amp;files.sort=-rows#files">rows</a>' in shown({"q": "1", "files.page": "2"}, most=2)
    text = shown({"files.sort": "-rows"})
    assert 'aria-sort="descending"><a href="/sluice/page?files.sort=rows#files">rows</a>' in text
    assert "files.sort=name" in text


def test_a_long_table_has_pages() -> None:
    first, second = shown({}, most=3), shown({"files.page": "2"}, most=3)
    assert names(first) == ["b", "C", "a"]
    assert names(second) == ["&lt;d&gt;"]
    assert "page 1 of 2, 4 rows" in first
    assert 'rel="next" href="/sluice/page?files.page=2#files"' in first
    assert 'rel="prev" href="/sluice/page?files.page=1#files"' in second
    assert names(shown({"files.page": "99"}, most=3)) == names(second)
    assert names(shown({"files.page": "x"}, most=3)) == names(first)


def test_a_recipe_without_a_crawl_has_no_tab_for_questions_about_one() -> None:
    titles = [title for title, _, _ in Version("r", "v", crawls=False).tabs]
    assert "Trace" in titles
    assert "Why" not in titles
    assert "Crawl" not in [title for title, _, _ in Version("r", "", crawls=False).tabs]
    assert "Crawl" in [title for title, _, _ in Version("r", "").tabs]
    assert ("Why", "/sluice/why?recipe=r&version=v", True) in Version("r", "v", "why").tabs


def test_a_small_line_states_its_range() -> None:
    assert 'aria-label="from 1 to 3 over 3 versions"' in sparkline([1, 5, 3])
    assert sparkline([1]) == ""
    assert "NaN" not in sparkline([2, 2])

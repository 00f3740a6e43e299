"""Contract of tasks.stages.extract.blocks and lines: what of a page's lines stays, the same on every machine."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from resiliparse.parse.html import HTMLTree

from benchmarks.boosting import grow
from benchmarks.gold_pages import read_pages
from benchmarks.train_blocks import CHOICES, TARGET, Choice, choose, cross_validated, example, weights
from tasks.stages.extract import trees as trees_module
from tasks.stages.extract.blocks import blocks_text, kept
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.html import read_page
from tasks.stages.extract.line_features import COLUMNS, features
from tasks.stages.extract.lines import Line, mark_container, split_lines
from tasks.stages.extract.trees import MAX_DEPTH, SCALE, Trees, parsed, trees

BLOCKS = ExtractConfig(extractor="blocks")
STORY = "".join(
    f"<p>On day {n} the harbour was quiet, the boats lay still, and the wind came up from the south at noon.</p>"
    for n in range(8)
)


@pytest.fixture(scope="module")
def examples(shared_data: Path) -> list:
    return [example(page) for page in read_pages(shared_data / "extraction_html")]


@pytest.fixture(scope="module")
def held() -> dict:
    return json.loads(TARGET.read_text())


def measured_lines(html: str) -> dict[str, list[float]]:
    rows = features([line for line in split_lines(html) if line], "the harbour", 0.5)
    return dict(zip(COLUMNS, rows.tolist(), strict=True))


def naive_odds(held: dict, measured: np.ndarray) -> list[int]:
    found = []
    for line in measured.T:
        odds = held["base"]
        for tree in held["trees"]:
            above = [line[COLUMNS.index(name)] > at for name, at in zip(tree["columns"], tree["limits"], strict=True)]
            odds += tree["leaves"][int("".join(map(str, map(int, above))), 2)]
        found.append(odds)
    return found


def test_the_extractor_that_a_recipe_gets_without_a_word_is_this_one() -> None:
    assert ExtractConfig().extractor == "blocks"
    page = f"<body><article>{STORY}<p><a href=/x>Ten harbours you must see</a></p></article></body>"
    assert read_page(page).text == read_page(page, BLOCKS).text


def test_pages_of_hosts_that_were_not_trained_on_reach_the_bar(examples: list, held: dict) -> None:
    choice = Choice(**held["choice"])
    assert cross_validated(examples, lambda _: choice, 5).f1 >= 0.970


def test_what_is_chosen_for_a_host_is_chosen_without_it(examples: list, held: dict) -> None:
    few, choice, left_out = examples[:24], Choice(**held["choice"]), []

    def chosen(seen: list) -> Choice:
        hosts = {one.host for one in seen}
        left_out.append({one.host for one in few} - hosts)
        return replace(choice, trees=3)

    cross_validated(few, chosen, 4)
    assert all(left_out)
    assert set.union(*left_out) == {one.host for one in few}
    assert sum(map(len, left_out)) == len(set.union(*left_out))


def test_the_choice_is_one_of_those_listed_and_the_same_each_time(
    examples: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [replace(choice, trees=5) for choice in (CHOICES[0], CHOICES[-1])]
    monkeypatch.setattr("benchmarks.train_blocks.CHOICES", some)
    monkeypatch.setattr("benchmarks.train_blocks.TREES", (5,))
    found = choose(examples[:12])
    assert found in some
    assert choose(examples[:12]) == found


def test_the_weights_are_those_that_the_script_makes(examples: list, held: dict) -> None:
    made = weights(examples, Choice(**held["choice"]))
    assert (made["base"], made["threshold"], made["min_kept"]) == (held["base"], held["threshold"], held["min_kept"])
    rows = np.concatenate([one.measured for one in examples], axis=1)
    # Another processor may compute another last digit of a logarithm.
    assert (np.abs(parsed(made).odds(rows) - parsed(held).odds(rows)) < SCALE / 10).mean() > 0.99


def test_odds_are_those_of_one_line_after_the_other(
    examples: list, held: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.concatenate([one.measured for one in examples[:5]], axis=1)
    found = trees().odds(rows)
    assert found.tolist() == naive_odds(held, rows)
    monkeypatch.setattr(trees_module, "_AT_ONCE", 7)
    assert np.array_equal(trees().odds(rows), found)


def test_all_that_is_summed_up_is_whole_and_the_number_of_a_leaf_is_a_byte(held: dict) -> None:
    assert trees().leaves.dtype == np.int64
    assert all(isinstance(leaf, int) for tree in held["trees"] for leaf in tree["leaves"])
    assert trees().columns.shape[0] <= MAX_DEPTH


def test_trees_learn_what_no_single_limit_tells_and_the_same_each_time() -> None:
    rows = np.random.default_rng(0).integers(0, 10, (400, 3)).astype(float)
    labels = ((rows[:, 0] > 4) != (rows[:, 2] > 4)).astype(float)
    forest = grow(rows, labels, 20, 2)
    assert set(forest.columns[0]) == {0, 2}
    again = grow(rows, labels, 20, 2)
    assert np.array_equal(again.leaves, forest.leaves)
    first = grow(rows, labels, 5, 2)
    assert np.array_equal(first.leaves, forest.leaves[:5])


def test_what_is_measured_of_a_line() -> None:
    found = measured_lines(
        "<h1>The Harbour!</h1>\n<p>Boats, (two) and 3 more.</p>\n"
        '<p>Share on <a href="https://www.facebook.com/x">Facebook</a> <a href="/y">y</a></p>'
    )
    assert found["words"] == [2, 5, 4]
    assert found["tag"] == [5, 1, 1]
    assert found["in_title"][0] == 0.5
    assert found["ends_sentence"] == [1, 1, 0]
    assert found["commas"][1] == 1 / 5
    assert found["capitals"] == [1, 1 / 5, 1 / 2]
    assert (found["links"][2], found["social"][2], found["same_site"][2]) == (2, 1, 1)
    assert found["link_share"][2] == pytest.approx(9 / 19)
    assert found["container_share"] == [0.5] * 3


def test_a_page_of_little_prose_is_kept_whole_and_so_is_one_of_which_little_would_stay_or_much_is_in_doubt() -> None:
    sentence = "and so the boats lay still until the wind came up from the south and the north " * 2
    lines = [Line(f"{number} {sentence}{'.,'[number > 2]}", "", (0, 0, 0), fixed=False) for number in range(10)]
    rows = features(lines, "", 1.0)  # none of them stands in the best element
    index = np.array([[COLUMNS.index("index")]])

    def by(limit: float, low: int, high: int) -> Trees:
        return Trees(index, np.array([[limit]]), np.array([[low, high]]), 0, 0, 0.7)

    assert kept(lines, rows, by(2, -2 * SCALE, 2 * SCALE)).tolist() == [False] * 3 + [True] * 7
    assert kept(lines[2:], rows[:, 2:], by(2, -2 * SCALE, 2 * SCALE)).all()  # one line in eight is prose
    assert kept(lines, rows, by(3, -2 * SCALE, 2 * SCALE)).all()  # little would stay
    assert kept(lines, rows, by(2, -2 * SCALE, SCALE // 2)).all()  # in doubt about seven lines


def test_notices_and_a_headline_that_is_the_title_go_and_the_story_stays() -> None:
    page = (
        "<html><head><title>The harbour</title></head><body><div><h1>The harbour</h1>"
        f"<p><a href=/tags>Boats</a> <a href=/wind>Wind</a></p><div>{STORY}</div>"
        "<p>Share</p><p><a href='https://www.facebook.com/x'>Facebook</a></p>"
        "<p><a href=/other>Ten harbours you must see</a></p></div></body></html>"
    )
    text = read_page(page, BLOCKS).text
    assert text.count("the harbour was quiet") == 8
    assert not any(gone in text for gone in ("Boats", "Facebook", "Ten harbours", "\nShare"))


def test_preformatted_text_is_never_judged_and_keeps_its_layout() -> None:
    code = "def f():\n    return 1 &lt; 2 &amp;&amp; x\n\n\n\n    # end"
    text = read_page(f"<html><body><article>{STORY}<pre>{code}</pre>{STORY}</article></body></html>", BLOCKS).text
    assert "def f():\n    return 1 < 2 && x\n\n    # end" in text


@pytest.mark.parametrize("sign", ["<dl><dt>wind(a, b)</dt><dd>Blows.</dd></dl>", "<p>See <code>wind()</code> too.</p>"])
def test_documentation_without_preformatted_text_is_never_judged_either(sign: str) -> None:
    short = "<p>Share</p><p><a href=/other>Ten harbours you must see</a></p>"
    with_sign = read_page(f"<html><body><article>{STORY}{short}{sign}</article></body></html>", BLOCKS).text
    assert "Ten harbours" in with_sign
    assert "Ten harbours" not in read_page(f"<html><body><article>{STORY}{short}</article></body></html>", BLOCKS).text


def test_markup_that_a_page_shows_as_text_is_text() -> None:
    shown = STORY.replace("the wind", "the tag &lt;b&gt; &amp;lt; wind")
    assert "the tag <b> &lt; wind" in read_page(f"<body><article>{shown}</article></body>", BLOCKS).text


def test_a_page_unlike_all_that_were_trained_on_is_kept_whole() -> None:
    links = "".join(f"<p><a href=/{n}>Entry number {n}</a></p>" for n in range(60))
    text = read_page(f"<html><body><article>{links}</article></body></html>", BLOCKS).text
    assert text.count("Entry number") == 60


def test_a_page_of_very_many_lines_is_not_judged() -> None:
    text = read_page("<body><article>" + "<p>Share" * 20_001 + "</article></body>", BLOCKS).text
    assert text.count("Share") == 20_001
    assert "lines" in read_page("<body><pre>" + "\n" * 50_000 + "lines</pre></body>", BLOCKS).text


@pytest.mark.parametrize(
    "html", ["", "<p>", "<pre>x</pre>", "<p>one</p>", "\x01<p>\x02" + STORY, "<p>" + "\u200b" * 99]
)
def test_odd_pages_pass(html: str) -> None:
    text = read_page(html, BLOCKS).text
    assert not set(text) & set("\x01\x02\x03\x04\x05\x06")


def test_lines_know_whether_they_stand_in_the_element_of_the_story() -> None:
    tree = HTMLTree.parse(f"<body><section><p>before</p><div>{STORY}</div><p>behind</p></section></body>")
    assert mark_container(tree) == 1.0
    text = "\x01inner\n\nlast\x02\nouter"
    assert [line and line.inside[0] for line in split_lines(text)] == [1, None, 1, 2]


def test_measures_are_finite_for_any_lines() -> None:
    lines = [line for line in split_lines("<p>a</p>\n\u0661\u0662\n|||\n<h1>\u3042</h1>\n" + "x" * 10_000) if line]
    rows = features(lines, "", 0.0)
    assert rows.shape == (len(COLUMNS), 5)
    assert np.isfinite(rows).all()
    for odd in ("", " ", "\ud800", "\U0001f600" * 3_000, "\u3000\u3000", "." * 5_000):
        assert np.isfinite(features([Line(odd, odd, (0, 1, 2), fixed=False)], "", 1.0)).all()


def test_the_tree_of_an_empty_page_has_no_story() -> None:
    assert blocks_text(HTMLTree.parse(""), "") == ""

"""Labels of blocks: by the whole text, by segments, and of a unit as a whole."""

import numpy as np
from resiliparse.parse.html import HTMLTree

from benchmarks.block_labels import labels_by_segments, labels_by_text, units_of
from benchmarks.page_kinds import KindPage, words_of
from benchmarks.train_blocks import WEIGHTS, examples
from tasks.stages.extract.page_blocks import read_blocks

ITEMS = "<ul><li><div>2</div><div>cups</div><div>of flour</div></li><li><div>2</div><div>likes</div></li></ul>"


def test_a_short_item_is_one_unit_and_a_post_in_a_list_is_not() -> None:
    page = read_blocks(HTMLTree.parse(f"<p>a</p>{ITEMS}<ul><li><p>{'word ' * 80}</p><p>signature</p></li></ul>"))
    assert page is not None
    units = units_of(page)
    assert [[*units].index(unit) for unit in units] == [0, 1, 1, 1, 4, 4, 6, 7]


def test_the_blocks_of_a_unit_have_the_label_of_most_of_its_words() -> None:
    words = [["2"], ["cups"], ["of", "flour"], ["sifted"], ["2"], ["likes", "today"]]
    gold = ["Take", "2", "cups", "of", "flour", "for", "2"]
    labels, _ = labels_by_text(words, gold, np.array([0, 0, 0, 0, 1, 1]))
    assert labels.tolist() == [1, 1, 1, 1, 0, 0]


def test_characters_label_a_page_whose_script_has_no_spaces() -> None:
    words = [words_of(text) for text in ("静かな港に船が並ぶ。", "関連記事はこちら")]
    labels, weights = labels_by_text(words, words_of("静かな港に船が並ぶ。風が吹く。"), np.arange(2))
    assert labels.tolist() == [1, 0]
    assert (weights > 0.4).all()  # as long texts have, not one word


def test_a_segment_may_go_over_several_blocks_and_beside_those_without_words() -> None:
    words = [["Mix"], [], ["two", "eggs"], ["Share"]]
    labels, weights = labels_by_segments(words, ["Mix: two eggs!"], ["Share"], [""], np.arange(4))
    assert labels.tolist() == [1, 0, 1, 0]
    assert weights[[0, 2, 3]].tolist() == [1, 1, 1]
    assert weights[1] < 0.1


def test_recipes_are_labelled_by_their_steps_and_ingredients_and_weigh_more() -> None:
    html = f"<body><h1>Bread</h1><p>When I was a child, bread was different.</p>{ITEMS}<p>Bake it.</p></body>"
    page = KindPage("recipe", "", html, "a.example", "", {"steps": ("Bake it.",), "ingredients": ("2 cups of flour",)})
    (one,) = examples([page], lambda _: [""])
    assert one.labels.tolist() == [0, 0, 1, 1, 1, 0, 0, 1]
    assert one.weights[[2, 3, 4, 7]].tolist() == [WEIGHTS["recipe"]] * 4
    assert one.weights[1] < 1

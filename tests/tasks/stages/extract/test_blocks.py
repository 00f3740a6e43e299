"""The `blocks` extractor: the kept blocks of a page, equal on every machine."""

import json
from pathlib import Path

import numpy as np
import pytest
from resiliparse.parse.html import HTMLTree

from benchmarks.extraction import (
    GoldPage,
    SegmentPage,
    found_segments,
    interval,
    read_segments,
    segment_score,
    shingle_score,
)
from benchmarks.train_blocks import TARGET, Example, examples, folds, weights_of
from tasks.formats.documents.structure import plain
from tasks.stages.extract import blocks as trees_module
from tasks.stages.extract import page_blocks
from tasks.stages.extract.block_features import COLUMNS, CONTEXT, context, features
from tasks.stages.extract.blocks import (
    MAX_DEPTH,
    SCALE,
    candidates,
    default_classifier,
    main_blocks,
    parse_trees,
)
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.html import read_page
from tasks.stages.extract.page_blocks import Blocks, read_blocks
from tasks.stages.extract.page_structure import structure

BLOCKS = ExtractConfig(extractor="blocks")
SENTENCE = "the harbour was quiet, the boats lay still, and the wind came up from the south at noon."
STORY = "".join(f"<p>On day {n} {SENTENCE}</p>" for n in range(8))


def blocks_of(html: str) -> Blocks:
    found = read_blocks(HTMLTree.parse(html))
    assert found is not None
    return found


def texts_of(html: str) -> list[str]:
    page = blocks_of(html)
    return [page.text(index) for index in range(len(page))]


def measured_blocks(html: str) -> dict[str, list[float]]:
    return dict(zip(COLUMNS, features(blocks_of(html), "the harbour").tolist(), strict=True))


def test_blocks_is_the_default_extractor() -> None:
    assert ExtractConfig().extractor == "blocks"
    page = f"<body><article>{STORY}<p><a href=/x>Ten harbours you must see</a></p></article></body>"
    assert read_page(page).text == read_page(page, BLOCKS).text


def test_main_text_of_real_pages_is_extracted_without_boilerplate(shared_data: Path) -> None:
    pages = read_segments(shared_data / "extraction_segments")[::3]
    scored = segment_score([found_segments(page, read_page(page.html, BLOCKS).text) for page in pages])
    assert scored.f1 >= 0.95  # the trees were trained on these pages; 0.943 on unseen hosts


def test_text_without_an_element_is_a_block() -> None:
    page = (
        "<div>one <b>bold</b> word<p>two &amp; <i>a half</i></p>three<br>still<br> <br>four<hr>five"
        "<ul><li>six<li>seven</ul></div>"
    )
    assert texts_of(page) == ["one bold word", "two & a half", "three\nstill", "four", "five", "six", "seven"]


def test_cells_lines_and_paragraphs_are_separated_with_the_wider_gap_around_drops() -> None:
    page = blocks_of("<p>a</p><table><tr><td>b<td>c<tr><td>d</table><ul><li>e<li>f</ul><p>g</p>")
    everything = np.ones(len(page), np.bool_)
    assert plain(structure(page, everything, [])) == "a\n\nb\tc\nd\n\ne\nf\n\ng"
    everything[[2, 3]] = False
    assert plain(structure(page, everything, [])) == "a\n\nb\n\ne\nf\n\ng"


def test_invisible_elements_menus_footers_and_controls_are_not_blocks() -> None:
    hidden = (
        "<script>if (a<b) '<p>x</p>'</script><style>p>a{}</style><!-- <p>x</p> --><noscript><p>x</p></noscript>"
        "<nav><div>x</div></nav><footer><p>x</p></footer><button>x</button><select><option>x</select><svg><text>x</text></svg>"
        "<textarea><p>x</textarea><iframe><p>x</p></iframe>"
    )
    assert texts_of(f"<body><p>one</p>{hidden}<p>two</p>{hidden}</body>") == ["one", "two"]
    assert texts_of("<p>one <!-- - -- > --> two<svg><text>x</text></svg>!</p>") == ["one two!"]
    assert texts_of("<p>one <b>two</b> <i>three</i><button>x</button></p>") == ["one two three"]


def test_attributes_can_contain_tags() -> None:
    page = """<p title='a > b "q" <p>'>one <a href="/x?a<b" title="> <i>">two</a></p><p data-x='"'>three</p>"""
    assert texts_of(page) == ["one two", "three"]


def test_blocks_have_their_elements() -> None:
    page = blocks_of(f"<body><article class='story'><h1>T</h1><div id=box>{STORY}</div></article><p>behind</p></body>")
    tags = [tag.split()[0].strip("<>") for tag in page.tags]
    assert tags == ["body", "article", "h1", "div", *["p"] * 8, "p"]
    assert page.parent.tolist() == [-1, 0, 1, 1, *[3] * 8, 0]
    assert (page.first[1], page.last[1], page.first[3], page.last[3]) == (0, 9, 1, 9)
    assert page.element.tolist() == [2, *range(4, 12), 12]


def test_features_of_a_block() -> None:
    found = measured_blocks(
        "<h1>The Harbour!</h1><p>Boats, (two) and 3 more.</p>"
        '<div class="share-box">Share on <a href="https://www.facebook.com/x">Facebook</a> or <a href="/y">y</a></div>'
    )
    assert found["words"] == [2, 5, 5]
    assert found["tag_h1"][0] < 1
    assert found["tag_h1"][1] == 2
    assert found["named_share"][2] < 1
    assert found["named_share"][1] == 2
    assert found["in_title"][0] == 0.5
    assert found["ends_sentence"] == [1, 1, 0]
    assert found["commas"][1] == pytest.approx(1 / 5)
    assert found["capitals"] == pytest.approx([1, 1 / 5, 2 / 5])
    assert found["links"] == [0, 0, 2]
    assert found["says_furniture"] == pytest.approx([0, 1 / 4, 2 / 5])
    assert found["link_share"][2] == pytest.approx(9 / 18)
    assert found["since_h1"] == [0, 1, 2]


def test_a_popup_that_only_scripts_name_is_one() -> None:
    by_class, by_script, other = (
        measured_blocks(f"<div {name}><p>Register to read on.</p></div>")["named_popup"]
        for name in ('class="popup-container"', 'data-login-popup-container=""', 'data-popup-delay="9"')
    )
    assert by_script == by_class
    assert by_script != other


def test_long_tags_are_read_and_not_cached() -> None:
    before = page_blocks._short_tag.cache_info().currsize
    page = blocks_of(f"<div class='comments {'x' * 10_000}'><p>one</p></div>")
    assert features(page, "")[COLUMNS.index("named_comment"), 0] == 1
    assert page_blocks._short_tag.cache_info().currsize <= before + 2  # of body and p


def test_predictions_for_neighbors_are_features() -> None:
    page = blocks_of(f"<body><div>{STORY}</div><aside>one</aside></body>")
    odds = np.array([*[3.0] * 4, -1.0, *[3.0] * 3, -4.0])
    found = dict(zip(CONTEXT, context(page, features(page, ""), odds).tolist(), strict=True))
    assert (found["odds_at_-1"][4], found["odds_at_1"][4], found["odds_at_1"][8]) == (3, 3, -7)
    assert (found["kept_with_before"][4], found["kept_with_behind"][4]) == (1, 1)
    assert (found["kept_with_before"][8], found["until_kept"][8]) == (0, 50)
    assert found["odds_around_1"][0] == pytest.approx((7 * 3 - 1) / 8, abs=0.1)


@pytest.mark.parametrize(
    "html", ["\u0661\u0662", "|||", "x" * 10_000, "\u200b", "\U0001f600" * 3_000, "&nbsp;", "\u3042"]
)
def test_features_are_finite_for_any_text(html: str) -> None:
    page = read_blocks(HTMLTree.parse(f"<p>{html}</p><h1>{html}</h1>{html}"))
    if page is not None:
        measured = features(page, "")
        assert measured.shape == (len(COLUMNS), len(page))
        assert np.isfinite(measured).all()
        assert np.isfinite(context(page, measured, np.zeros(len(page)))).all()


def test_batched_odds_equal_those_of_single_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    held = json.loads(TARGET.read_text())["first"]
    rows = features(blocks_of(f"<body><h1>T</h1><div>{STORY}</div><p><a href=/x>Share</a></p></body>"), "t")
    expected = []
    for block in rows.T:
        odds = held["base"]
        for tree in held["trees"]:
            limits = np.array(tree["limits"], np.float32)
            above = [block[COLUMNS.index(name)] > at for name, at in zip(tree["columns"], limits, strict=True)]
            odds += tree["leaves"][int("".join(map(str, map(int, above))), 2)]
        expected.append(odds / SCALE)
    assert default_classifier().first.odds(rows).tolist() == expected
    monkeypatch.setattr(trees_module, "_AT_ONCE", 3)
    assert default_classifier().first.odds(rows).tolist() == expected


def test_leaf_values_are_integers_and_leaf_indices_are_bytes() -> None:
    held = json.loads(TARGET.read_text())
    assert all(isinstance(leaf, int) for of in held.values() for tree in of["trees"] for leaf in tree["leaves"])
    assert max(default_classifier().first.columns.shape[0], default_classifier().second.columns.shape[0]) <= MAX_DEPTH


def test_catboost_trees_give_the_same_odds() -> None:
    split = {"float_feature_index": 0, "border": 2.0}, {"float_feature_index": 1, "border": 0.5}
    model = {
        "scale_and_bias": [1, [0.5]],
        "oblivious_trees": [
            {"splits": list(split), "leaf_values": [1.0, 2.0, 3.0, 4.0]},  # the first split is the lowest bit
            {"splits": [split[1]], "leaf_values": [0.0, 10.0]},
        ],
    }
    names = ("words", "length")
    found = parse_trees(weights_of(model, names), names).odds(np.array([[0, 3, 0, 3], [0, 0, 1, 1]], np.float32))
    assert found.tolist() == [1.5, 2.5, 13.5, 14.5]


def example_of(host: str) -> Example:
    page = GoldPage(host, f"http://{host}/", STORY.encode(), STORY)
    return examples([page], lambda _: [])[0]


def test_folds_are_disjoint_by_host_and_hold_out_each_host_once() -> None:
    of = [example_of(f"{n % 7}.example") for n in range(20)]
    held = []
    for seen, held_out in folds(of, 3):
        assert not {one.page.host for one in seen} & {one.page.host for one in held_out}
        held += held_out
    assert sorted(map(id, held)) == sorted(map(id, of))


def test_blocks_have_the_label_of_their_segment_or_of_most_extractors() -> None:
    html = f"<body><div>{STORY}</div><p>Posted in boats, tagged wind</p><p>Neither of them says so.</p></body>"
    page = SegmentPage("http://a.example/", html.encode(), ("On day 3",), ("tagged wind",), {})
    (one,) = examples([page], lambda _: [STORY.replace("<p>", "").replace("</p>", "\n"), ""])
    assert one.labels.tolist() == [*[0.5] * 3, 1.0, *[0.5] * 4, 0.0, 0.0]
    assert one.weights[3] == one.weights[8] == 1.0
    assert 0 < one.weights[9] < 0.5


def test_blocks_of_a_page_with_its_whole_text_are_labelled_by_it() -> None:
    gold = " ".join(f"On day {n} {SENTENCE}" for n in range(8))
    page = GoldPage("a", "http://a.example/", f"<div>{STORY}<p>Read more of the boats</p></div>".encode(), gold)
    (one,) = examples([page], lambda _: [])
    assert one.labels.tolist() == [*[1.0] * 8, 0.0]


def test_the_bootstrap_resamples_hosts_with_all_their_pages() -> None:
    scored = [(1.0, 1.0)] * 5 + [(0.0, 0.0)] * 5
    hosts = ["a"] * 5 + ["b"] * 5
    low, high = interval(scored, hosts, shingle_score)
    assert (low, high) == (0.0, 1.0)
    apart = interval(scored, [str(n) for n in range(10)], shingle_score)
    assert 0.0 < apart[0] < apart[1] < 1.0


def test_notices_and_a_repeated_headline_are_dropped_and_the_story_is_kept() -> None:
    page = (
        "<html><head><title>The harbour</title></head><body><div><h1>The harbour</h1>"
        f"<p><a href=/tags>Boats</a> <a href=/wind>Wind</a></p><div>{STORY}</div>"
        "<p class=share>Share:</p><p><a href='https://www.facebook.com/x'>Facebook</a></p>"
        "<p><a href=/other>Ten harbours you must see</a></p></div></body></html>"
    )
    text = read_page(page, BLOCKS).text
    assert text.count("the harbour was quiet") == 8
    assert not any(gone in text for gone in ("Facebook", "Ten harbours", "\nShare"))


def test_a_short_question_between_paragraphs_is_kept() -> None:
    asked = STORY.replace("<p>On day 4", "<p>And on the fourth day?</p><p>On day 4")
    page = f"<body><h1>The harbour</h1><div class=entry>{asked}</div><div class=sidebar><p>And more?</p></div></body>"
    text = read_page(page, BLOCKS).text
    assert "And on the fourth day?" in text
    assert "And more?" not in text


def test_short_links_are_not_classified() -> None:
    page = blocks_of("<p><a href=/x>Ten harbours to see</a></p><p><a href=/x>Ten</a> harbours</p>")
    assert candidates(features(page, "")).tolist() == [False, True]


def test_terms_and_short_notes_of_a_manual_are_kept_and_teasers_are_not() -> None:
    short = "<p>Share</p><p><a href=/other>Ten harbours you must see</a></p>"
    notes = "".join(f"<dt>wind{n}(a, b)</dt><dd>Blows from {n} to b.</dd>" for n in range(16))
    text = read_page(f"<body><article>{STORY}<dl>{notes}</dl></article>{short}</body>", BLOCKS).text
    assert "wind7(a, b)\nBlows from 7 to b." in text
    assert "Ten harbours" not in text


def test_reader_comments_are_kept_if_the_recipe_says_so() -> None:
    said = "<div id=comments><h3>Comments</h3><p>I was there that day, and it blew from the north.</p></div>"
    page = f"<body><article><h1>The harbour</h1>{STORY}</article>{said}</body>"
    assert "I was there" not in read_page(page, BLOCKS).text
    with_comments = ExtractConfig(extractor="blocks", comments=True)
    assert "I was there" in read_page(page, with_comments).text


def test_a_page_without_paragraphs_is_extracted_by_resiliparse() -> None:
    page = "<body><h1>Harbours</h1><ul>" + "<li>Quiet harbour</li>" * 12 + "</ul></body>"
    assert main_blocks(HTMLTree.parse(page), "") == []
    assert read_page(page, BLOCKS).text.count("Quiet harbour") == 12


def test_preformatted_text_keeps_its_layout() -> None:
    code = "def f():\n    return 1 &lt; 2 &amp;&amp; x\n\n\n\n    # end"
    page = f"<html><body><article>{STORY}<pre>{code}</pre>{STORY}</article></body></html>"
    assert "def f():\n    return 1 < 2 && x" in read_page(page, BLOCKS).text


def test_escaped_markup_is_text() -> None:
    shown = STORY.replace("the wind", "the tag &lt;b&gt; &amp;lt; wind")
    assert "the tag <b> &lt; wind" in read_page(f"<body><article>{shown}</article></body>", BLOCKS).text


def test_a_page_unlike_the_training_pages_is_kept_whole() -> None:
    links = "".join(f"<p><a href=/{n}>Entry number {n}</a></p>" for n in range(60))
    text = read_page(f"<html><body><article>{links}</article></body></html>", BLOCKS).text
    assert text.count("Entry number") == 60


def test_a_page_with_very_many_blocks_is_not_classified() -> None:
    text = read_page("<body><article>" + "<p>Share" * 20_001 + "</article></body>", BLOCKS).text
    assert text.count("Share") == 20_001
    assert "lines" in read_page("<body><pre>" + "\n" * 50_000 + "lines</pre></body>", BLOCKS).text


ODD = [
    *("", "<p>", "<pre>x</pre>", "<p>one</p>", "\x01<p>\x02" + STORY, "<p>" + "\u200b" * 99, "<a b\"c>d<p e'f>g"),
    *("</p></div>x", "<plaintext><p>x", "<table><p>a<td>b</table>" * 3, "<br><br><br>", "<p>" * 500 + "x", "<nav>x"),
    *("<svg><p>x<p></svg>y", "<nav>x</nav>", "<ul><nav>x</ul>y</nav>z", "<p title='\"'>x", '<p title="<">x'),
]


@pytest.mark.parametrize("html", ODD)
def test_odd_pages_pass(html: str) -> None:
    assert isinstance(read_page(html, BLOCKS).text, str)


def test_an_empty_page_has_no_main_text() -> None:
    assert main_blocks(HTMLTree.parse(""), "") == []

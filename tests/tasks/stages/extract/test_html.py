"""Contract of tasks.stages.extract.html: the main text and the metadata of a page."""

import time
from pathlib import Path

import pytest

from benchmarks.extraction import read_pages, score
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.html import read_page
from tasks.stages.extract.row import Rejected
from tests.soak import soak_but

PARAGRAPH = "<p>The harbour was quiet that morning, and the boats lay still until the wind came up from the south.</p>"


@pytest.mark.parametrize(
    ("extractor", "floor"),
    soak_but({0, 1, 2}, [("resiliparse", 0.948), ("blocks", 0.975), ("visible", 0.67), ("trafilatura", 0.970)]),
)
def test_extraction_of_gold_pages_reaches_the_required_f1(shared_data: Path, extractor: str, floor: float) -> None:
    if extractor == "trafilatura":
        pytest.importorskip("trafilatura", reason="the extra `careful` is not installed")
    pages = read_pages(shared_data / "extraction_html")
    config = ExtractConfig.model_validate({"extractor": extractor})
    assert len(pages) == 91
    assert score(pages, [read_page(page.html, config).text for page in pages]).f1 >= floor


def test_trafilatura_is_stricter_and_pages_without_its_text_are_read_by_resiliparse() -> None:
    pytest.importorskip("trafilatura", reason="the extra `careful` is not installed")
    careful = ExtractConfig(extractor="trafilatura")
    story = "".join(
        f"<p>On day {n} the harbour was quiet, and the boats lay still until the wind came.</p>" for n in range(9)
    )
    page = f"<html><body><p>{'We use cookies. ' * 9}</p><article>{story}</article></body></html>"
    assert "cookies" in read_page(page, ExtractConfig(extractor="resiliparse")).text
    assert "cookies" not in read_page(page, careful).text
    assert read_page(page, careful).text.count("the harbour was quiet") == 9
    listed = "<html><body><ul>" + "".join(f"<li>Item {n}" for n in range(40)) + "</ul></body></html>"
    assert "Item 39" in read_page(listed, careful).text


def test_navigation_and_comments_are_removed_and_layout_is_kept() -> None:
    page = read_page(
        "<html lang='en-GB'><head><title> The  harbour\n </title></head><body>"
        "<nav><a href=/>Home</a> <a href=/x>News</a></nav>"
        f"<article>{PARAGRAPH * 8}<pre>def f():\n    return 1</pre></article>"
        "<div class=comments id=comments><p>First! This is the best page ever.</p></div>"
        "<figure><img src=x alt=Drawing><figcaption>A drawing</figcaption></figure>"
        "<div class=related-posts><p>Read this one too</p></div><footer>Imprint</footer></body></html>"
    )
    assert page.metadata.title == "The harbour"
    assert page.metadata.language == "en-GB"
    assert "def f():\n    return 1" in page.text
    assert page.text.count("The harbour was quiet") == 8
    assert "Home" not in page.text
    assert "First!" not in page.text
    assert not any(boilerplate in page.text for boilerplate in ("Imprint", "drawing", "Drawing", "Read this one too"))
    assert not page.whole


@pytest.mark.parametrize("extractor", ["resiliparse", "blocks"])
def test_posts_that_a_page_embeds_are_part_of_its_text(extractor: str) -> None:
    post = "<div><blockquote class='twitter-tweet'><p>The boats are back in the harbour.</p></blockquote></div>"
    config = ExtractConfig.model_validate({"extractor": extractor})
    text = read_page(f"<body><article>{PARAGRAPH * 3}{post}{PARAGRAPH * 3}</article></body>", config).text
    assert "The boats are back" in text


def test_table_layout_without_marks_keeps_its_content() -> None:
    rows = "".join(f"<tr><td>textwrap.f{i}</td><td>{PARAGRAPH}</td></tr>" for i in range(5))
    page = read_page(f"<html><body><table class=section>{rows}</table></body></html>")
    assert page.text.count("The harbour was quiet") == 5


def test_a_page_without_main_text_gives_all_visible_text() -> None:
    menu = "<html><body><nav>" + PARAGRAPH * 10 + "</nav><p>ok</p></body></html>"
    page = read_page(menu)
    assert page.whole
    assert page.text.count("The harbour was quiet") == 10
    assert not read_page(menu, ExtractConfig(min_main_share=0.0)).whole


def test_all_visible_text_can_be_requested() -> None:
    html = f"<html><body><nav>Home News</nav><article>{PARAGRAPH}</article><script>x</script><footer>Imprint</footer>"
    text = read_page(html, ExtractConfig(extractor="visible")).text
    assert "Home News" in text
    assert "Imprint" in text
    assert "x" not in text.split()


@pytest.mark.parametrize(
    ("html", "reason"),
    [
        ("<div>" * 100_000 + "deep", "nesting"),
        ("<ul><li>" * 100_000, "nesting"),
        ("<div></x>" * 100_000, "nesting"),
        ("</div>" * 100_000 + "<div>" * 100_000, "nesting"),
        ("".join(f"<p><b a={i}></p>" for i in range(2000)) + "<p>x</p>" * 40_000, "formatting"),
        ("".join(f"<b a={i}>" for i in range(2000)) + "<p>x" * 40_000 + "</b>" * 2000, "formatting"),
        ("<select>" + "<option>x" * 50_000, "options"),
        ("<p " + " ".join(f"a{i}=1" for i in range(100_000)) + ">wide</p>", "attributes"),
        (("<a" * 9_990 + ">") * 300 + "<p " + "a " * 100_000 + ">wide</p>", "nesting"),
    ],
)
def test_pages_made_to_stall_the_parser_are_refused_at_once(html: str, reason: str) -> None:
    begun = time.process_time()
    with pytest.raises(Rejected) as refused:
        read_page(html)
    assert refused.value.reason == reason
    assert time.process_time() - begun < 2


@pytest.mark.parametrize(
    "html",
    [
        "<br>" * 50_000,
        "<p>x" * 50_000,
        "<b>x</b> " * 50_000,
        "<script>" + "var a = 1 ; " * 10_000 + "</script>ok",
        "",
        "<",
        "</div>" * 3000,
        '<img src="data:' + "A" * 200_000 + '">',
    ],
    ids=["void", "unclosed", "closed", "script", "empty", "stump", "ends", "data-uri"],
)
def test_odd_but_harmless_pages_pass(html: str) -> None:
    read_page(html)


@pytest.mark.parametrize("html", ["<di\0v>" * 5_000, "\0<\0d\0i\0v\0>" * 5_000])
def test_nul_characters_hide_no_tag(html: str) -> None:
    for source in (None, html.encode()):
        with pytest.raises(Rejected, match="nesting"):
            read_page(html, source=source)


def test_passing_the_bytes_of_a_page_does_not_change_the_result() -> None:
    html = f"<html><title>Gr\0öße</title><body>\0{PARAGRAPH * 3}<p>\U0001f600 \ufffd \u00e9"
    assert read_page(html, source=html.encode()) == read_page(html)

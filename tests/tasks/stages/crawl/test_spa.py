import gzip
import time

import pytest

from tasks.formats.web.robots_tag import Directives
from tasks.stages.crawl.page.links import read_page
from tasks.stages.crawl.page.reading import ENOUGH_TEXT, needs_browser

APP = '<script src="/static/main.4f3c.js"></script>'


@pytest.mark.parametrize(
    "body",
    [
        '<div id="root"></div>',
        "<div id=app></div>",
        '<div class="dark" id="__next">\n  <!-- here --></div>',
        '<main id="__nuxt"><div class="spinner"></div></main>',
        "<div id='root'>Loading ...</div>",
        "<app-root></app-root>",
        '<body ng-app="shop"><div ng-view></div>',
        "<noscript>You need to enable JavaScript to run this app.</noscript><div></div>",
        "<noscript>Veuillez activer <b>JavaScript</b>.</noscript><p>x",
    ],
)
def test_a_page_that_is_an_empty_frame_for_its_scripts_needs_a_browser(body):
    assert needs_browser(f"<!doctype html><title>Shop</title>{body}{APP}".encode(), 20)


def test_a_page_that_is_mostly_script_needs_a_browser():
    assert needs_browser(b"<title>x</title><script>" + b"document.write(1);" * 50 + b"</script>", 1)


@pytest.mark.parametrize(
    ("body", "chars"),
    [
        ("<p>A short page of a plain site.</p>", 30),
        ("<div id=root></div>", 0),  # without a script nothing would ever fill it
        (f"<h1>Contact</h1><p>Write to us.</p>{APP}", 25),
        (f'<div id="root"><p>{"Served whole. " * 40}</p></div>{APP}', 560),
        (f"<noscript>Enable JavaScript for comments</noscript><p>{'A short article. ' * 40}</p>{APP}", 700),
        (f'<div id="root"></div>{APP}', ENOUGH_TEXT),
    ],
)
def test_a_page_whose_text_is_there_does_not(body, chars):
    assert not needs_browser(f"<!doctype html><title>Shop</title>{body}".encode(), chars)


@pytest.mark.parametrize(
    "piece",
    [b"<div ", b"<div id=", b"<noscript>", b"<script>", b"<a-b>", b"<!--", b'<div id="root">', b"<div id=root ", b" "],
)
def test_a_hostile_page_does_not_hold_up_the_crawl(piece):
    begin = time.process_time()
    needs_browser(b"<script>" + piece * (1 << 18), 0)
    assert time.process_time() - begin < 5.0


def test_real_articles_need_no_browser(shared_data):
    files = sorted((shared_data / "extraction_html" / "html").glob("*.html.gz"))
    assert len(files) > 50
    for file in files:
        html = gzip.decompress(file.read_bytes())
        page = read_page(html, "https://site.example/", "sluice", Directives())
        assert not needs_browser(html, page.text_chars), file.name

"""Pages of the kinds that documentation generators make, written after them by hand: every link is read, no other."""

from pathlib import Path

import pytest

from tasks.formats.web.robots_tag import Directives
from tasks.stages.crawl.page.links import Page, read_page

SAMPLES = Path(__file__).with_name("samples")
ROOT = "http://h.example/"
LINKS = {
    "docbook": "d/e/tides.html d/e/water.html d/e/locks.html d/e/sql-tide.html d/e/index.html",
    # Drawn by graphviz, with a formula.
    "graph": "d/e/namespaceharbour.html d/e/classharbour_1_1Crane.html d/e/classharbour_1_1Machine.html"
    " d/e/classharbour_1_1Winch.html d/e/newton.html d/e/classharbour_1_1Hook.html https://doxygen.example/index.html",
    "javadoc": "noscript.html index.html d/e/package-summary.html d/lang/Hull.html d/lang/Floats.html d/e/Keel.html"
    " d/lang/String.html d/e/Sand.html",
    "mdbook": "d/title.html d/ch01.html d/e/sails.html d/print.html d/ch02.html d/ch03/tack.html d/ch03/jibe.html",
    "nodejs": "d/e/index.html d/e/anchors.html d/e/buoys.html https://src.example/harbour"
    " https://h.example/docs/latest-v3.x/api/buoys.html d/e/all.html d/e/buoys.json d/e/documentation.html"
    " https://src.example/lib/buoys.js https://whatwg.example/url https://mdn.example/Number",
    "r-help": "base/html/factor.html d/e/locks.html stats/html/arima.html d/doc/index.html d/e/00Index.html",
    "rustdoc": "d/e/index.html d/index.html src/harbour/ropes.rs.html core/marker/trait.Sized.html"
    " d/e/struct.Knot.html d/e/fn.splice.html d/e/struct.Bow.html core/marker/trait.Send.html d/e/struct.Rope.html",
    "sphinx": "d/genindex.html d/e/knots.html d/e/index.html https://src.example/Lib/lines.py"
    " https://rfc.example/rfc9309.html d/copyright.html",
}


def read(html: bytes) -> Page:
    return read_page(html, ROOT + "d/e/page.html", "sluice", Directives())


@pytest.mark.parametrize("name", LINKS)
def test_every_link_of_a_page_is_read_and_no_other(name: str) -> None:
    html = (SAMPLES / f"{name}.html").read_bytes()
    page = read(html)
    assert [link.url.removeprefix(ROOT) for link in page.links] == LINKS[name].split()
    assert page.title
    assert page.text_chars > 100
    deep = read(html.replace(b"</body>", b"<div>" * 3000))
    assert (deep.links, deep.title, deep.canonical) == (page.links, page.title, page.canonical)


def test_every_sample_is_read() -> None:
    assert {path.stem for path in SAMPLES.iterdir()} == set(LINKS)

"""Pages are scored by trees that were not trained on their site."""

import json
from pathlib import Path

from benchmarks.page_kinds import KindPage
from benchmarks.train_blocks import TARGET
from benchmarks.unseen_hosts import site_of, texts_by_folds, write_fold, write_sites

STORY = "".join(
    f"<p>On day {n} the harbour was quiet, the boats lay still, and the wind came up from the south at noon.</p>"
    for n in range(8)
)


def test_a_site_is_one_under_all_its_domains() -> None:
    hosts = ("www.juraforum.de", "juraforum", "forum.juraforum.co.uk")
    assert {site_of(host) for host in hosts} == {"juraforum"}
    assert site_of("python-django-doc") != site_of("apache2-doc")


def test_each_page_is_read_with_the_trees_of_its_fold(tmp_path: Path) -> None:
    held = json.loads(TARGET.read_text())
    write_fold(tmp_path, 0, held)
    # Trees that keep everything: the base of the log odds is far above what leaves subtract.
    keeps_all = {name: {**trees, "base": 10**9} for name, trees in held.items()}
    write_fold(tmp_path, 1, keeps_all)
    write_sites(tmp_path, {"first": 0, "second": 1})
    html = f"<body><article><h1>Boats</h1>{STORY}</article><div class=share><p>Share on Facebook now</p></div></body>"
    pages = [
        KindPage("news", "", html, host, "", {}) for host in ("first.example", "www.second.example", "new.example")
    ]
    texts = texts_by_folds(tmp_path, pages)
    assert ["Share on Facebook" in text for text in texts] == [False, True, False]
    assert all(text.count("harbour") == 8 for text in texts)

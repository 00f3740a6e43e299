"""Pages by kind: what counts as a word, as a found step, and which figures a kind has."""

from pathlib import Path

from benchmarks.extraction import scores
from benchmarks.page_kinds import KindPage, bag_shares, found_share, read_kinds, words_of


def page_of(kind: str, gold: str, host: str = "a.example") -> KindPage:
    return KindPage(kind, "https://a.example/", "", host, gold, {})


def test_pages_are_read_by_kind_with_their_gold(shared_data: Path) -> None:
    pages = read_kinds(shared_data / "extraction_kinds")
    kinds = {page.kind for page in pages}
    assert {"news, Latin script", "news, other scripts", "forum", "recipe", "docs/sphinx"} <= kinds
    assert all(bool(page.gold) != bool(page.parts) for page in pages)
    assert {name for page in pages for name in page.parts} == {"steps", "ingredients"}
    # The same site in two sets: it is on one host, so that both pages are in one fold.
    assert {"juraforum", "www.juraforum.de"} <= {page.host for page in pages}


def test_scripts_without_spaces_are_compared_by_characters() -> None:
    assert words_of("Das Café, 2 Häfen") == ["Das", "Café", "2", "Häfen"]
    assert words_of("静かな港 ไทย 항구는") == [*"静かな港", *"ไทย", "항구는"]
    precision, recall = bag_shares(page_of("news", "静かな港"), "静かな町です")
    assert (precision, recall) == (3 / 6, 3 / 4)


def test_a_step_is_found_if_its_words_are_in_a_row() -> None:
    text = "Ingredients\n2\tcups of\nFLOUR\n\nStir the flour."
    assert found_share(["2 cups of flour"], text) == 1.0
    assert found_share(["2 cups", "flour of", "ups of flour", "Stir."], text) == 0.5


def test_every_kind_has_its_figures_and_an_interval_if_it_has_enough_hosts() -> None:
    forums = [page_of("forum", "one two", f"{n}.example") for n in range(8)]
    manuals = [page_of("docs/manual", "one two") for _ in range(3)]
    recipe = [KindPage("recipe", "", "", f"{n}.example", "", {"steps": ("one", "three")}) for n in range(3)]
    pages = [*forums, *manuals, *recipe, page_of("wiki", "one")]
    found = scores(pages, ["one"] * len(pages))["kinds"]
    assert list(found) == ["docs/manual", "forum", "recipe, steps"]
    assert (found["forum"]["precision"], found["forum"]["recall"]) == (1.0, 0.5)
    assert found["forum"]["f1_interval"] == [0.6667, 0.6667]
    assert "f1_interval" not in found["docs/manual"]
    assert found["recipe, steps"] == {"pages": 3, "recall": 0.5}

"""The corpus browser, the page of a document, and the pair of a duplicate, over documents that the stages made."""

import re
import shutil
from html import unescape

import duckdb
import pytest
from sluice_ui.scan import contains

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.store import Store
from tasks.formats.documents.document import REPEATED, REPEATED_SPANS
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.marked_text import _pieces
from tasks.stages.text_index import TextIndexConfig
from tests.conftest import run_stage_in
from tests.plugins.conftest import HOSTILE
from tests.tasks.stages.consolidate.test_stage import CONSOLIDATE, prepare, text
from tests.tasks.stages.dedup.made import document

PAGE = "/sluice/corpus?recipe=test&version=dev"
MAIL = "ann@example.org"


def lines(seed):
    words = text(seed).split()
    return "\n".join(" ".join(words[at : at + 10]) for at in range(0, len(words), 10))


def mailed(seed):
    """A text with an address, and the span of the address."""
    body = f"write to {MAIL}\n{lines(seed)}"
    return body, [{"kind": "email", "start": 9, "end": 9 + len(MAIL)}]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Documents with a copy, a hostile one, and one with few words; the store, and the rows by name."""
    body, spans = mailed(1)
    rows = {f"{seed}": document(lines(seed), f"{seed}", prose_score=seed / 100) for seed in range(2, 32)}
    rows["best"] = document(body, "best", prose_score=0.9, pii_spans=spans, title="The harbor")
    near = body.replace(" ", " x ", 1)
    spans = [{"kind": "email", "start": near.index(MAIL), "end": near.index(MAIL) + len(MAIL)}]
    rows["near"] = document(near, "near", pii_spans=spans)
    rows["poor"] = document(f"{HOSTILE} few", f"poor?{HOSTILE}", poor=True, language="de")
    store = tmp_path_factory.mktemp("documents")
    run_stage_in(
        store, CONSOLIDATE, ConsolidateConfig(), prepare(store, list(rows.values()), parts=3), kind="documents"
    )
    return store, rows


@pytest.fixture
def made(recipes, tmp_path, prepared):
    """A recipe `test` with the documents; returns their rows by name."""
    recipes("test")
    store, rows = prepared
    shutil.copytree(store, tmp_path / "store")
    return rows


def addresses(page):
    return re.findall(r'<p class="quiet">(\S+) · <a', page)


def all_pages(get, address):
    """Returns the addresses of the documents of all pages."""
    shown = []
    while address:
        page = get(address).text
        shown += addresses(page)
        found = re.search(r'rel="next" href="([^"]+)"', page)
        address = found and unescape(found[1])
    return shown


def test_every_kept_document_is_on_one_page_in_the_order_of_the_files(get, made, tmp_path):
    documents = Artifact.open_at(Store(str(tmp_path / "store")), ArtifactId("test/documents", "dev"))
    expected = [url for path in documents.files("kept/") for url in documents.table(path, ["url"])["url"].to_pylist()]
    assert all_pages(get, PAGE) == expected
    assert len(expected) == 31


def test_documents_of_all_files_are_sorted_by_a_column_over_all_pages(get, made):
    scores = {f"https://example.org/{seed}": seed for seed in range(2, 32)} | {"https://example.org/best": 90}
    best = sorted(scores, key=scores.__getitem__, reverse=True)
    assert all_pages(get, f"{PAGE}&order=-prose_score") == best
    assert all_pages(get, f"{PAGE}&order=prose_score") == best[::-1]
    assert all_pages(get, f"{PAGE}&order=url&least=0.1") == sorted(url for url in best if scores[url] >= 10)
    assert all_pages(get, f"{PAGE}&order=-prose_score&text=example.org/3") == [
        f"https://example.org/{seed}" for seed in (31, 30, 3)
    ]
    rejected = get(f"{PAGE}&fate=rejected&order=url").text
    assert rejected.count("<article>") == 2
    assert rejected.index("example.org/near") < rejected.index("example.org/poor")
    assert "not sorted" in get(f"{PAGE}&order=url&text=write&within=text").text


def test_the_form_lists_the_values_of_columns_with_their_documents(get, made):
    page = get(f"{PAGE}&fate=rejected&language=de").text
    assert '<option value="de" selected>German (de) (1)</option>' in page
    assert '<option value="gopher_quality_few_words">gopher_quality_few_words (1)</option>' in page
    kept = get(f"{PAGE}&tier=none").text
    assert ">English (en) (31)</option>" in kept
    assert '<option value="none" selected>none (0)</option>' in kept


@pytest.mark.parametrize("text", ["/مر", "/%D9%85", "/%d9"])
def test_a_search_finds_a_url_as_it_is_written_and_as_it_reads(text):
    urls = ["http://h/%d9%85%d8%b1/", "http://h/%FF", "http://h/100%"]
    condition = contains(["url"], text)
    query = f"SELECT url FROM (SELECT unnest(?) AS url) WHERE {condition.sql}"
    with duckdb.connect() as connection:
        assert connection.execute(query, [urls, *condition.values]).fetchall() == [(urls[0],)]


@pytest.mark.parametrize(
    ("query", "number"),
    [
        ("host=example.org", 31),
        ("language=en&tier=silver", 31),
        ("least=0.3", 3),
        ("least=0.05&most=0.08", 4),
        ("text=EXAMPLE.ORG/be", 1),
        ("text=harbor", 1),
        ("text=write%20to", 0),
        ("text=write%20to&within=text", 1),
        ("fate=rejected&reason=gopher_quality_few_words", 1),
        ("fate=rejected&host=example.org", 2),
        ("fate=rejected&language=de", 1),
        ("fate=rejected&reason=contaminated", 0),
        ("least=x", 31),
    ],
)
def test_documents_are_found_by_columns_score_range_and_text(get, made, query, number):
    page = get(f"{PAGE}&{query}").text
    shown = re.search(r"documents 1 to (\d+) of those", page)
    assert (int(shown[1]) if shown else 0) == min(number, 20)
    counted = re.search(r"Documents that match: ([\d,]+)\.", page)
    assert counted is None or int(counted[1]) == number


def test_a_rejected_document_shows_its_value_beside_the_limit(get, made):
    page = get(f"{PAGE}&fate=rejected&reason=gopher_quality_few_words").text
    assert 'gopher_quality_few_words</span> <span class="quiet">3, at least 50</span>' in page
    assert "<img" not in page


def test_a_rejected_document_shows_its_text_with_marks(get, made, monkeypatch):
    from sluice_ui import documents, located

    page = get(f"{PAGE}&fate=rejected").text
    texts = re.findall(r'<div class="excerpt"[^>]*>(.*?)</div>', page, re.S)
    assert len(texts) == 2
    near = made["near"]["text"].replace(
        MAIL, '<mark title="masked: email"><span class="hidden" dir="ltr">masked: email: </span>&lt;email&gt;</mark>'
    )
    assert near in texts
    assert MAIL not in page
    assert "<img" not in page
    monkeypatch.setattr(documents, "EXCERPT", 20)
    begun = get(f"{PAGE}&fate=rejected&reason=duplicate_near").text
    assert re.search(
        r'email&gt;</mark>\n\w\n?<span class="quiet" dir="ltr" lang="en"> … and [\d,]+ more characters', begun
    )
    monkeypatch.setattr(located, "READ_BYTES", 0)
    some = get(f"{PAGE}&fate=rejected").text
    assert (some.count("<article>"), some.count('class="excerpt"')) == (2, 1)


def test_texts_are_searched_file_by_file_and_the_page_says_which(get, made, monkeypatch):
    from sluice_ui import documents

    monkeypatch.setattr(documents, "SEARCHED_BYTES", 1)
    address, searched = f"{PAGE}&text=write to&within=text", []
    found = 0
    while address:
        page = get(address).text
        searched += re.findall(r"Searched files (\d to \d of \d)\.", page)
        found += page.count("<article>")
        following = re.search(r'rel="next" href="([^"]+)">Search the next files', page)
        address = following and unescape(following[1])
    assert searched[:2] == ["1 to 1 of 3", "2 to 2 of 3"]
    assert found == 1


def test_a_document_is_shown_with_masks_and_its_values(get, made):
    page = get(f"/sluice/document?recipe=test&version=dev&id={made['best']['id']}").text
    spoken = '<span class="hidden" dir="ltr">masked: email: </span>'
    assert f'<mark title="masked: email">{spoken}&lt;email&gt;</mark>' in page
    assert MAIL not in page
    poor = get(f"/sluice/document?recipe=test&version=dev&id={made['poor']['id']}").text
    row = poor.partition("<td>gopher_quality.min_words</td>")[2].partition("</tr>")[0]
    assert '<td class="number">3</td>' in row
    assert "drops it" in row
    assert "<img" not in poor
    assert get(f"/sluice/document?recipe=test&version=dev&id={'0' * 32}").status_code == 404
    assert get("/sluice/document?recipe=test&version=dev").status_code == 404


def test_repeated_paragraphs_are_marked_and_masks_precede():
    found = {REPEATED: {"spans": [{"begin": 4, "end": 30}]},
             "pii": {"spans": [{"kind": "email", "start": 9, "end": 24}]}}  # fmt: skip
    assert set(found[REPEATED]) <= {field.name for field in REPEATED_SPANS}
    pieces = _pieces(ConsolidateConfig(), "one\nmail ann@example.org now.\ntwo", found)
    assert [(piece.text, piece.mark) for piece in pieces] == [
        ("one\n", ""),
        ("mail ", "repeated paragraph"),
        ("<email>", "masked: email"),
        (" now.\n", "repeated paragraph"),
        ("two", ""),
    ]
    assert _pieces(ConsolidateConfig(), "text", {"pii": None}) is None


def test_a_duplicate_is_shown_beside_its_original_line_by_line(get, made):
    listed = get(f"{PAGE}&fate=rejected&reason=duplicate_near").text
    page = get(unescape(re.search(r'href="(/sluice/duplicate\?[^"]+)"', listed)[1])).text
    assert "https://example.org/near" in page
    assert "https://example.org/best" in page
    assert "15 of 16 lines are equal" in page
    [row] = re.findall(r'<tr class="differs"><td>(.*?)</td><td>(.*?)</td></tr>', page)
    assert row == ("<mark>write x to &lt;email&gt;</mark>", "<mark>write to &lt;email&gt;</mark>")
    assert MAIL not in page


def test_the_clusters_of_a_version_are_listed(get, made):
    page = get("/sluice/duplicates?recipe=test&version=dev").text
    assert re.search(r"<td>2</td>\s*<td class=\"number\">1</td>\s*<td class=\"number\">2</td>", page)
    assert "https://example.org/near" in page
    assert MAIL not in page


def test_texts_taken_down_after_the_version_was_made_are_withheld(get, made, monkeypatch):
    from tasks.formats.documents.tombstones import Tombstones

    stones = Tombstones(documents=frozenset({made["best"]["id"]}))
    monkeypatch.setattr(Tombstones, "read", classmethod(lambda cls, folders: stones))
    listed = get(f"{PAGE}&text=harbor").text
    assert "The text is withheld" in listed
    assert "write to" not in listed
    one = get(f"/sluice/document?recipe=test&version=dev&id={made['best']['id']}").text
    assert "write to" not in one
    pair = f"/sluice/duplicate?recipe=test&version=dev&id={made['near']['id']}&of={made['best']['id']}"
    assert "A text is withheld" in get(pair).text
    clusters = get("/sluice/duplicates?recipe=test&version=dev").text
    assert "withheld: a document of it is taken down" in clusters
    assert "write" not in clusters


def test_texts_have_their_language_and_their_own_direction(get, recipes, tmp_path):
    recipes("test")
    body, spans = mailed(1)
    rows = [
        document(f"كتاب\n{lines(2)}", "arabic", language="ar", title="كتاب"),
        document(body, "japanese", language="ja", pii_spans=spans),
    ]
    run_stage_in(
        tmp_path / "store", CONSOLIDATE, ConsolidateConfig(), prepare(tmp_path / "store", rows), kind="documents"
    )
    page = get(PAGE).text
    assert '<h2 dir="auto" lang="ar">كتاب</h2>' in page
    assert re.search(r'<div class="excerpt" dir="auto" lang="ar"[^>]*>كتاب', page)
    assert '<span class="badge">Japanese (ja)</span>' in page
    one = get(f"/sluice/document?recipe=test&version=dev&id={rows[0]['id']}").text
    assert "Arabic (ar)" in one
    assert '<div class="excerpt whole" dir="auto" lang="ar"' in one


def test_with_an_index_of_words_texts_of_all_files_are_searched(get, made, tmp_path, monkeypatch):
    from sluice_ui import documents as browser

    store = tmp_path / "store"
    documents = Artifact.open_at(Store(str(store)), ArtifactId("test/documents", "dev"))
    unindexed = get(f"{PAGE}&text=email write&within=text").text
    assert "no kept document matches" in unindexed
    config = TextIndexConfig(enabled=True)
    run_stage_in(store, "tasks.stages.text_index.stage", config, {"documents": documents}, kind="text_index")
    page = get(f"{PAGE}&text=email write&within=text").text
    assert addresses(page) == ["https://example.org/best"]
    assert "Documents with all words: 1." in page
    shown = all_pages(get, f"{PAGE}&text=example&within=text&language=en")
    assert len(shown) == len(set(shown)) == 31
    best = all_pages(get, f"{PAGE}&text=example&within=text&language=en&order=-prose_score")
    assert best == all_pages(get, f"{PAGE}&order=-prose_score")
    assert all_pages(get, f"{PAGE}&text=example&within=text&order=prose_score") == best[::-1]
    assert "not by url" in get(f"{PAGE}&text=example&within=text&order=url").text
    with monkeypatch.context() as patch:
        patch.setattr(browser, "COUNTED", 5)
        assert "are too many to sort" in get(f"{PAGE}&text=example&within=text&order=-prose_score").text
    assert "the search has no word" in get(f"{PAGE}&text=?!&within=text").text
    assert get(f"{PAGE}&text={HOSTILE}&within=text").status_code == 200
    assert addresses(get(f'{PAGE}&text="write to"&within=text').text) == ["https://example.org/best"]
    assert addresses(get(f'{PAGE}&text="to write"&within=text').text) == []


def test_with_an_index_a_rare_part_of_a_title_or_url_is_searched_in_the_files_that_have_it(
    get, made, tmp_path, monkeypatch
):
    from sluice_ui import documents, scan

    store, searched, group = tmp_path / "store", [], scan._group
    kept = Artifact.open_at(Store(str(store)), ArtifactId("test/documents", "dev"))
    run_stage_in(
        store, "tasks.stages.text_index.stage", TextIndexConfig(enabled=True), {"documents": kept}, kind="text_index"
    )
    monkeypatch.setattr(scan, "_group", lambda paths, *more: searched.extend(paths) or group(paths, *more))
    for part in ("ARBO", "org/best"):
        assert addresses(get(f"{PAGE}&text={part}").text) == ["https://example.org/best"]
        assert len(searched) == 1, "one of three files has it"
        searched.clear()
    assert addresses(get(f"{PAGE}&text=harbor&language=de").text) == []
    searched.clear()
    assert addresses(get(f"{PAGE}&text=nowhere").text) == searched == []
    monkeypatch.setattr(documents, "RARE", 5)
    assert len(addresses(get(f"{PAGE}&text=example").text)) == 20
    assert len({*searched}) > 1

"""Stage `text_index`: a search finds exactly the documents that have all words, in the order of the files."""

import re
import unicodedata
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.formats.documents.text_index import KEPT, TextIndex
from tasks.run.catalogue import stages_of
from tasks.run.recipe import find_recipe
from tasks.stages.text_index import TextIndexConfig
from tests.conftest import run_stage_in
from tests.corpora import corpus, documents_in, kept_document

STAGE = "tasks.stages.text_index.stage"


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    rows = [
        *corpus(90),
        kept_document("https://odd.org/a_b", 'He said: "NEAR(x)" AND don\'t-stop OR Ｗide', title="Café"),
    ]
    return documents_in(tmp_path_factory.mktemp("index"), rows, 4)


def index_of(documents: Artifact, version: str = "dev", group: int = 30, workers: int = 0) -> Artifact:
    config = TextIndexConfig(enabled=True, group_documents=group)
    return run_stage_in(
        *(documents.store.root, STAGE, config, {"documents": documents}),
        kind="text_index", version=version, workers=workers,
    )  # fmt: skip


def expected(documents: Artifact, words: list[str], **values: str) -> list[tuple[str, int]]:
    """Returns the places of the documents that have all words, by reading all texts."""
    found = []
    for path in documents.files(KEPT):
        for number, row in enumerate(documents.table(path).to_pylist()):
            whole = unicodedata.normalize("NFD", f"{row['title']} {row['url']} {row['text']}".casefold())
            plain = "".join(letter for letter in whole if not unicodedata.combining(letter))
            pieces = {*re.findall(r"[^\W_]+", plain), *plain}
            if all(word in pieces for word in words) and all(row[name] == value for name, value in values.items()):
                found.append((path, number))
    return found


@pytest.mark.parametrize(
    ("text", "words", "values"),
    [
        ("river", ["river"], {}),
        ("RIVER uber", ["river", "uber"], {}),
        ("naïve stone light", ["naive", "stone", "light"], {}),
        ("строка", ["строка"], {}),
        ("数据", ["数", "据"], {}),
        ("river", ["river"], {"source": "code", "language": "en"}),
        ("river", ["river"], {"host": "h3.org"}),
        ("river", ["river"], {"tier": "gold"}),
        ("odd.org a_b", ["odd", "org", "a", "b"], {}),
        ('"NEAR(x)" AND', ["near", "x", "and"], {}),
        ("don't", ["don", "t"], {}),
        ("cafe", ["cafe"], {}),
        ("nowhere", ["nowhere"], {}),
    ],
)
def test_exactly_the_documents_with_all_words_are_found(
    documents: Artifact, text: str, words: list[str], values: dict[str, str]
) -> None:
    wanted = expected(documents, words, **values)
    number, rows = TextIndex(index_of(documents)).find(text, values, most=1000)
    assert rows == wanted
    assert number == len(wanted)


def in_a_row(documents: Artifact, phrase: str) -> list[tuple[str, int]]:
    """Returns the places of the documents with a phrase in title, URL or text, by reading all of them."""
    found = []
    for path in documents.files(KEPT):
        for number, row in enumerate(documents.table(path).to_pylist()):
            texts = (" ".join(re.findall(r"[^\W_]+", row[name].casefold())) for name in ("title", "url", "text"))
            if any(f" {phrase} " in f" {text} " for text in texts):
                found.append((path, number))
    return found


def test_a_phrase_is_found_where_its_words_are_beside_each_other_in_one_field(documents: Artifact) -> None:
    rows = documents.table(documents.files(KEPT)[0]).to_pylist()
    beside = " ".join(re.findall(r"[^\W_]+", rows[1]["text"].casefold())[3:6])
    index = TextIndex(index_of(documents))
    wanted = in_a_row(documents, beside)
    assert 0 < len(wanted) < index.find(beside, {})[0]
    assert index.find(f'"{beside}"', {}, most=1000) == (len(wanted), wanted)
    assert index.find('"don t stop" said', {})[0] == 1
    assert index.find('"stop don"', {})[0] == 0
    assert index.find('"cafe https"', {})[0] == 0, "the end of a title and the beginning of a URL are no phrase"
    assert index.find('"near x" "and don', {})[0] == 1, "a quote without its partner begins a phrase"


def test_an_index_without_positions_is_smaller_and_says_that_it_has_no_phrases(documents: Artifact) -> None:
    config = TextIndexConfig(enabled=True, phrases=False)
    small = run_stage_in(documents.store.root, STAGE, config, {"documents": documents}, version="small")
    assert TextIndex(small).find("river stone", {}) == TextIndex(index_of(documents)).find("river stone", {})
    assert small.record.bytes < index_of(documents, "one", group=1000).record.bytes
    with pytest.raises(InputError, match="the index has no phrases"):
        TextIndex(small).find('"river stone"', {})


@pytest.mark.parametrize("part", ["odd.ORG/a", "Café", "CAFÉ", 'a"b', "org/4", "zzz", "İstanbul", "ΣΑΣ"])
def test_the_files_with_a_part_of_a_title_or_url_are_found_regardless_of_case(documents: Artifact, part: str) -> None:
    wanted = [
        path
        for path in documents.files(KEPT)
        if any(part.lower() in f"{row['title']}\n{row['url']}".lower() for row in documents.table(path).to_pylist())
    ]
    index = TextIndex(index_of(documents))
    assert index.is_readable
    assert index.files_with(part, 1000) == wanted
    assert index.files_with("od", 1000) is None, "fewer than three letters"
    assert index.files_with("http", 50) is None, "more rows than asked for"


def test_a_search_is_paged_counted_and_restricted_to_scores(documents: Artifact) -> None:
    index = TextIndex(index_of(documents))
    number, rows = index.find("river", {}, most=1000)
    assert number > 20
    pages = [row for first in range(0, number, 7) for row in index.find("river", {}, first=first, most=7)[1]]
    assert pages == rows
    assert index.find("river", {}, most=2, counted=5)[0] == 6
    assert index.find("river", {}, (0.5, 0.5), most=1000) == (number, rows)
    assert index.find("river", {}, (0.6, None)) == (0, [])
    assert index.find("riv*", {}, most=1000) == (number, rows)
    with pytest.raises(InputError, match="has no word"):
        index.find("?!", {})


def test_the_bytes_are_the_same_with_any_number_of_workers(documents: Artifact) -> None:
    one, other = index_of(documents), index_of(documents, "two", workers=2)
    assert [file for part in one.parts for file in part.files] == [file for part in other.parts for file in part.files]
    assert len(one.files("words/")) > 1
    assert one.record.rows_out == 91


def test_a_recipe_has_the_stage_if_it_is_enabled(tmp_path: Path) -> None:
    assert "text_index" in stages_of("corpus")
    recipe = find_recipe("demo")
    assert "text_index" not in recipe.stages("corpus")
    assert "text_index" in recipe.override({"text_index.enabled": True}).stages("corpus")

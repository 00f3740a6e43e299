"""Contract of the language labels, on labelled text; skips where the model has not been fetched."""

import io
import json
from pathlib import Path

import pyarrow as pa
import pytest

from tasks.errors import InputError
from tasks.filters.batch import Batch
from tasks.filters.language import LanguageLabels, _model
from tasks.models import model_folder


@pytest.fixture
def language() -> LanguageLabels:
    if not (model_folder() / "lid.176.ftz").is_file():
        pytest.skip("the language model is not here: run `make models`")
    return LanguageLabels()


def labels(language: LanguageLabels, *texts: str) -> list[str]:
    return language.annotate(Batch(texts)).field("label").to_pylist()


def rows(path: Path) -> list[dict[str, str]]:
    with pa.CompressedInputStream(pa.OSFile(str(path)), "zstd") as stream:
        return [json.loads(line) for line in io.BytesIO(stream.read())]


def test_languages_of_verses_are_recognised(language: LanguageLabels, shared_data: Path) -> None:
    held = rows(shared_data / "langid" / "genesis_verses.jsonl.zst")
    found = labels(language, *(row["text"] for row in held))
    right = sum(one == row["lang"] for one, row in zip(found, held, strict=True))
    assert len(held) == 1800
    assert right / len(held) >= 0.95


def test_languages_of_sentences_in_a_hundred_languages_are_recognised(
    language: LanguageLabels, shared_data: Path
) -> None:
    held = [row for row in rows(shared_data / "langid" / "udhr_sentences.jsonl.zst") if row["lang"]]
    found = labels(language, *(row["text"] for row in held))
    right = sum(one == row["lang"] for one, row in zip(found, held, strict=True))
    assert len({row["lang"] for row in held}) == 100
    # Nine of the hundred are not among the model's labels or always taken for a neighbour; measured: 0.833.
    assert right / len(held) >= 0.82


def test_text_without_letters_is_undetermined_and_the_others_keep_their_places(language: LanguageLabels) -> None:
    texts = [
        "",
        "The river ran down to the valley.",
        " \n ",
        "12 + 34 = 46 !!",
        "Der Fluss floss hinab ins Tal.",
        "😀😀",
    ]
    found = language.annotate(Batch(texts))
    assert found.field("label").to_pylist() == ["und", "en", "und", "und", "de", "und"]
    assert [score for score in found.field("score").to_pylist() if score == 0.0] == [0.0] * 4


def test_line_ends_and_nul_do_not_end_the_text(language: LanguageLabels) -> None:
    text = "ok\0\nDer Fluss floss hinab\nins Tal aus Stein,\r\nwo Menschen seit vielen Jahren leben."
    assert labels(language, text) == ["de"]


def test_scores_are_probabilities(language: LanguageLabels) -> None:
    (score,) = (
        language.annotate(Batch(["The river ran down to the valley of the stones. " * 20])).field("score").to_pylist()
    )
    assert 0.9 < score <= 1.0


def test_only_the_beginning_decides(language: LanguageLabels) -> None:
    text = "The river ran down to the valley of stones, and then the mill. " + "Der Fluss. " * 500
    assert labels(LanguageLabels(chars=60), text) == ["en"]


def test_paragraphs_have_labels_of_their_own(language: LanguageLabels) -> None:
    english, german = (
        "The river ran down to the valley of stones. " * 3,
        "Der Fluss floss hinab ins Tal aus Stein. " * 3,
    )
    text = f"Short.\n\n{english.strip()}\n\n{german.strip()}"
    (found,) = LanguageLabels(paragraphs=True).annotate(Batch([text])).field("paragraphs").to_pylist()
    assert [one["label"] for one in found] == ["en", "de"]
    assert [text[one["start"] : one["end"]] for one in found] == [english.strip(), german.strip()]


def test_a_missing_model_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLUICE_MODELS", str(tmp_path))
    _model.cache_clear()
    try:
        with pytest.raises(InputError, match="make models"):
            LanguageLabels().prepare({})
        (tmp_path / "lid.176.ftz").write_bytes(b"something else")
        with pytest.raises(InputError, match="sha256 differs"):
            LanguageLabels().prepare({})
    finally:
        _model.cache_clear()

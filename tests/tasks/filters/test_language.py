"""Contract of the language labels, on labeled text; skips if the model has not been downloaded."""

import io
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tasks.core.errors import InputError
from tasks.filters.batch import DocumentBatch
from tasks.filters.language import LanguageLabels, code_of
from tasks.filters.learned.fasttext import labels_of
from tasks.filters.pretrained import model_folder
from tasks.stages.annotate import AnnotateConfig, stage
from tests.conftest import file_refs


def prepared(**given: Any) -> LanguageLabels:
    annotator = LanguageLabels(**given)
    annotator.prepare({})
    return annotator


@pytest.fixture
def language() -> LanguageLabels:
    if not (model_folder() / "lid.176.ftz").is_file():
        pytest.skip("the language model is not here: run `make models`")
    return prepared()


def labels(language: LanguageLabels, *texts: str) -> list[str]:
    found: list[str] = language.annotate(DocumentBatch(texts)).field("label").to_pylist()
    return found


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
    # Nine of the hundred are not among the model's labels or always confused with a related one; measured: 0.833.
    assert right / len(held) >= 0.82


def test_text_without_letters_is_undetermined_and_does_not_shift_other_rows(language: LanguageLabels) -> None:
    texts = [
        "",
        "The river ran down to the valley.",
        " \n ",
        "12 + 34 = 46 !!",
        "Der Fluss floss hinab ins Tal.",
        "😀😀",
    ]
    found = language.annotate(DocumentBatch(texts))
    assert found.field("label").to_pylist() == ["und", "en", "und", "und", "de", "und"]
    assert [score for score in found.field("score").to_pylist() if score == 0.0] == [0.0] * 4


def test_line_ends_and_nul_do_not_end_the_text(language: LanguageLabels) -> None:
    text = "ok\0\nDer Fluss floss hinab\nins Tal aus Stein,\r\nwo Menschen seit vielen Jahren leben."
    assert labels(language, text) == ["de"]


def test_scores_are_probabilities(language: LanguageLabels) -> None:
    (score,) = (
        language.annotate(DocumentBatch(["The river ran down to the valley of the stones. " * 20]))
        .field("score")
        .to_pylist()
    )
    assert 0.9 < score <= 1.0


def test_only_the_beginning_of_a_text_is_used(language: LanguageLabels) -> None:
    text = "The river ran down to the valley of stones, and then the mill. " + "Der Fluss. " * 500
    assert labels(prepared(chars=60), text) == ["en"]


def test_paragraphs_have_their_own_labels(language: LanguageLabels) -> None:
    english, german = (
        "The river ran down to the valley of stones. " * 3,
        "Der Fluss floss hinab ins Tal aus Stein. " * 3,
    )
    text = f"Short.\n\n{english.strip()}\n\n{german.strip()}"
    (found,) = prepared(paragraphs=True).annotate(DocumentBatch([text])).field("paragraphs").to_pylist()
    assert [one["label"] for one in found] == ["en", "de"]
    assert [text[one["start"] : one["end"]] for one in found] == [english.strip(), german.strip()]


def test_a_missing_model_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLUICE_MODELS", str(tmp_path))
    with pytest.raises(InputError, match="make models"):
        prepared()
    (tmp_path / "lid.176.ftz").write_bytes(b"something else")
    with pytest.raises(InputError, match="sha256 differs"):
        prepared()


GERMAN, ENGLISH, CHINESE = "der fluss floss hinab ins tal", "the river ran down to the valley", "河 水 流 入 山 谷"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of three languages, with labels like OpenLID's and GlotLID's."""
    import fasttext

    folder = tmp_path_factory.mktemp("model")
    lines = [f"__label__deu_Latn {GERMAN}", f"__label__eng_Latn {ENGLISH}", f"__label__cmn_Hans {CHINESE}"]
    (folder / "lines").write_text("\n".join(lines * 40))
    model = fasttext.train_supervised(
        str(folder / "lines"), dim=8, epoch=40, lr=0.5, thread=1, bucket=500, minn=2, maxn=3, verbose=0
    )
    model.save_model(str(folder / "tiny.bin"))
    model.quantize(input=str(folder / "lines"), qnorm=True, retrain=False, cutoff=0, dsub=2, verbose=0)
    model.save_model(str(folder / "tiny.ftz"))
    return folder


@pytest.mark.parametrize("name", ["tiny.bin", "tiny.ftz"])
def test_labels_of_any_fasttext_model_are_mapped_to_our_codes(trained: Path, name: str) -> None:
    language = prepared(model=str(trained / name))
    assert labels(language, GERMAN, ENGLISH, CHINESE, "12") == ["de", "en", "zh", "und"]
    assert language.external() == [str(trained / name)]
    assert LanguageLabels().external() == []


def test_settings_can_map_labels(trained: Path) -> None:
    language = prepared(model=str(trained / "tiny.bin"), labels={"cmn_Hans": "zh-Hans"})
    assert labels(language, CHINESE, GERMAN) == ["zh-Hans", "de"]
    with pytest.raises(InputError, match=r"no label .cmn_Hant., which language.labels names.*cmn_Hans"):
        prepared(model=str(trained / "tiny.bin"), labels={"cmn_Hant": "zh"})
    with pytest.raises(InputError, match="such as deu_Latn, eng_Latn, cmn_Hans"):
        prepared(model=str(trained / "tiny.bin"), labels={"??": "zh"})


@pytest.mark.parametrize("name", ["tiny.bin", "tiny.ftz"])
def test_a_truncated_model_is_refused_before_loading(trained: Path, name: str, tmp_path: Path) -> None:
    whole = (trained / name).read_bytes()
    for length in (0, 3, 8, 50, 100, len(whole) // 2, len(whole) - 40, len(whole) - 1):
        (tmp_path / name).write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"is truncated\. Fetch it again"):
            prepared(model=str(tmp_path / name))
    assert labels_of(str(trained / name)) == ("deu_Latn", "eng_Latn", "cmn_Hans")


def test_a_file_that_is_not_a_language_model_is_refused(trained: Path, tmp_path: Path) -> None:
    import fasttext

    with pytest.raises(InputError, match=r"cannot be read .No such file or directory.\. Correct annotate"):
        prepared(model=str(tmp_path / "no-such.bin"))
    (tmp_path / "page.bin").write_text("<html>not found</html>" * 9)
    with pytest.raises(InputError, match="is no fastText model"):
        prepared(model=str(tmp_path / "page.bin"))
    vectors = fasttext.train_unsupervised(str(trained / "lines"), dim=4, epoch=1, thread=1, bucket=100, verbose=0)
    vectors.save_model(str(tmp_path / "vectors.bin"))
    with pytest.raises(InputError, match="has word vectors"):
        prepared(model=str(tmp_path / "vectors.bin"))


def test_a_replaced_file_at_the_same_path_is_another_model(trained: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model.bin"
    copy.write_bytes((trained / "tiny.bin").read_bytes())
    config = AnnotateConfig(use=("language",), settings={"language": {"model": str(copy)}})
    (before,) = file_refs(stage, config)
    assert labels(prepared(model=str(copy)), GERMAN) == ["de"]
    copy.write_bytes((trained / "tiny.ftz").read_bytes())
    os.utime(copy, ns=(1, 1))
    assert labels(prepared(model=str(copy)), GERMAN) == ["de"]
    (after,) = file_refs(stage, config)
    assert before.role == after.role == "annotator:language"
    assert before.content != after.content  # part of the fingerprint


@pytest.mark.parametrize(
    ("label", "code"),
    [("eng_Latn", "en"), ("arb_Arab", "ar"), ("nob_Latn", "no"), ("gsw_Latn", "gsw"), ("en", "en"), ("zxx", "zxx")],
)
def test_labels_are_mapped_to_our_codes(label: str, code: str) -> None:
    assert code_of(label) == code

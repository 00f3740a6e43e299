"""Contract of the language labels, on labeled text; skips if the model has not been downloaded."""

import io
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tasks.core.artifact import ArtifactId, InputRef
from tasks.core.clients import hub as client
from tasks.core.errors import InputError, TransientError
from tasks.core.stage import Inputs
from tasks.core.store import Store
from tasks.filters import language as language_module
from tasks.filters.batch import DocumentBatch
from tasks.filters.language import CONFUSABLE, Language, LanguageLabels, code_of
from tasks.filters.learned.fasttext import labels_of
from tasks.filters.pretrained import model_folder
from tasks.run.outside import external_refs
from tasks.stages.annotate import AnnotateConfig, stage
from tests.conftest import file_refs
from tests.tasks.trainer.interchange.hub_server import COMMIT, NAME, HubServer


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


def test_text_in_capitals_is_recognised_as_well_as_in_small_letters(
    language: LanguageLabels, shared_data: Path
) -> None:
    held = rows(shared_data / "langid" / "genesis_verses.jsonl.zst")[::3]
    small = labels(language, *(row["text"].lower() for row in held))
    capital = labels(language, *(row["text"].upper() for row in held))
    # Without small letters a third of them is recognized. ß and the Greek final s do not come back.
    assert sum(map(str.__eq__, small, capital)) / len(held) >= 0.99


class Recorder:
    """In place of a fastText model: records the lines that it is asked about."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def predict(self, lines: list[str], k: int = 1) -> tuple[list[list[str]], list[list[float]]]:
        self.lines += lines
        return [["__label__en"]] * len(lines), [[1.0]] * len(lines)


def test_only_text_mostly_in_capitals_is_read_in_small_letters(language: LanguageLabels) -> None:
    unchanged = [
        "BREAKING NEWS TODAY: the river ran down to the valley",
        "HTMLとCSSとJSでウェブページを作る方法について",  # capitals, but most letters have no case
        "\u13e3\u13b3\u13a9 \u13a6\u13ec\u13c2\u13af\u13cd\u13d7",  # Cherokee: all of it is capitals to Unicode
        "Der Fluss Floss Hinab Ins Tal",
    ]
    recorder = Recorder()
    language._model = recorder
    labels(language, *unchanged, "THE RIVER RAN, said he", "РЕКА ТЕЧЕТ", "THE RIVER 2026 WWW")
    assert recorder.lines[: len(unchanged)] == unchanged
    assert recorder.lines[len(unchanged) :][:3] == ["the river ran, said he", "река течет", "the river 2026 www"]


def test_the_second_language_and_its_probability_are_measured(language: LanguageLabels) -> None:
    texts = ["Sva ljudska bića rađaju se slobodna i jednaka u dostojanstvu i pravima.", "The river ran down.", "12"]
    found = language.annotate(DocumentBatch(texts)).to_pylist()
    assert {found[0]["label"], found[0]["second"]} <= set(["bs", "hr", "sh", "sr"])
    assert 0 < found[0]["second_score"] <= found[0]["score"]
    assert found[1]["second_score"] < 0.1
    assert (found[2]["second"], found[2]["second_score"]) == ("und", 0.0)


ENGLISH_LINE, GERMAN_LINE = (
    "The river ran down to the valley of stones, and people lived there.",
    "Der Fluss floss hinab ins Tal, und die Menschen wohnten dort lange.",
)


def shares(language: LanguageLabels, *texts: str) -> list[float]:
    found: list[float] = language.annotate(DocumentBatch(texts)).field("other_share").to_pylist()
    return [round(share, 3) for share in found]


def test_the_share_of_lines_in_another_language_is_measured(language: LanguageLabels) -> None:
    thai = "แม่น้ำไหลลงสู่หุบเขาและผู้คนอาศัยอยู่ที่นั่นมานานหลายปีแล้ว"
    texts = {
        "\n".join([ENGLISH_LINE] * 60): (0.0, 0.0),
        "\n".join([ENGLISH_LINE] * 30 + [GERMAN_LINE] * 30): (0.4, 0.6),
        "\n".join([ENGLISH_LINE] * 45 + [thai] * 15): (0.15, 0.35),
        "\n".join([thai] * 60): (0.0, 0.0),
        "\n".join(["Home", "Über uns", "Contact"] * 60): (0.0, 0.0),  # lines that are too short to be judged
        "12 34": (0.0, 0.0),
    }
    for share, (least, most) in zip(shares(language, *texts), texts.values(), strict=True):
        assert least <= share <= most


@pytest.mark.parametrize(("label", "line", "share"), [("hr", "sr", 0.0), ("hr", "hr", 0.0), ("hr", "sl", 1.0)])
def test_lines_in_a_language_that_models_confuse_with_the_label_are_no_other_ones(
    language: LanguageLabels, label: str, line: str, share: float
) -> None:
    class Stub:
        def predict(self, lines: list[str], k: int = 1) -> tuple[list[list[str]], list[list[float]]]:
            found = label if max(map(len, lines)) > 100 else line
            return [[f"__label__{found}"]] * len(lines), [[0.9]] * len(lines)

    language._model = Stub()
    assert shares(language, "\n".join([ENGLISH_LINE] * 40)) == [share]


def test_an_unmixed_document_needs_three_lines_and_one_of_any_length_no_more(language: LanguageLabels) -> None:
    recorder = Recorder()
    language._model = recorder
    shares(language, f"{ENGLISH_LINE} " * 50_000)
    assert len(recorder.lines) == 1 + 3
    assert max(map(len, recorder.lines[1:])) <= 60


def test_a_line_of_a_short_document_is_judged_once(language: LanguageLabels) -> None:
    english, german = (
        "The river ran down to the valley of the stones.",
        "Der Fluss floss hinab ins Tal, wo Menschen wohnten.",
    )
    assert shares(language, "\n".join([english] * 3 + [german] + [english] * 2)) == [round(1 / 6, 3)]
    assert shares(prepared(lines=4), f"{english} \n{german}") == [0.5]


def test_documents_with_too_many_other_lines_are_dropped_if_a_limit_is_set(language: LanguageLabels) -> None:
    mixed = "\n".join([ENGLISH_LINE] * 30 + [GERMAN_LINE] * 30)
    assert Language().verdict(mixed) is None
    assert Language(max_other_share=0.3).verdict(mixed) == "language_mixed"
    assert Language(max_other_share=0.3).verdict(ENGLISH_LINE * 30) is None


def test_the_report_counts_documents_between_two_languages_by_group_and_mixed_ones() -> None:
    measured = [("hr", 0.5, "sr", 0.3, 0.0), ("sr", 0.5, "bs", 0.25, 0.5), ("en", 0.5, "tr", 0.4, 0.25)]
    measured += [("id", 0.9, "ms", 0.1, 0.0), ("und", 0.0, "und", 0.0, 0.0)]
    names = ("label", "score", "second", "second_score", "other_share")
    column = pa.array([*(dict(zip(names, row, strict=True)) for row in measured), None], LanguageLabels().type())
    assert LanguageLabels().summary(column) == {"close": 3, "mixed": 1, "close/bs-hr-sh-sr": 2, "close/other": 1}
    assert len(CONFUSABLE) < 20


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


@pytest.fixture
def hub(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A model of the hub with `v3/model.bin`."""
    (tmp_path / "published" / "v3").mkdir(parents=True)
    (tmp_path / "published" / "v3" / "model.bin").write_bytes((trained / "tiny.bin").read_bytes())
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(client, "PAUSES_S", (0.0,))
    language_module._stated.cache_clear()
    with HubServer(tmp_path / "published") as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


MODEL = f"hf://{NAME}@main/v3/model.bin"


def resolved(folder: Path, address: str = MODEL) -> tuple[str, InputRef]:
    """Returns the address that workers get, and the reference that is part of the fingerprint."""
    config = AnnotateConfig(use=("language",), settings={"language": {"model": address}})
    (ref,) = external_refs(stage.HOOKS, config, Store(str(folder)), ArtifactId("mine/attributes", "1"))
    return stage.at_commits(config, Inputs({}, [ref])).settings["language"]["model"], ref


def test_a_model_of_the_hub_is_read_at_one_commit_and_fetched_once(hub: HubServer, tmp_path: Path) -> None:
    address, ref = resolved(tmp_path / "store")
    assert address == f"hf://{NAME}@{COMMIT}/v3/model.bin"
    assert ref.address == f"external:{address}"
    assert not hub.fetched("model.bin")  # the hash that the hub states is part of the fingerprint
    for _ in range(2):
        assert labels(prepared(model=address), GERMAN, ENGLISH, CHINESE) == ["de", "en", "zh"]
    assert len(hub.fetched("model.bin")) == 1


def test_other_bytes_of_a_model_of_the_hub_are_another_input_and_another_commit_is_not(
    hub: HubServer, trained: Path, tmp_path: Path
) -> None:
    _, first = resolved(tmp_path / "a")
    hub.commit = COMMIT[::-1]
    _, same = resolved(tmp_path / "b")
    (hub.folder / "v3" / "model.bin").write_bytes((trained / "tiny.ftz").read_bytes())
    _, other = resolved(tmp_path / "c")
    assert first.content == same.content != other.content
    assert first.address != same.address


def test_a_model_that_arrives_with_other_bytes_is_refused(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"hf://{NAME}@{COMMIT}/v3/model.bin"
    language_module._stated(address)
    path = hub.folder / "v3" / "model.bin"
    path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(
        TransientError, match=r"v3/model.bin arrived with .* the hash .*, not the .* that the hub states"
    ):
        prepared(model=address)


def test_a_machine_without_a_network_is_told_what_to_do(hub: HubServer) -> None:
    hub.refused = 503
    with pytest.raises(
        TransientError, match=r"the hub did not answer .* copy the file to it, and name its path in annotate"
    ):
        prepared(model=f"hf://{NAME}@{COMMIT}/v3/model.bin")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("hf://ink", "does not name a file of a model"),
        ("hf://ink/pot@v1", "does not name a file of a model"),
        ("hf://ink/pot/", "does not name a file of a model"),
        ("hf://datasets/ink/pot/model.bin", "does not name a file of a model"),
        ("hf://me:hf_secret@huggingface.co/ink/pot.bin", "hf://huggingface.co/ink/pot.bin does not name a file"),
    ],
)
def test_an_address_that_is_no_file_of_a_model_is_refused_with_the_recipe(model: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AnnotateConfig(use=("language",), settings={"language": {"model": model}})


def test_a_file_that_the_model_lacks_is_named_with_those_that_it_has(hub: HubServer, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model_v9.bin: the model has no such file. It has: v3/model.bin"):
        resolved(tmp_path, f"hf://{NAME}/model_v9.bin")


def test_threads_of_a_process_load_a_model_once(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fasttext

    loaded, load = [], fasttext.load_model

    def load_slowly(path: str) -> Any:
        loaded.append(path)
        time.sleep(0.1)
        return load(path)

    monkeypatch.setattr(fasttext, "load_model", load_slowly)
    copy = tmp_path / "model.bin"
    copy.write_bytes((trained / "tiny.bin").read_bytes())
    threads = [threading.Thread(target=prepared, kwargs={"model": str(copy)}) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loaded == [str(copy)]

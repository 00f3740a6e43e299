"""Contract of limits by language: good text of a language passes, noise does not, and values come from its text."""

import json
import random
import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tasks.filters.batch import DocumentBatch
from tasks.filters.catalogue import annotator
from tasks.filters.language_limits import Text, derive, stop_words_of
from tasks.filters.language_values import FILE, OTHER, shipped
from tasks.run.shell import main
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.rules import reasons

FILTERS = ("language", "gopher_quality", "gopher_repetition", "fineweb")


def verdict(text: str, language: str, score: float = 1.0) -> list[str]:
    """The reasons to drop a text that the model gives a label."""
    batch = DocumentBatch([text], languages=[language])
    label = pa.array([{"label": language, "score": score, "other_share": 0.0}])
    columns = {name: annotator(name, {}).annotate(batch) for name in FILTERS[1:]}
    judged = pa.table({"error": pa.nulls(1, pa.string()), "paged": [False], "language": label, **columns})
    config = ConsolidateConfig(filters=FILTERS, mask_pii=False)
    return reasons(config, pa.chunked_array([["web"]]), judged, np.zeros(1, np.bool_))[0]


def pages(shared_data: Path, file: str) -> list[str]:
    path = shared_data / "langid" / "udhr_sentences.jsonl.zst"
    with pa.input_stream(str(path), compression="detect") as lines:
        rows = [json.loads(line) for line in lines.read().decode().splitlines()]
    texts = [row["text"] for row in rows if row["lang"] == file]
    return ["\n".join(texts[begin : begin + 12]) for begin in range(0, len(texts) - 11, 12)]


@pytest.mark.parametrize("language", ["zh", "ja", "th", "hi", "fi", "ar", "de", "ko"])
def test_good_text_passes_and_the_same_as_noise_does_not(shared_data: Path, language: str) -> None:
    texts = pages(shared_data, language)
    assert texts
    assert [why for text in texts if (why := verdict(text, language))] == []
    words = " ".join(texts).split()
    links = "\n".join(random.Random(1).choices(words, k=80))
    broken = texts[0].encode().decode("latin-1")
    assert verdict(links, language)
    assert verdict("\n".join([texts[0].split("\n")[1]] * 9), language)
    assert verdict(broken, language)


def test_text_without_spaces_in_a_language_without_values_is_not_short() -> None:
    """Javanese in its own script: written without spaces, and not in any dictionary."""
    line = "".join(chr(0xA98F + (number * 7) % 33) for number in range(700))
    text = "\n".join(f"{line[begin : begin + 100]}꧉" for begin in range(0, 700, 100))
    assert "gopher_quality_few_words" not in verdict(text, "xx")
    assert "gopher_quality_few_words" in verdict(text, "en")


def test_a_page_whose_label_is_unsure_is_not_judged_by_the_words_of_the_language() -> None:
    line = "Kowane mutum {} yana da yancin rayuwa cikin salama da walwala."
    text = "\n".join(line.format(chr(97 + number) * 3) for number in range(9))
    assert "gopher_quality_stop_words" in verdict(text, "it")
    assert not any("stop" in why for why in verdict(text, "it", score=0.2))


@pytest.mark.parametrize("language", ["fi", "xx"])
def test_random_letters_are_dropped_because_none_of_their_words_recurs(language: str) -> None:
    rng = random.Random(5)
    made = ["".join(rng.choices("aeioklmnprstuvy", k=rng.randint(2, 9))) for _ in range(400)]
    lines = [f"{' '.join(made[begin : begin + 20]).capitalize()}." for begin in range(0, 400, 20)]
    assert "gopher_quality_no_words" in verdict("\n".join(lines), language)
    assert "gopher_quality_no_words" not in verdict("\n".join(lines[:4]), language)


def test_prose_whose_words_are_long_is_not_taken_for_random_letters(shared_data: Path) -> None:
    texts = [page for language in ("fi", "ko", "tr", "ta") for page in pages(shared_data, language)]
    assert len(texts) >= 8
    assert not [text for text in texts if "gopher_quality_no_words" in verdict(text, "xx")]


def test_a_general_limit_that_says_nothing_of_english_holds_in_every_language() -> None:
    config = ConsolidateConfig(filters=FILTERS, limits={"gopher_quality": {"min_recurring": 0.02, "max_mean_word": 9}})
    for language in ("de", OTHER):
        assert config.limits_of("web", language=language)["gopher_quality"]["min_recurring"] == 0.02
        assert config.limits_of("web", language=language)["gopher_quality"]["max_mean_word"] != 9


def test_values_of_a_language_come_from_its_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(3)
    rare = [f"{''.join(rng.choices('abcdefghijklmnop', k=14))}" for _ in range(900)]
    texts = [" ".join(rng.choice(["ja", "on", "mutta", *rng.choices(rare, k=3)]) for _ in range(300)) for _ in range(6)]
    file = tmp_path / "xx.jsonl"
    file.write_text("".join(json.dumps({"text": text, "source": "made"}) + "\n" for text in texts))
    assert main(["limits", "--language", "xx", "--reference", str(file)]) == 0
    made = tomllib.loads(capsys.readouterr().out)
    limits = made["consolidate"]["limits"]["lang"]["xx"]
    assert set(made["annotate"]["settings"]["gopher_quality"]["stop_words"]["xx"][:3]) == {"ja", "on", "mutta"}
    assert limits["gopher_quality"]["max_mean_word"] > 14
    assert 0.05 < limits["gopher_quality"]["min_stop_share"] < 0.25
    assert ConsolidateConfig(filters=FILTERS, limits={"lang": {"xx": limits}}).language_of("xx") == "xx"


def test_the_subject_of_one_manual_is_no_stop_word() -> None:
    one, other = ["the", "file", "is", "in", "the", "folder"], ["the", "people", "is", "in", "the", "house"]
    assert "file" not in stop_words_of([("a", one * 500), ("b", other * 500)])


def test_shipped_values_name_their_reference_and_are_valid_limits() -> None:
    languages = json.loads(FILE.read_text())["languages"]
    assert len(languages) > 40
    assert all(sum(of["reference"]["documents"].values()) >= 4 for of in languages.values())
    filters = ("language", "gopher_quality", "gopher_repetition", "fineweb")
    for code, limits in shipped().limits.items():
        tables = {} if code == OTHER else {"lang": {code: limits}}
        assert ConsolidateConfig(filters=filters, limits=tables)


def test_english_reference_gives_no_limits_as_these_are_the_published_ones() -> None:
    derived = derive("en", [Text("The cat is on the mat and the dog is in the house. " * 20, "made")] * 4, {})
    assert derived.limits == {}

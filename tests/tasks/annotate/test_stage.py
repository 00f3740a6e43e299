"""Contract of the annotate stage: one row of attributes per document, in the same place, and nothing dropped."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.annotate.catalogue import CATALOGUE, DEFAULT, load
from tasks.annotate.config import AnnotateConfig
from tasks.annotate.quality_score import QualityScore
from tasks.annotate.stage import ATTRIBUTES
from tasks.annotate.view import View
from tasks.artifact import Artifact
from tasks.config import canonical_json
from tasks.errors import InputError
from tasks.extract.config import ExtractConfig, FileSource

EXTRACT, ANNOTATE = "tasks.extract.stage", "tasks.annotate.stage"
# Without the model, so that these tests run wherever the code does.
RULES = AnnotateConfig(use=("gopher_quality", "gopher_repetition", "quality_score", "pii_email"), quality_sources=None)
PROSE = "The river ran down to a valley of stones, and people have lived with it for long. "
Run = Callable[..., Artifact]


def sentence(number: int) -> str:
    """A line whose words, but for the everyday ones, stand in no other line."""
    first, second, third = (f"w{'abcdefghij'[number % 10]}{number}{letter}" for letter in "xyz")
    return f"The {first} of {second} went to {third} with {first}{second}."


@pytest.fixture
def extracted(run_stage: Run, tmp_path: Path) -> Artifact:
    for kind in ("web-like", "code"):
        (tmp_path / kind).mkdir()
        for number in range(5):
            (tmp_path / kind / f"{number}.txt").write_text("\n".join(sentence(100 * number + i) for i in range(12)))
    (tmp_path / "web-like" / "mail.txt").write_text("😀 Write to jo@example.org 😀 or not. " + "Buy now. " * 90)
    files = tuple(FileSource(name=kind, kind="text", path=f"{tmp_path / kind}/*.txt") for kind in ("web-like", "code"))
    return run_stage(EXTRACT, ExtractConfig(files=files, parts=3))


def rows(artifact: Artifact, folder: str) -> list[dict[str, object]]:
    return [row for path in artifact.files(f"{folder}/") for row in artifact.table(path).to_pylist()]


def test_attributes_lie_beside_their_documents(run_stage: Run, extracted: Artifact) -> None:
    made = run_stage(ANNOTATE, RULES, {"extracted": extracted})
    assert [part.name for part in made.parts] == [part.name for part in extracted.parts]
    for part in made.parts:
        attributes = made.table(f"attributes/{part.name}.parquet")
        documents = extracted.table(f"documents/{part.name}.parquet")
        assert attributes.schema.equals(ATTRIBUTES)
        assert attributes["id"].equals(documents["id"])
    assert made.record.rows_in == made.record.rows_out == extracted.record.rows_out == 11
    assert made.record.rejected == {}


def test_the_same_bytes_on_any_number_of_workers(run_stage: Run, extracted: Artifact) -> None:
    made = [run_stage(ANNOTATE, RULES, {"extracted": extracted}, workers=n, version=f"w{n}") for n in (0, 1, 2)]
    assert len({one.record.content for one in made}) == 1


def test_spans_count_characters_also_behind_those_of_two_code_units(run_stage: Run, extracted: Artifact) -> None:
    made = run_stage(ANNOTATE, RULES, {"extracted": extracted})
    texts = {row["id"]: str(row["text"]) for row in rows(extracted, "documents")}
    found = [
        texts[row["id"]][span["start"] : span["end"]]  # type: ignore[index]
        for row in rows(made, "attributes")
        for span in row["pii_spans"]  # type: ignore[attr-defined]
    ]
    assert found == ["jo@example.org"]


def test_the_first_filter_gives_the_reason_and_only_chosen_sources_are_judged(
    run_stage: Run, extracted: Artifact
) -> None:
    def reasons(config: AnnotateConfig, version: str) -> list[object]:
        made = run_stage(ANNOTATE, config, {"extracted": extracted}, version=version)
        return sorted(row["quality_reason"] for row in rows(made, "attributes") if row["quality_reason"])  # type: ignore[type-var]

    assert reasons(RULES, "all") == ["gopher_quality_stop_words"]
    strict = {"gopher_quality": {"max_words": 60}, "gopher_repetition": {"max_duplicate_lines": 0.0}}
    both = RULES.model_copy(update={"settings": AnnotateConfig(use=RULES.use, settings=strict).settings})
    assert reasons(both, "both") == ["gopher_quality_many_words"] * 11
    code = both.model_copy(update={"quality_sources": ("code",)})
    assert reasons(code, "code") == ["gopher_quality_many_words"] * 5
    assert reasons(both.model_copy(update={"quality_sources": ()}), "none") == []


def test_a_document_that_breaks_an_annotator_keeps_its_place(
    run_stage: Run, extracted: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = QualityScore.annotate

    def fragile(self: QualityScore, view: View) -> dict[str, object]:
        if "jo@example.org" in view.text:
            raise RecursionError("too deep")
        return whole(self, view)

    monkeypatch.setattr(QualityScore, "annotate", fragile)
    config = RULES.model_copy(update={"quality_sources": ()})
    with pytest.raises(InputError, match="annotators failed on 1 of 11"):
        run_stage(ANNOTATE, config, {"extracted": extracted})
    made = run_stage(ANNOTATE, config, {"extracted": extracted}, max_bad_share=0.5)
    assert [row["id"] for row in rows(made, "attributes")] == [row["id"] for row in rows(extracted, "documents")]
    assert [row["quality_reason"] for row in rows(made, "attributes") if row["quality_reason"]] == ["poison"]
    assert b"RecursionError: too deep" in made.read(made.files("quarantine/")[0])


def test_a_missing_model_stops_the_stage_and_names_the_remedy(
    run_stage: Run, extracted: Artifact, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tasks.annotate.language import _model

    monkeypatch.setenv("SLUICE_MODELS", str(tmp_path / "none"))
    _model.cache_clear()
    with pytest.raises(InputError, match="make models"):
        run_stage(ANNOTATE, AnnotateConfig(), {"extracted": extracted})


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_annotator_stands_in_a_file_of_its_name_and_says_where_its_rules_are_from(name: str) -> None:
    annotator = load(name, {})
    assert type(annotator).__module__ == f"tasks.annotate.{name}"
    assert type(annotator).__doc__


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"use": ("gopher_qualty",)}, 'did you mean "gopher_quality"'),
        ({"settings": {"gopher_quality": {"min_word": 3}}}, 'did you mean "min_words"'),
        ({"settings": {"gopher_quality": {"min_words": -3}}}, "greater than or equal to 0"),
        ({"use": ("language",), "settings": {"pii_email": {}}}, "not in use"),
    ],
)
def test_wrong_settings_are_refused_when_the_recipe_is_read(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AnnotateConfig(**given)


def test_defaults_are_part_of_the_fingerprint() -> None:
    config = AnnotateConfig(settings={"gopher_quality": {"min_words": 30}})
    assert config.settings["gopher_quality"]["min_words"] == 30
    assert '"max_mean_word":10.0' in canonical_json(config)
    assert set(config.settings) == set(DEFAULT)


def test_reading_a_recipe_imports_nothing_heavy() -> None:
    import subprocess
    import sys

    code = (
        "import sys, tasks.annotate.config as a, tasks.extract.config as e; a.AnnotateConfig(); e.ExtractConfig(); "
        "print(sorted(set(sys.modules) & {'numpy', 'pyarrow', 'fasttext', 'resiliparse'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_the_score_prefers_prose_over_furniture() -> None:
    def score(text: str) -> float:
        return float(QualityScore().annotate(View(text))["quality_score"])

    article = PROSE * 40
    assert (
        0.0
        == score("")
        < score("Home\nNews\nHome\nNews")
        < score("Home\nNews\n" * 20 + article)
        < score(article)
        <= 1.0
    )
    assert score(article) < score(article * 2)

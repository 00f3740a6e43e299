"""Contract of the annotate stage: one row of attributes per document, at the same position, and nothing dropped."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact
from tasks.core.config import canonical_json
from tasks.core.errors import InputError
from tasks.filters.batch import SPLITS, DocumentBatch
from tasks.filters.catalogue import annotator
from tasks.filters.prose_score import ProseScore
from tasks.formats.documents.document import check_ids_digest, ids_digest
from tasks.formats.documents.groups import groups_of
from tasks.stages.annotate import DEFAULT, AnnotateConfig
from tasks.stages.extract.config import ExtractConfig, FileSource
from tests.conftest import SCATTERED
from tests.soak import soak_but
from tests.tasks.stages.dedup.made import found_in

EXTRACT, ANNOTATE = "tasks.stages.extract.stage", "tasks.stages.annotate.stage"
# Without the model, so that these tests need no download.
USE = ("gopher_quality", "gopher_repetition", "c4", "fineweb", "prose_score", "pii")
RULES = AnnotateConfig(use=USE)
PROSE = "The river ran down to a valley of stones, and people have lived with it for long. "
Run = Callable[..., Artifact]


def sentence(number: int) -> str:
    """A line whose words, except common ones, occur in no other line."""
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


def test_attributes_are_aligned_with_their_documents(run_stage: Run, extracted: Artifact) -> None:
    made = run_stage(ANNOTATE, RULES, {"extracted": extracted})
    groups = groups_of(made)
    assert list(groups) == list(USE)
    for name, group in groups.items():
        assert str(group.address) == f"test/measured/{name}@dev"
        assert [part.name for part in group.parts] == [part.name for part in extracted.parts]
        for part in group.parts:
            found = group.table(f"measured/{part.name}.parquet")
            documents = extracted.table(f"documents/{part.name}.parquet")
            assert found.schema.names == ["error", name]
            assert found.schema.field(name).type == annotator(name, {}).type()
            assert found.num_rows == documents.num_rows
            check_ids_digest(ids_digest(documents["id"]), found, "")
        assert group.record.rows_in == group.record.rows_out == 11
        assert group.verify() == []
    assert made.record.rows_in == made.record.rows_out == extracted.record.rows_out == 11
    assert made.record.rejected == {}


@pytest.mark.parametrize("workers", soak_but({0}, [SCATTERED, 2, 8]))
def test_the_same_bytes_on_any_number_of_workers(run_stage: Run, extracted: Artifact, workers: int) -> None:
    made = [run_stage(ANNOTATE, RULES, {"extracted": extracted}, workers=n, version=f"w{n}") for n in (0, workers)]
    assert len({one.record.content for one in made}) == 1
    contents = [{name: group.record.content for name, group in groups_of(one).items()} for one in made]
    assert all(one == contents[0] for one in contents)
    assert {str(group.address) for group in groups_of(made[1]).values()} == {
        f"test/measured/{one}@w{workers}" for one in USE
    }


def test_measurements_do_not_depend_on_batches(run_stage: Run, extracted: Artifact) -> None:
    one_by_one = RULES.model_copy(update={"batch_bytes": 1})
    made = [
        run_stage(ANNOTATE, config, {"extracted": extracted}, version=f"{config.batch_bytes}")
        for config in (RULES, one_by_one)
    ]
    assert found_in(made[0]) == found_in(made[1])
    assert made[0].record.content == made[1].record.content
    assert made[0].record.fingerprint != made[1].record.fingerprint


def test_markdown_is_measured_without_its_marks_and_places_are_those_of_the_stored_text(
    run_stage: Run, tmp_path: Path
) -> None:
    items = "".join(f"<li>{sentence(number)}</li>" for number in range(9))
    table = "<table><tr><th>Part</th><th>Mass</th></tr><tr><td>Hinge</td><td>3 kg</td></tr></table>"
    page = f"<h1>Doors</h1><p>{PROSE * 3}</p><ul>{items}<li>Write to jo@example.org.</li></ul>{table}<p>{PROSE * 3}</p>"
    (tmp_path / "page.html").write_text(f"<body><article>{page}</article></body>")
    files = (FileSource(name="pages", kind="html", path=f"{tmp_path}/*.html"),)
    found = {}
    for form in ("plain", "markdown"):
        config = ExtractConfig.model_validate({"files": files, "text": form})
        extracted = run_stage(EXTRACT, config, version=form)
        (document,) = rows(extracted, "documents")
        made = groups_of(run_stage(ANNOTATE, RULES, {"extracted": extracted}, version=form))
        found[form] = document, {name: rows(group, "measured")[0][name] for name, group in made.items()}
    (plain, values), (marked, marked_values) = found["plain"], found["markdown"]
    assert "# Doors" in marked["text"]
    assert "| Hinge | 3 kg |" in marked["text"]
    for name in ("gopher_quality", "gopher_repetition", "fineweb", "prose_score"):
        assert marked_values[name] == values[name], name
    for document, of in ((plain, values), (marked, marked_values)):
        (span,) = of["pii"]["spans"]
        assert document["text"][span["start"] : span["end"]] == "jo@example.org"


def test_spans_count_code_points_and_not_utf_16_units(run_stage: Run, extracted: Artifact) -> None:
    made = run_stage(ANNOTATE, RULES, {"extracted": extracted})
    texts = {row["id"]: str(row["text"]) for row in rows(extracted, "documents")}
    found = [texts[row["id"]][span["start"] : span["end"]] for row in found_in(made) for span in row["pii"]["spans"]]
    assert found == ["jo@example.org"]


def test_a_document_on_which_an_annotator_fails_keeps_its_row(
    run_stage: Run, extracted: Artifact, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = ProseScore.measure

    def fragile(self: ProseScore, batch: DocumentBatch) -> object:
        if any("jo@example.org" in text for text in batch.texts):
            raise RecursionError("too deep")
        return whole(self, batch)

    sound = run_stage(ANNOTATE, RULES, {"extracted": extracted}, version="sound")
    monkeypatch.setattr(ProseScore, "measure", fragile)
    said = (
        r"annotators failed on 1 of 11 documents \(prose_score on 1\).*column `error` of .*/prose_score/dev/measured/"
    )
    with pytest.raises(InputError, match=said):
        run_stage(ANNOTATE, RULES, {"extracted": extracted})
    # A failure of one annotator does not affect the others.
    done = {path.parts[-3] for path in tmp_path.rglob("test/measured/*/dev/.artifact.json")}
    assert done == {*USE} - {"prose_score"}
    made = run_stage(ANNOTATE, RULES, {"extracted": extracted}, max_bad_share=0.5)
    assert [row["id"] for row in found_in(made)] == [row["id"] for row in rows(extracted, "documents")]
    before = {row["id"]: row for row in found_in(sound)}
    (broken,) = [row for row in found_in(made) if row["error"]]
    assert broken == {**before[broken["id"]], "error": "RecursionError: too deep", "prose_score": None}
    assert [row for row in found_in(made) if not row["error"]] == [
        row for row in before.values() if row["id"] != broken["id"]
    ]


@pytest.mark.parametrize("name", [*USE, "lexicon", "url_blocklist"])
def test_an_annotator_declares_the_splits_that_it_reads(name: str) -> None:
    batch = DocumentBatch([PROSE])
    one = annotator(name, {})
    one.prepare({})
    one.annotate(batch)
    read = {split for split in SPLITS if split in vars(batch)}
    assert read == {*one.splits}
    batch.free_splits(but=SPLITS)
    assert {split for split in SPLITS if split in vars(batch)} == read
    batch.free_splits(but=())
    assert not any(split in vars(batch) for split in SPLITS)


def test_a_missing_model_stops_the_stage_with_a_remedy(
    run_stage: Run, extracted: Artifact, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLUICE_MODELS", str(tmp_path / "none"))
    with pytest.raises(InputError, match="make models"):
        run_stage(ANNOTATE, AnnotateConfig(), {"extracted": extracted})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"use": ("gopher_qualty",)}, 'did you mean "gopher_quality"'),
        ({"settings": {"language": {"char": 3}}}, 'did you mean "chars"'),
        ({"settings": {"language": {"chars": -3}}}, "greater than or equal to 1"),
        ({"use": ("language",), "settings": {"fineweb": {"short": 9}}}, "not in use"),
        ({"use": ("quality", "language")}, "quality reads the attributes of language: put language before quality"),
        (
            {"use": ("perplexity", "pii", "language")},
            "perplexity reads the attributes of language: put language before",
        ),
        (
            {"use": ("gopher_quality", "language")},
            "gopher_quality reads the attributes of language: put language before",
        ),
        ({"use": ("quality", "pii")}, "quality needs language: put language before quality in use"),
    ],
)
def test_invalid_settings_are_refused_when_the_recipe_is_read(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AnnotateConfig(**given)


def test_an_annotator_may_come_anywhere_after_its_input_or_run_without_it() -> None:
    for use in (("language", "pii", "quality", "perplexity"), ("gopher_quality", "perplexity"), ("pii", "language")):
        assert AnnotateConfig(use=use).use == use


def test_defaults_are_in_the_fingerprint() -> None:
    config = AnnotateConfig(settings={"language": {"min_paragraph": 30}})
    assert config.settings["language"]["min_paragraph"] == 30
    assert '"chars":2000' in canonical_json(config)
    assert set(config.settings) == set(DEFAULT)


def test_reading_a_recipe_imports_nothing_heavy() -> None:
    import subprocess
    import sys

    code = (
        "import sys, tasks.stages.annotate as a, tasks.stages.extract.config as e; "
        "import tasks.stages.consolidate.config as c; "
        "from tasks.filters.catalogue import CATALOGUE; "
        "use = tuple(name for name in CATALOGUE if name != 'hugging_face'); "
        "a.AnnotateConfig(); e.ExtractConfig(); c.ConsolidateConfig(); a.AnnotateConfig(use=use); "
        "print(sorted(set(sys.modules) & {'numpy', 'pyarrow', 'fasttext', 'resiliparse', 'sklearn', 'phonenumbers'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_the_score_prefers_prose_over_boilerplate() -> None:
    texts = ["", "Home\nNews\nHome\nNews", "Home\nNews\n" * 20 + PROSE * 40, PROSE * 40, PROSE * 80]
    found = ProseScore().annotate(DocumentBatch(texts)).field("score").to_pylist()
    assert found[0] == 0.0
    assert found == sorted(found)
    assert found[-1] <= 1.0

"""Contract of groups: the measurements of an annotator are repeated only if one of its inputs changed.

Rows are counted at the calls of annotators. Everything runs through the runner, like a user's versions.
"""

import json
import shutil
import sys
import tomllib
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import DriftError, InputError
from tasks.core.ledger import Ledger
from tasks.filters import catalogue
from tasks.filters.base import Annotator
from tasks.filters.batch import DocumentBatch
from tasks.filters.catalogue import annotator
from tasks.filters.prose_score import ProseScore
from tasks.formats.documents.groups import group_refs, groups_of
from tasks.run.forecast import inputs_at
from tasks.run.recipe import Recipe
from tasks.run.result import StageResult
from tasks.run.runner import open_store, run_stage
from tasks.run.shell import main
from tasks.run.trace.text import render
from tasks.run.trace.trace import trace
from tasks.run.tracking import TrackingContext
from tasks.stages.annotate.measure import measure_part, run_annotators
from tests.s3_server import S3Server
from tests.tasks.run.test_changed_limit import STAGES, USE, recipe, recipe_in, run
from tests.tasks.stages.classifiers.texts_by_hand import jsonl
from tests.tasks.stages.dedup.made import found_in

__all__ = ["recipe"]

DOCUMENTS = 8
NO_FILTERS = {"consolidate.filters": [], "consolidate.limits": {}}


class Letters(Annotator):
    """Replaces `language`: returns the last letter of a text as its language."""

    measures: ClassVar = {"label": "string"}
    chars: int = 10

    def measure(self, batch: DocumentBatch) -> dict[str, Any]:
        return {"label": [f"{text[: self.chars][-1:]}" for text in batch.texts]}

    def summary(self, column: pa.StructArray) -> dict[str, int]:
        return {"measured": len(column)}


class Reader(Annotator):
    """Records the columns of others that it receives."""

    measures: ClassVar = {"language": "string", "found": "string"}
    reads: ClassVar = ("language",)

    def measure(self, batch: DocumentBatch) -> dict[str, Any]:
        return {"language": list(batch.languages), "found": [",".join(sorted(batch.annotations))] * len(batch)}


class Stranger(Reader):
    """Like `Reader`, without declaring inputs."""

    reads: ClassVar = ()


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test annotators in the catalogue, including `language`, so that no model is needed."""
    for name, kind in (("language", Letters), ("reader", Reader), ("stranger", Stranger)):
        module = ModuleType(f"tasks.filters.made_{name}")
        module.__dict__[kind.__name__] = type(kind.__name__, (kind,), {"__module__": module.__name__})
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(catalogue.CATALOGUE, name, module.__name__)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the documents passed to each annotator."""
    counts: Counter[str] = Counter()
    annotate = Annotator.annotate

    def counting(self: Annotator, batch: DocumentBatch) -> pa.StructArray:
        found = annotate(self, batch)
        counts[type(self).__name__] += len(batch)
        return found

    monkeypatch.setattr(Annotator, "annotate", counting)
    return counts


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """A recipe with version 1, which no test changes."""
    made = recipe_in(tmp_path_factory.mktemp("first"))
    run(made, "1")
    return made


@pytest.fixture
def begun(first: Recipe, tmp_path: Path) -> Recipe:
    """A recipe with version 1, in the test's own store."""
    shutil.copytree(open_store(first).root, tmp_path / "store")
    return first.override({"place.store": str(tmp_path / "store")})


def one(recipe: Recipe, stage: str, version: str, source: str | None = None) -> StageResult:
    return run_stage(recipe, stage, version=version, source_version=source, tracking=TrackingContext("", recipe.name))


def artifact(recipe: Recipe, kind: str, version: str) -> Artifact:
    return Artifact.open_at(open_store(recipe), ArtifactId(f"demo/{kind}", version))


def origins(recipe: Recipe, version: str) -> dict[str, str]:
    """Returns the address of every group of a version, by annotator."""
    return {name: ref.address for name, ref in group_refs(artifact(recipe, "attributes", version)).items()}


def at(version: str, *names: str) -> dict[str, str]:
    return {name: f"demo/measured/{name}@{version}" for name in names}


def test_a_new_annotator_costs_only_its_own_pass(
    recipe: Recipe, counted: Counter[str], caplog: pytest.LogCaptureFixture
) -> None:
    run(recipe, "1")
    assert set(counted.values()) == {DOCUMENTS}
    counted.clear()
    more = recipe.override(
        {
            "annotate.use": [*USE, "c4"],
            "consolidate.filters": ["gopher_quality", "gopher_repetition", "c4"],
            "consolidate.limits.c4.min_sentences": 1,
        }
    )
    with caplog.at_level("INFO"):
        second = run(more, "2", "1")
    assert counted == {"C4Measures": DOCUMENTS}
    assert origins(recipe, "2") == {**at("1", *USE), **at("2", "c4")}
    # Duplicates depend on the one group that dedup reads.
    assert [stage for stage in STAGES if not second[stage].skipped] == ["annotate", "consolidate"]
    told = f"measures c4; {', '.join(USE)}: as measured at 1"
    assert f"[demo/attributes@2] {told}" in caplog.messages
    record = artifact(recipe, "attributes", "2").record
    assert record.note == told
    assert (record.metrics["groups_measured"], record.metrics["groups_taken_over"]) == (1, len(USE))
    assert not list(Path(open_store(recipe).root).glob("demo/measured/pii/2"))


def test_groups_measured_incrementally_give_the_same_documents_as_one_pass(recipe: Recipe) -> None:
    few = recipe.override({"annotate.use": ["prose_score", "pii"], **NO_FILTERS})
    run(few, "1")
    run(few.override({"annotate.use": ["prose_score", "pii", "gopher_quality"]}), "2", "1")
    whole = recipe.override({"annotate.use": ["gopher_quality", "gopher_repetition", "prose_score", "pii"]})
    bit_by_bit, at_once = run(whole, "3", "2"), run(whole, "4")
    assert {ref.partition("@")[2] for ref in origins(recipe, "3").values()} == {"1", "2", "3"}
    for stage in STAGES:
        assert bit_by_bit[stage].content == at_once[stage].content, stage
        assert bit_by_bit[stage].fingerprint == at_once[stage].fingerprint, stage
    assert at_once["consolidate"].rows["out"] > 0


def test_the_join_equals_one_table_of_all_annotators(begun: Recipe) -> None:
    joint = inputs_at(open_store(begun), "demo", "1")
    annotators = {name: annotator(name, {}) for name in USE}
    for part in joint.names():
        documents = joint.extracted.table(f"documents/{part}.parquet", ["id", "text", "source", "url", "form"])
        found = run_annotators(documents, annotators, {})
        table = {name: found[name].column for name in USE}
        errors = pa.nulls(documents.num_rows, pa.string())
        joined = joint.parts.part(part, ["id"], USE, ["id"])[1]
        assert joined.drop_columns(["paged"]).equals(pa.table({"id": documents["id"], "error": errors, **table}))


def test_a_changed_setting_reruns_only_affected_annotators(recipe: Recipe, own: None, counted: Counter[str]) -> None:
    several = recipe.override({"annotate.use": ["language", "reader", "stranger", *USE], **NO_FILTERS})
    one(several, "extract", "1")
    one(several, "annotate", "1")
    for number, (changed, measures) in enumerate(
        [
            ({"annotate.settings.prose_score.full_length": 9000}, {"ProseScore"}),
            ({"annotate.settings.language.chars": 4}, {"Letters", "Reader", "GopherQualityMeasures"}),
            ({"annotate.settings.gopher_quality.english": ["x"]}, {"GopherQualityMeasures"}),
            ({"annotate.batch_bytes": 1}, set()),
            ({"annotate.use": ["pii", "language", "gopher_quality", "prose_score"]}, set()),
        ],
        2,
    ):
        counted.clear()
        assert not one(several.override(changed), "annotate", str(number), "1").skipped
        assert counted == dict.fromkeys(measures, DOCUMENTS), changed
    # An annotator that optionally reads `language` measures differently without it.
    counted.clear()
    one(several.override({"annotate.use": ["gopher_quality", "prose_score", "pii"]}), "annotate", "7", "1")
    assert counted == {"GopherQualityMeasures": DOCUMENTS}


def test_counts_of_an_annotator_are_metrics_also_when_its_group_is_taken_over(recipe: Recipe, own: None) -> None:
    first = recipe.override({"annotate.use": ["language", "prose_score", "pii"], **NO_FILTERS})
    one(first, "extract", "1")
    one(first, "annotate", "1")
    one(first.override({"annotate.use": ["language", "prose_score", "pii", "reader"]}), "annotate", "2", "1")
    found = [artifact(recipe, "attributes", version).record.metrics["language/measured"] for version in "12"]
    assert found == [DOCUMENTS, DOCUMENTS]


def test_an_annotator_sees_exactly_its_declared_inputs_whenever_they_were_measured(recipe: Recipe, own: None) -> None:
    first = recipe.override({"annotate.use": ["language", "prose_score", "pii"], **NO_FILTERS})
    one(first, "extract", "1")
    one(first, "annotate", "1")
    more = first.override({"annotate.use": ["language", "prose_score", "pii", "reader", "stranger"]})
    one(more, "annotate", "2", "1")
    one(more, "extract", "3")
    one(more, "annotate", "3")
    for version in "23":
        for row in found_in(artifact(recipe, "attributes", version)):
            assert row["reader"] == {"language": row["language"]["label"], "found": "language"}
            assert row["stranger"] == {"language": "und", "found": ""}
    contents = [[group.record.content for group in groups_of(artifact(recipe, "attributes", v)).values()] for v in "23"]
    assert contents[0] == contents[1]


def test_a_changed_file_or_newer_code_reruns_only_its_annotator(
    recipe: Recipe, counted: Counter[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = tmp_path / "words.txt"
    words.write_text("w1x1\n")
    listed = recipe.override({"annotate.use": [*USE, "lexicon"], "annotate.settings.lexicon.path": str(words)})
    run(listed, "1")
    words.write_text("w2x2\nw3x3\n")
    counted.clear()
    run(listed, "2", "1")
    assert counted == {"LexiconMeasures": DOCUMENTS}
    monkeypatch.setattr(ProseScore, "version", ProseScore.version + 1)
    counted.clear()
    run(listed, "3", "2")
    assert counted == {"ProseScore": DOCUMENTS}
    with pytest.raises(DriftError, match="its input code:prose_score"):
        one(listed, "annotate", "2", "1")
    assert not Ledger(open_store(recipe)).drift("demo/attributes@3")
    assert origins(recipe, "3") == {**at("1", *USE), **at("2", "lexicon"), **at("3", "prose_score")}


def test_newer_words_of_scripts_without_spaces_rerun_only_annotators_that_count_them(
    recipe: Recipe, counted: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(recipe, "1")
    monkeypatch.setattr("tasks.stages.annotate.stage.WORDS", "icu 99")
    counted.clear()
    run(recipe, "2", "1")
    assert counted == dict.fromkeys(("GopherQualityMeasures", "GopherRepetitionMeasures", "Pii"), DOCUMENTS)


MODELS = """
[[classifiers.train]]
name = "NAME"
positive = "yes"
heldout_share = 0.3
fasttext = { epochs = 2, dimensions = 4, buckets = 100 }
texts = [{ path = "FOLDER/NAME.jsonl", label_field = "label" }]
"""


def test_a_changed_model_reruns_the_annotators_that_use_it(
    recipe: Recipe, counted: Counter[str], tmp_path: Path
) -> None:
    for name in ("one", "other"):
        rows = ({"text": f"{name} word{n % 7} of {n}", "label": "yes" if n % 2 else "no"} for n in range(80))
        jsonl(tmp_path / f"{name}.jsonl", rows)
    both = "".join(MODELS.replace("NAME", name).replace("FOLDER", str(tmp_path)) for name in ("one", "other"))
    asked = recipe.override(
        {
            **tomllib.loads(both),
            "annotate.use": ["prose_score", "pii", "classifier", "topic"],
            "annotate.settings.classifier.models": ["one"],
            "annotate.settings.topic.model": "other",
            **NO_FILTERS,
        }
    )
    for stage in ("extract", "train_classifiers", "annotate"):
        one(asked, stage, "1")
    jsonl(tmp_path / "other.jsonl", ({"text": f"other {n}", "label": "yes" if n % 3 else "no"} for n in range(80)))
    counted.clear()
    for stage in ("extract", "train_classifiers", "annotate"):
        one(asked, stage, "2", "1")
    assert counted == {"TopicMeasures": DOCUMENTS}
    assert origins(recipe, "2") == {**at("1", "prose_score", "pii", "classifier"), **at("2", "topic")}
    inputs = {ref.role: ref.address for ref in artifact(recipe, "measured/topic", "2").record.inputs}
    assert inputs == {"extracted": "demo/extracted@2", "classifiers": "demo/classifiers@2"}
    # An annotator that declares no model gets none.
    assert not artifact(recipe, "measured/pii", "1").record.config["models"]


def test_changed_documents_are_measured_again(begun: Recipe, counted: Counter[str]) -> None:
    counted.clear()
    run(begun.override({"extract.min_chars": 2}), "2", "1")
    assert counted == dict.fromkeys(counted, DOCUMENTS)
    assert len(counted) == len(USE)
    assert origins(begun, "2") == at("2", *USE)


def test_a_group_is_found_through_any_version_that_uses_it(begun: Recipe, counted: Counter[str]) -> None:
    run(begun.override({"annotate.use": [*USE, "c4"]}), "2", "1")
    run(begun.override({"annotate.use": [*USE, "c4"], "consolidate.samples": 3}), "3", "2")
    counted.clear()
    run(begun.override({"annotate.use": [*USE, "c4", "fineweb"]}), "4", "3")
    assert counted == {"FinewebMeasures": DOCUMENTS}
    # A version in which only dedup ran again also refers to all groups.
    one(begun.override({"dedup.jaccard": 0.9, "annotate.use": [*USE, "c4", "fineweb"]}), "dedup", "5", "4")
    counted.clear()
    assert one(begun.override({"annotate.use": [*USE, "c4", "fineweb"]}), "annotate", "6", "5").skipped
    assert not counted


def test_groups_are_equal_on_an_object_store_and_in_a_folder(
    recipe: Recipe, s3: S3Server, counted: Counter[str]
) -> None:
    contents = []
    for store in (open_store(recipe).root, "s3://sluice/groups"):
        there = recipe.override({"place.store": store})
        for version, source, use in (("1", None, USE), ("2", "1", [*USE, "c4"])):
            counted.clear()
            for stage in ("extract", "annotate"):
                made = one(there.override({"annotate.use": use}), stage, version, source)
                contents.append((stage, made.content))
        assert counted == {"C4Measures": DOCUMENTS}
        assert origins(there, "2") == {**at("1", *USE), **at("2", "c4")}
    assert contents[: len(contents) // 2] == contents[len(contents) // 2 :]


class Killed(BaseException):
    pass


def test_a_killed_run_keeps_groups_that_a_changed_recipe_does_not_affect(
    recipe: Recipe, counted: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = recipe.override({"extract.parts": 4})
    one(parts, "extract", "1")
    sizes = [part.rows_out for part in artifact(recipe, "extracted", "1").parts]
    assert len([size for size in sizes if size]) > 2
    done = []

    def dies(*arguments: Any) -> Any:
        if len(done) == 2:
            raise Killed
        done.append(arguments[1][0])
        return measure_part(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr("tasks.stages.annotate.stage.measure_part", dies)
        with pytest.raises(Killed):
            one(parts, "annotate", "1")
    rest = sum(sizes[2:])
    counted.clear()
    one(parts.override({"annotate.settings.prose_score.full_length": 9000}), "annotate", "1")
    assert counted == {
        "ProseScore": DOCUMENTS, "GopherQualityMeasures": rest, "GopherRepetitionMeasures": rest, "Pii": rest
    }  # fmt: skip


def test_measurements_of_an_unfinished_version_are_reused_or_removed(
    recipe: Recipe, counted: Counter[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one(recipe, "extract", "1")
    whole = ProseScore.measure
    monkeypatch.setattr(ProseScore, "measure", lambda self, batch: [][1])
    with pytest.raises(InputError, match="annotators failed on 8 of 8 documents"):
        one(recipe, "annotate", "1")
    monkeypatch.setattr(ProseScore, "measure", whole)
    monkeypatch.setattr(ProseScore, "version", 2)
    counted.clear()
    kinds = recipe.override({"annotate.settings.pii.kinds": ["email"]})
    with caplog.at_level("WARNING"):
        one(kinds, "annotate", "1")
    assert counted == {"ProseScore": DOCUMENTS, "Pii": DOCUMENTS}
    (said,) = [
        message for message in caplog.messages if "removing measurements with other settings or inputs" in message
    ]
    assert "demo/measured/pii@1" in said
    assert "settings.kinds was ['email', 'phone'" in said


def test_a_group_used_by_another_version_is_not_overwritten(begun: Recipe) -> None:
    run(begun.override({"annotate.use": [*USE, "c4"]}), "2", "1")
    longer = begun.override({"annotate.settings.prose_score.full_length": 9000})
    with pytest.raises(DriftError, match=r"demo/attributes@1 exists with another fingerprint: .*full_length"):
        one(longer, "annotate", "1")
    artifact(begun, "attributes", "1").remove()
    said = (
        r"demo/measured/prose_score@1 exists with another fingerprint: settings.full_length was \d+ and is 9000; "
        r"demo/attributes@2 refers to it"
    )
    with pytest.raises(DriftError, match=said):
        one(longer, "annotate", "1")
    artifact(begun, "attributes", "2").remove()
    one(longer, "annotate", "1")
    assert origins(begun, "1") == at("1", *USE)


def test_only_a_deleted_group_is_measured_again(
    begun: Recipe, counted: Counter[str], capsys: pytest.CaptureFixture[str]
) -> None:
    more = begun.override({"annotate.use": [*USE, "c4"]})
    before = run(more, "2", "1")
    store = open_store(begun)
    shutil.rmtree(Path(store.root) / "demo" / "measured" / "pii" / "1")
    lost = (
        r"demo/attributes@2 is made of demo/measured/pii@1, which is gone.*remove .*/demo/attributes/2 and run annotate"
    )
    with pytest.raises(InputError, match=lost):
        one(more.override({"consolidate.samples": 3}), "consolidate", "3", "2")
    assert main(["what-if", "--recipe", more.text, "--version", "2"]) == 2
    assert "which is gone" in capsys.readouterr().err
    assert "measured:pii: demo/measured/pii@1 is gone" in Ledger(store).drift("demo/attributes@2")
    artifact(begun, "attributes", "2").remove()
    counted.clear()
    again = run(more, "2", "1")
    assert counted == {"Pii": DOCUMENTS}
    assert [stage for stage in STAGES if not again[stage].skipped] == ["annotate"]
    assert again["annotate"].content == before["annotate"].content
    assert origins(begun, "2") == {**at("1", *USE), **at("2", "c4", "pii")}


def test_a_version_with_a_deleted_group_is_not_adopted(recipe: Recipe, counted: Counter[str]) -> None:
    first = run(recipe, "1")
    shutil.rmtree(Path(open_store(recipe).root) / "demo" / "measured" / "pii" / "1")
    counted.clear()
    second = run(recipe, "2", "1")
    assert counted == {"Pii": DOCUMENTS}
    assert [stage for stage in STAGES if not second[stage].skipped] == ["annotate"]
    assert second["annotate"].content == first["annotate"].content
    assert origins(recipe, "2") == {**at("1", *USE), **at("2", "pii")}


def test_the_ledger_links_a_column_and_its_group(begun: Recipe) -> None:
    run(begun.override({"annotate.use": [*USE, "c4"]}), "2", "1")
    ledger = Ledger(open_store(begun))
    assert {"demo/measured/c4@2", "demo/measured/pii@1"} < set(ledger.ancestors("demo/documents@2"))
    assert {"demo/attributes@1", "demo/attributes@2"} < set(ledger.descendants("demo/measured/pii@1"))
    record = ledger.find("demo/measured/pii@1").record
    assert record.config["settings"]["kinds"][:2] == ["email", "phone"]
    assert [ref.address for ref in record.inputs] == ["demo/extracted@1"]
    index = ledger.find("demo/attributes@2")
    assert [row["annotator"] for row in json.loads(index.read("groups.json"))] == [*USE, "c4"]


def test_a_trace_names_the_group_behind_every_column(begun: Recipe) -> None:
    run(begun.override({"annotate.use": [*USE, "c4"]}), "2", "1")
    answer = trace(open_store(begun), "demo", "2", "file://texts/0.txt")
    found = answer.to_json()
    assert found["artifacts"]["attributes"] == "demo/attributes@2"
    assert {name: one["group"] for name, one in found["measured"].items()} == {**at("1", *USE), **at("2", "c4")}
    c4 = artifact(begun, "measured/c4", "2").record
    assert f"demo/measured/pii@1 ({found['measured']['pii']['fingerprint'][:12]})" in render(answer)
    assert found["measured"]["c4"]["fingerprint"] == c4.fingerprint

"""A run that starts from the weights of another: lineage, lookups and takedowns include both.

Run the soak tests after a change of what is registered or sent to MLflow.
"""

import json
import logging
import re
import tomllib
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.errors import InputError, RecipeError
from tasks.core.ledger import Ledger
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.run.inputs import resolve, with_recorded_previous
from tasks.run.lineage import artifacts_of_version
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.runner import join_stage, run_stage
from tasks.run.trace.explain import explain
from tasks.run.trace.text import render, render_explanation
from tasks.run.trace.trace import trace
from tasks.run.tracking import TrackingContext
from tasks.stages.spans import SpansConfig
from tests.conftest import run_stage_in
from tests.corpora import tokens_in
from tests.taken_down import take_down
from tests.tasks.run.months import FROM_OCTOBER, PAGES, READ, Months, months
from tests.tasks.run.test_recipe_validation import BOOKS, read

__all__ = ["months"]


def test_the_checkpoint_is_an_input_in_fingerprint_and_ledger(months: Months) -> None:
    november = months.checkpoint("november").record
    (initial,) = (ref for ref in november.inputs if ref.role == "initial")
    october = months.checkpoint("october").record
    assert (initial.address, initial.content) == ("test/checkpoint@october", october.content)
    assert "test/checkpoint@november" in Ledger(months.store).descendants("test/checkpoint@october")
    assert november.config["init_from"] == "test/checkpoint@october"
    assert "init_from" not in october.config
    assert "began from test/checkpoint@october" in november.note
    assert months.run("train", "november", train__init_from="test/checkpoint@october").skipped
    recipe = months.recipe
    prints = [
        resolve(one, months.store, "train", "other", "november", "").fingerprint
        for one in (
            recipe.override(FROM_OCTOBER),
            recipe.override({"train.init_from": "test/checkpoint@november"}),
            recipe,
        )
    ]
    assert prints[0] == november.fingerprint
    assert len(set(prints)) == 3


def test_a_version_with_the_same_settings_and_inputs_adopts_it_with_its_origin(months: Months) -> None:
    recipe = months.recipe.override(FROM_OCTOBER)
    join_stage(recipe, "train", version="again", source_version="november")  # without adoption it would train
    again = months.run("train", "again", "november", train__init_from="test/checkpoint@october")
    assert again.skipped
    assert (
        trace(months.store, "test", "again", "step:0").to_json()["before"][0]["checkpoint"] == "test/checkpoint@october"
    )


def test_the_previous_version_is_the_newest_at_the_start_of_the_run(months: Months) -> None:
    recipe = months.recipe.override({"train.init_from": "test/checkpoint@previous"})

    def chosen(version: str) -> str:
        found = resolve(recipe, months.store, "train", version, "november", "")
        return str(found.inputs["initial"].address) if "initial" in found.inputs else ""

    assert chosen("next") not in ("", "test/checkpoint@october")
    # A killed attempt started when October existed and November did not, or before both.
    later = months.checkpoint("october").record.finished + timedelta(seconds=1)
    assert later < months.checkpoint("november").record.finished
    for begun, name in ((later, "test/checkpoint@october"), (datetime(2001, 1, 1), "")):
        with months.store.write("test/checkpoint/killed/.epochs/000001.json") as file:
            file.write(json.dumps({"attempt": "a", "host": "h", "started": f"{begun:%Y-%m-%d %H:%M:%S} UTC"}).encode())
        assert chosen("killed") == name
    # With this setting the initial weights of november are adopted, and not replaced by november.
    inputs = months.checkpoint("november").record.inputs
    found = resolve(recipe, months.store, "train", "next", "november", "")
    same = with_recorded_previous(
        found,
        months.checkpoint("november").record.model_copy(
            update={"fingerprint": found.fingerprint_with(sorted(inputs, key=lambda ref: ref.role))}
        ),
    )
    assert same
    assert "test/checkpoint@october" in {ref.address for ref in same.refs}
    made = resolve(recipe, months.store, "train", "november", None, "")
    assert str(made.inputs["initial"].address) == "test/checkpoint@october", "what it was made from"


def test_without_a_previous_version_the_run_starts_from_random_weights_and_logs_it(
    months: Months, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        months.run("train", "first", "october", train__init_from="nobody/checkpoint@previous")
    record = months.checkpoint("first").record
    said = "began from random weights, since no other version of nobody/checkpoint was complete"
    assert record.note.endswith(f"; {said}")
    assert f"[test/checkpoint@first] {said}" in caplog.text
    assert "initial" not in {ref.role for ref in record.inputs}
    assert trace(months.store, "test", "first", PAGES[0]["url"]).to_json()["before"] == []


@pytest.mark.soak
def test_mlflow_records_the_checkpoint_at_the_run_and_the_registered_model(
    months: Months, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)  # where it keeps files
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    settings = {"train__init_from": "test/checkpoint@october", "train__model__rope_theta": 500_000.0}
    for stage in ("train", "evaluate", "register"):
        months.run(stage, "tracked", "november", TrackingContext(uri, "test"), **settings)
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    experiment = client.get_experiment_by_name("test")
    assert experiment
    (run,) = client.search_runs([experiment.experiment_id], "tags.`sluice.stage` = 'train'")
    october = months.checkpoint("october").record
    (dataset,) = (one for one in run.inputs.dataset_inputs if one.tags[0].value == "initial")
    assert (dataset.dataset.name, dataset.dataset.digest) == (october.artifact, october.content[:16])
    note = run.data.tags["mlflow.note.content"]
    assert "began from test/checkpoint@october, with rope_theta 500000.0 (was 10000.0)" in note
    (model,) = client.search_model_versions("name='test'")
    assert model.tags["sluice.initial"] == f"test/checkpoint@october {october.fingerprint[:16]}"
    assert model.tags["sluice.artifact"] == "test/model@tracked"


def test_a_page_is_traced_to_the_steps_of_both_runs(months: Months) -> None:
    october, november = months.steps("october"), months.steps("november")
    fates = set()
    for row in PAGES:
        answer = trace(months.store, "test", "november", row["url"])
        found = answer.to_json()
        (before,) = found["before"]
        own, earlier = ([one["steps"] for one in part["documents"]] for part in (found, before))
        assert before["checkpoint"] == "test/checkpoint@october"
        assert own == ([november[row["id"]]] if row in READ["november"] else [])
        assert earlier == ([october[row["id"]]] if row in READ["october"] else [])
        assert trace(months.store, "test", "november", row["id"]).to_json()["before"] == found["before"]
        fates.add((bool(own), bool(earlier)))
        text = render(answer)
        assert "before: test/checkpoint@october, from whose weights the run began" in text
        assert ("none of the 12 steps read it" in text.partition("before:")[2]) == (not earlier or not earlier[0]) or (
            "held out" in text
        )
    assert fates == {(True, False), (False, True), (True, True)}
    assert trace(months.store, "test", "october", PAGES[0]["url"]).to_json()["before"] == []


def test_traces_of_a_domain_and_a_step_include_the_previous_run(months: Months) -> None:
    found = trace(months.store, "test", "november", "domain:h3.org").to_json()
    counts = [sum("//h3.org/" in row["url"] for row in READ[month]) for month in ("november", "october")]
    assert [found["count"], found["before"][0]["count"]] == counts
    step = render(trace(months.store, "test", "november", "step:3"))
    assert "before: test/checkpoint@october, from whose weights the run began\n  steps      12" in step


def test_artifacts_of_a_version_are_not_searched_in_the_previous_run(months: Months, tmp_path: Path) -> None:
    found = trace(months.store, "test", "november", PAGES[59]["url"]).to_json()["artifacts"]
    assert {name for name in found.values() if not name.endswith("@november")} == set()

    def by_hand(kind: str, version: str, **inputs: Artifact) -> Artifact:
        output = Output(Store(str(tmp_path)), ArtifactId(f"test/{kind}", version), f"{kind}{version}")
        stage = {"checkpoint": "train", "mixture": "decide"}[kind]
        with output.part("all", conserved=False) as part, part.file("all") as file:
            file.write(b"made")
        return commit(output, stage, 1, Config(), [one.ref(role) for role, one in inputs.items()], Report())

    first = by_hand("checkpoint", "1", mixture=by_hand("mixture", "1"))
    second = by_hand("checkpoint", "2", initial=first)
    assert [len(artifacts_of_version(second.store, "test", "mixture", version)) for version in "12"] == [1, 0]


def test_an_explanation_names_the_previous_run_that_read_the_page(months: Months) -> None:
    config, shards = SpansConfig(enabled=True), months.tokens["november"].shards
    run_stage_in(
        months.store.root, "tasks.stages.spans.stage", config, {"shards": shards}, kind="spans", version="november"
    )
    october, november = months.steps("october"), months.steps("november")
    row = max(
        (row for row in PAGES[20:40] if october[row["id"]] and november[row["id"]]), key=lambda row: len(row["text"])
    )
    answer = explain(months.store, "test", "november", row["text"])
    found = answer.to_json()
    pages = {one["id"]: one for span in found["spans"] for one in span["documents"]}
    (before,) = pages[row["id"]]["before"]
    assert (before["checkpoint"], before["steps"]) == ("test/checkpoint@october", october[row["id"]])
    assert before["first_checkpoint"] == (6 if before["steps"][0] < 6 else 12)
    assert "before: test/checkpoint@october read the page in steps" in render_explanation(answer)


def test_the_registered_model_names_its_origin(months: Months) -> None:
    for version, origin in (("november", "test/checkpoint@october"), ("october", "")):
        months.run("evaluate", version)
        months.run("register", version)
        model = Artifact.open_at(months.store, ArtifactId("test/model", version))
        lineage = json.loads(model.read("model/lineage.json"))
        assert lineage.get("initial", {}).get("artifact", "") == origin


def test_a_different_tokenizer_is_refused_with_the_file_to_import(months: Months) -> None:
    tokens_in(Path(months.store.root), [{**row, "text": row["text"].upper()} for row in PAGES], version="capitals")
    said = (
        r"test/checkpoint@october was trained with the tokenizer [0-9a-f]{16}, and the tokens of this run were made "
        rf'with [0-9a-f]{{16}}.* Set \[tokenizer\] file = "{months.tokenizer}" and make the tokens again'
    )
    with pytest.raises(InputError, match=said):
        months.run("train", "capitals", train__init_from="test/checkpoint@october")


@pytest.mark.parametrize(
    ("name", "version", "said"),
    [
        (
            "test/checkpoint@july",
            "november",
            r"train\.init_from: test/checkpoint@july is not in .*, or was never",
        ),
        (
            "test/checkpoint@august",
            "august",
            r"train\.init_from: test/checkpoint@august is the artifact that this run would make",
        ),
    ],
)
def test_a_missing_checkpoint_is_refused(months: Months, name: str, version: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        months.run("train", version, "november", train__init_from=name)


@pytest.mark.parametrize("name", ["checkpoint@october", "test/checkpoint", "test/model@october", "test/checkpoint@a/b"])
def test_an_invalid_name_is_refused_with_its_recipe(name: str) -> None:
    with pytest.raises(RecipeError, match=r"train\.init_from: the id of a checkpoint is <recipe>/checkpoint@<version>"):
        find_recipe("smoke").override({"train.init_from": name})


def test_the_settings_in_the_documentation_are_valid() -> None:
    text = (Path(__file__).parents[3] / "docs" / "training.md").read_text()
    section = text.partition("## Starting from an earlier model")[2]
    example = tomllib.loads(re.findall(r"```toml\n(.*?)```", section, re.DOTALL)[0])
    by_month = {"encode": {"columns": ["fetched_at"]}, "pack": {"by": "fetched_at"}}
    found = read({"name": "mine", "extract": {"files": [BOOKS]}, **by_month, **example})
    assert found.train.init_from == "mine/checkpoint@2026.10"
    assert Recipe.from_text(found.text) == found


def test_a_takedown_reports_models_derived_from_one_that_read_the_page(months: Months) -> None:
    october = months.steps("october")
    early, page, *_ = (row for row in READ["october"][:20] if october[row["id"]])
    first = take_down(months.store.root, "t0", documents=early["id"])
    months.run("train", "december", "november", train__init_from="test/checkpoint@november")
    note = months.checkpoint("december").record.note
    assert "began from test/checkpoint@november, which has learned from 1 document now taken down" in note
    elsewhere = run_stage_elsewhere(months)
    takedown = take_down(months.store.root, "t1", first, documents=page["id"])
    report = json.loads(takedown.read("report.json"))
    met = {one["artifact"]: one for one in report["artifacts"] if one["kind"] == "checkpoint"}
    assert (met["test/checkpoint@october"]["steps"], "through" in met["test/checkpoint@october"]) == (
        len(october[page["id"]]),
        False,
    )
    for version, through in (("november", "october"), ("december", "november")):
        one = met[f"test/checkpoint@{version}"]
        assert (one["steps"], one["checkpoints"]) == (0, [6, 12])
        assert one["through"] == [f"test/checkpoint@{through}"]
        assert "began from weights that have read these" in one["next"]
    assert met[elsewhere]["through"] == ["test/checkpoint@november"]
    rows = {row["artifact"]: row for row in takedown.table("found.parquet").to_pylist()}
    assert (rows["test/checkpoint@november"]["steps"], rows["test/checkpoint@november"]["through"]) == (
        [],
        "test/checkpoint@october",
    )
    assert "before it by test/checkpoint@october" in takedown.read("report.html").decode()


def run_stage_elsewhere(months: Months) -> str:
    """Trains a model of another recipe from the second version; returns its id."""
    other = months.recipe.override({"name": "other", "train.init_from": "test/checkpoint@november", "train.seed": 9})
    for kind in ("documents", "tokenizer", "shards", "plan"):
        source = Path(months.store.root) / "test" / kind / "november"
        target = Path(months.store.root) / "other" / kind
        target.mkdir(parents=True)
        (target / "november").symlink_to(source)
    return run_stage(other, "train", version="november", tracking=TrackingContext("", "other")).address

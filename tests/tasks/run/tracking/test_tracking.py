"""Tracking against a real MLflow server on loopback.

Run the soak tests after a change of the view or of the version of MLflow.
"""

import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import adopt
from tasks.core.errors import TransientError
from tasks.core.removal import remove_files
from tasks.core.store import Store
from tasks.run.recipe import find_recipe
from tasks.run.result import StageResult
from tasks.run.retention import delete_runs
from tasks.run.runner import run_stage
from tasks.run.shell import main
from tasks.run.tracking import Message, TrackingContext, describe
from tasks.run.tracking.outbox import keep_message, send_messages, waiting_messages
from tasks.run.tracking.send import StageRun
from tests.conftest import run_stage_in
from tests.tasks.run.test_adopted import small_recipe
from tests.tasks.run.toy_stage import ToyConfig
from tests.tasks.run.tracking.servers import client, free_port, relay

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
CHROMIUM_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


def runs_of(uri: str, experiment: str) -> dict[str, object]:
    held = client(uri)
    found = held.get_experiment_by_name(experiment)
    return {run.info.run_name: run for run in held.search_runs([found.experiment_id])} if found else {}


def tracked(uri: str, experiment: str, artifact: Artifact, parent: str = "") -> StageRun:
    context = TrackingContext(uri, experiment, parent, {"dag_id": "demo.corpus"})
    key = f"{parent}|{artifact.address}|{artifact.record.fingerprint[:16]}"
    run = StageRun(artifact.store, Message(context, key, "toy", version="2", source_version="1"))
    run.open()
    run.metrics(1, {"loss": 2.0})
    run.metrics(2, {"loss": 1.0})
    run.file("loss.png", b"\x89PNG")
    run.file("cards/toy.md", b"# Toy")
    return run


def test_a_stage_run_is_nested_under_its_dag_run_with_inputs_metrics_and_figure(server: str, tmp_path: Path) -> None:
    source = run_stage_in(tmp_path, "tests.tasks.run.toy_stage", ToyConfig(), kind="source")
    artifact = run_stage_in(tmp_path, "tests.tasks.run.toy_stage", ToyConfig(rows=5), {"numbers": source}, kind="toy")
    run = tracked(server, "nested", artifact, "demo.corpus/manual-1")
    assert run.close("FINISHED", artifact)
    runs = runs_of(server, "nested")
    child, parent = runs["toy @2"], runs["demo.corpus @2"]
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert child.data.tags["sluice.fingerprint"] == artifact.record.fingerprint
    for one in (child, parent):
        tags = [one.data.tags[name] for name in ("dag_id", "sluice.version", "sluice.source_version")]
        assert tags == ["demo.corpus", "2", "1"]
    assert child.data.tags["sluice.outcome"] == "made"
    assert child.data.metrics["rows_in"] == artifact.record.rows_in
    assert child.data.metrics["rejected.toy_round"] == artifact.record.rejected["toy_round"]
    assert child.data.params["rows"] == "5"
    (dataset,) = child.inputs.dataset_inputs
    assert dataset.dataset.name == str(source.address)
    assert dataset.tags[0].value == "numbers"
    history = client(server).get_metric_history(child.info.run_id, "loss/train")
    assert [(point.step, point.value) for point in history] == [(1, 2.0), (2, 1.0)]
    names = {entry.path for entry in client(server).list_artifacts(child.info.run_id)}
    assert {"loss.png", "artifact.json"} <= names
    assert [entry.path for entry in client(server).list_artifacts(child.info.run_id, "cards")] == ["cards/toy.md"]
    assert f"/runs/{child.info.run_id}?" in run.url


def experiment_runs(held: Any) -> dict[str, Any]:
    """Returns the active runs of the experiment "test" by id."""
    experiment = held.get_experiment_by_name("test")
    return {run.info.run_id: run for run in held.search_runs([experiment.experiment_id])} if experiment else {}


def test_runs_of_artifacts_without_files_are_marked_as_deleted_and_no_others(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, store = client(server), Store(str(tmp_path))
    made = [run_stage_in(tmp_path, "tests.tasks.run.toy_stage", ToyConfig(), kind=kind) for kind in ("old", "new")]
    # Other tests have runs in the same experiment.
    others = experiment_runs(held)
    for artifact in made:
        assert tracked(server, "test", artifact).close("FINISHED", artifact)
    assert delete_runs(store, "test", server) == 0
    remove_files(made[0], "no longer needed", datetime.now(UTC))
    assert delete_runs(store, "test", server) == 1
    (kept,) = experiment_runs(held).keys() - others.keys()
    assert held.get_run(kept).data.tags["sluice.artifact"] == str(made[1].address)
    assert delete_runs(store, "test", server) == 0
    assert delete_runs(store, "test", "") == 0
    assert delete_runs(store, "none", server) == 0
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(TransientError, match=r"MLflow at http://127\.0\.0\.1:9 does not respond"):
        delete_runs(store, "test", "http://127.0.0.1:9")


def described(uri: str, run_id: str) -> str:
    return str(client(uri).get_run(run_id).data.tags["mlflow.note.content"])


def test_experiment_dag_run_and_run_have_descriptions_and_results(server: str, tmp_path: Path) -> None:
    artifact = run_stage_in(tmp_path, "tests.tasks.run.toy_stage", ToyConfig(rows=15), kind="toy")
    context = TrackingContext(server, "told", "demo.corpus/manual-1", description="Seeds to a model.")
    for name in ("fetch p1", "extract"):
        run = StageRun(artifact.store, Message(context, f"{name}|toy", name, "A small real stage.", "2"))
        run.open()
        run_id = run.message.run_id.partition("/")[2]
        assert described(server, run_id) == "A small real stage."
        assert run.close("FINISHED", artifact)
        came_to = "60 rows in, 54 out, 6 rejected (toy_round 6)"
        assert described(server, run_id) == f"A small real stage.\n\nMade `test/toy@dev`.\n\n{came_to}"
    failed = StageRun(artifact.store, Message(context, "annotate|toy", "annotate", "Measures.", "2"))
    failed.open()
    failed.close("FAILED", None, "no model")
    held = client(server)
    experiment = held.get_experiment_by_name("told")
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    assert experiment.tags["mlflow.note.content"] == "Seeds to a model."
    parent = runs_of(server, "told")["demo.corpus @2"]
    assert described(server, parent.info.run_id).splitlines() == [
        "The run `manual-1` of the DAG `demo.corpus`; its stages are the runs under it.",
        "",
        f"- **fetch p1** {came_to}",
        f"- **extract** {came_to}",
        "- **annotate** failed: no model",
    ]


def test_the_experiment_shows_the_newest_results_and_keeps_a_manual_description(server: str, tmp_path: Path) -> None:
    artifact = run_stage_in(tmp_path, "tests.tasks.run.toy_stage", ToyConfig(), kind="toy")
    funnel = artifact.record.model_copy(update={"stage": "consolidate", "note": "3 of 4 are kept"})
    documents = Artifact(artifact.store, artifact.address, funnel)
    context = TrackingContext(server, "newest", description="Seeds to a model.")
    held = client(server)
    held.create_experiment("newest")  # as created by an earlier release, without a kind
    StageRun(artifact.store, Message(context, "one", "consolidate")).close("FINISHED", documents)
    experiment = held.get_experiment_by_name("newest")
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    assert experiment.tags["mlflow.note.content"].splitlines() == [
        "Seeds to a model.",
        "",
        "Newest results:",
        "",
        "- **consolidate** `test/toy@dev`: 3 of 4 are kept; 40 rows in, 36 out, 4 rejected (toy_round 4)",
    ]
    held.set_experiment_tag(experiment.experiment_id, "mlflow.note.content", "Mine.")
    held.set_experiment_tag(experiment.experiment_id, "mlflow.experimentKind", "finetuning")
    StageRun(artifact.store, Message(context, "two", "consolidate")).close("FINISHED", documents)
    experiment = held.get_experiment_by_name("newest")
    assert experiment.tags["mlflow.note.content"] == "Mine."
    assert experiment.tags["mlflow.experimentKind"] == "finetuning"


def test_stages_that_begin_together_share_the_run_of_their_dag(server: str, tmp_path: Path) -> None:
    store, held = Store(str(tmp_path)), client(server)
    held.create_experiment("together", tags={"mlflow.experimentKind": "custom_model_development"})
    begin = Barrier(6)

    def begin_stage(number: int) -> str:
        context = TrackingContext(server, "together", "demo.crawl/manual-1")
        run = StageRun(store, Message(context, f"stage {number}", f"stage {number}", version="1"))
        begin.wait()
        run.open()
        return run.message.run_id.partition("/")[2]

    with ThreadPoolExecutor(6) as threads:
        ids = list(threads.map(begin_stage, range(6)))
    parents = {held.get_run(run_id).data.tags["mlflow.parentRunId"] for run_id in ids}
    assert len(parents) == 1
    assert [name for name in runs_of(server, "together") if name.startswith("demo")] == ["demo.crawl @1"]


def test_a_lost_parent_run_is_made_again(server: str, tmp_path: Path) -> None:
    store, held, parents = Store(str(tmp_path)), client(server), []
    for number in (1, 2):
        context = TrackingContext(server, "lost", "demo.crawl/manual-1")
        run = StageRun(store, Message(context, f"stage {number}", f"stage {number}"))
        run.open()
        parents.append(held.get_run(run.message.run_id.partition("/")[2]).data.tags["mlflow.parentRunId"])
        held.delete_run(parents[-1])
    assert parents[0] != parents[1]


def test_an_adopted_artifact_has_a_run_that_names_its_source(server: str, tmp_path: Path) -> None:
    made = run_stage_in(tmp_path, "tests.tasks.run.toy_stage", ToyConfig(), kind="toy", version="1")
    adopted = adopt(made, ArtifactId("test/toy", "2"), made.record.inputs)
    run = tracked(server, "adopted", adopted, "demo.corpus/manual-2")
    assert run.close("FINISHED", adopted)
    child = runs_of(server, "adopted")["toy @2"]
    tags = [child.data.tags[f"sluice.{name}"] for name in ("artifact", "outcome", "adopted_from")]
    assert tags == ["test/toy@2", "adopted", "test/toy@1"]
    assert "seconds_of_source" in child.data.metrics
    assert "seconds" not in child.data.metrics
    assert "`test/toy@2` is adopted from `test/toy@1`" in described(server, child.info.run_id)
    parent = runs_of(server, "adopted")["demo.corpus @2"]
    assert "- **toy** adopted from `test/toy@1`: 40 rows in" in described(server, parent.info.run_id)


def test_a_version_that_only_adopts_has_a_run_of_its_dag(server: str, tmp_path: Path) -> None:
    recipe = small_recipe(tmp_path)
    for version, source in (("1", None), ("2", "1")):
        context = TrackingContext(server, "adopting", f"smoke.corpus/{version}")
        run_stage(recipe, "extract", version=version, source_version=source, tracking=context)
    runs = runs_of(server, "adopting")
    adopted = runs["extract @2"].data.tags
    assert adopted["sluice.outcome"] == "adopted"
    assert adopted["mlflow.parentRunId"] == runs["smoke.corpus @2"].info.run_id


def test_the_run_of_a_dag_has_results_scores_and_cost_of_its_stages_and_says_how_many_were_made(
    server: str, tmp_path: Path
) -> None:
    made = run_stage_in(tmp_path, "tests.tasks.run.toy_stage", ToyConfig(), kind="toy")
    with made.store.write(f"{made.address.path}/reconciled.json") as file:
        file.write(b'[{"name": "price", "real": 7.5}, {"name": "GPU-hours", "real": null}]')
    context = TrackingContext(server, "summary", "demo.pretrain/manual-1")
    record = made.record.model_copy(update={"finished": made.record.started + timedelta(seconds=3)})
    scores = {"bpb": 1.2, "task/quiz/acc": 0.5, "unigram_bpb": 2.0}
    for stage, metrics, adopted in (
        *(("train", {"loss": 3.5, "memory_gib": 1.0}, None), ("evaluate", scores, None), ("reconcile", {}, None)),
        *(("promote", {"promoted": 1.0}, None), ("publish", {}, "test/toy@1"), ("fetch", {}, None)),
    ):
        changed = record.model_copy(update={"stage": stage, "metrics": metrics, "adopted_from": adopted})
        name = "fetch p0" if stage == "fetch" else stage
        run = StageRun(made.store, Message(context, stage, name, version="3"))
        assert run.close("FINISHED", Artifact(made.store, made.address, changed))
    parent = runs_of(server, "summary")["demo.pretrain @3"]
    times = [f"seconds_by_stage/{name}" for name in ("train", "evaluate", "reconcile", "promote", "fetch.p0")]
    assert parent.data.metrics == {
        **{"loss": 3.5, "bits_per_byte": 1.2, "task/quiz/acc": 0.5, "price": 7.5, "promoted": 1.0},
        **{"pages": made.record.rows_out, **dict.fromkeys(times, 3.0)},
        **{"stage_seconds": 15.0, "stages_made": 5.0, "stages_adopted": 1.0},
    }


def test_stages_of_a_version_that_are_run_in_a_shell_have_one_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[str] = []

    def run_stage(*_: object, tracking: TrackingContext, **__: object) -> StageResult:
        keys.append(tracking.parent_key)
        return StageResult("", "", "", "", True, (), {}, {}, "")

    monkeypatch.setattr("tasks.run.runner.run_stage", run_stage)
    for arguments in (["inject"], ["update", "--member", "p0"], ["inject", "--parent-key", "smoke.crawl/manual-1"]):
        assert main([*arguments, "--recipe", "smoke", "--version", "7"]) == 0
    assert keys == ["shell/7", "shell/7", "smoke.crawl/manual-1"]


def test_a_recipe_is_described_by_its_sources() -> None:
    said = describe.recipe(find_recipe("demo"))
    assert said.startswith("The recipe **demo** of Sluice: from a crawl from `http://library.localhost:18701/`, ")
    assert "`code` (text: `{stdlib}/**/*.py`)" in said


@pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="no chromium on this machine (apt-get install chromium)")
@pytest.mark.soak
def test_runs_and_experiments_open_in_the_view_of_model_training(server: str, tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    artifact = run_stage_in(tmp_path, "tests.tasks.run.toy_stage", ToyConfig(), kind="toy")
    context = TrackingContext(server, "seen", "demo.corpus/manual-1", description="Seeds to a model.")
    run = StageRun(artifact.store, Message(context, "seen", "extract", "A small real stage."))
    assert run.close("FINISHED", artifact)
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        for address, shown, hidden in (
            (run.url, ["A small real stage.", "Model metrics", "Runs"], "Evaluations"),
            (f"{server}/#/experiments/{run.message.run_id.partition('/')[0]}", ["Seeds to a model.", "Runs"], "Usage"),
        ):
            page = browser.new_context(viewport={"width": 1400, "height": 900}).new_page()
            page.set_default_timeout(60_000)
            page.goto(address)
            for text in shown:
                page.get_by_text(text, exact=True).first.wait_for()
            assert not page.get_by_text(hidden, exact=True).count()
        # Also from the list of experiments, and users can still switch views.
        page = browser.new_context(viewport={"width": 1400, "height": 900}).new_page()
        page.set_default_timeout(60_000)
        page.goto(f"{server}/#/experiments")
        page.get_by_role("row").get_by_role("link", name="seen", exact=True).click()
        page.wait_for_url(re.compile("runs.workflowType=machine_learning"))
        page.get_by_text("Runs", exact=True).first.wait_for()
        for _ in range(12):  # a click on a page that is still loading is lost
            page.get_by_text("GenAI", exact=True).first.click()
            with suppress(playwright.TimeoutError):
                page.wait_for_url(re.compile("usage.workflowType=genai"), timeout=5_000)
                break
        else:
            pytest.fail("the switch does nothing")
        page.goto(f"{server}/#/experiments/{run.message.run_id.partition('/')[0]}")
        page.reload()
        page.wait_for_url(re.compile("usage.workflowType=genai"))
        browser.close()


def test_a_retry_continues_the_run_of_the_first_try(server: str, tmp_path: Path) -> None:
    artifact = run_stage_in(tmp_path, "tests.tasks.run.toy_stage", ToyConfig())
    first = tracked(server, "retried", artifact, "dag/run")
    first.close("FAILED", None, "worker was killed")
    second = tracked(server, "retried", artifact, "dag/run")
    second.close("FINISHED", artifact)
    assert first.url == second.url
    assert {run.info.status for run in runs_of(server, "retried").values()} == {"FINISHED"}


def test_records_are_queued_during_an_mlflow_outage_and_sent_afterwards(server: str, tmp_path: Path) -> None:
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    store = Store(str(tmp_path / "store"))
    artifact = run_stage_in(tmp_path / "store", "tests.tasks.run.toy_stage", ToyConfig())
    begin = time.monotonic()
    run = tracked(uri, "late", artifact, "dag/run")
    assert not run.close("FINISHED", artifact)
    assert time.monotonic() - begin < 60
    keep_message(store, run.message)
    assert waiting_messages(store) == 1
    with relay(port, server):
        assert send_messages(store).sent == 1
        assert waiting_messages(store) == 0
        (late,) = [one for name, one in runs_of(uri, "late").items() if name == "toy @2"]
        assert late.data.metrics["rows_out"] == artifact.record.rows_out
        assert late.data.metrics["loss/train"] == 1.0
        assert "loss.png" in {entry.path for entry in client(uri).list_artifacts(late.info.run_id)}

"""Models trained in the corpus DAG: reference text against the crawl, scores, verdicts, and their MLflow runs."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tasks.demo.drive import DagChain
from tests.system.conftest import SMOKE
from tests.tasks.stages.dedup.made import found_in

if TYPE_CHECKING:
    from mlflow.entities import Run

pytestmark = pytest.mark.soak

NAME = "models"
# The crawl has some pages of the language manual among many of the library; the gate separates them.
CRAWL = SMOKE.replace('name = "smoke"', f'name = "{NAME}"').replace("max_pages = 60", "max_pages = 150")
RECIPE = (
    CRAWL
    + """
[[classifiers.train]]
name = "manual"
purpose = "Tells the manual of the language from whatever the crawl finds."
positive = "manual"
texts = [{ path = "REFERENCE", label = "manual", group_field = "topic" }]
crawl = { documents = 100, split_by = "document" }
max_per_label = 200
heldout_share = 0.3
fasttext = { epochs = 25, learning_rate = 0.5, dimensions = 16, buckets = 10_000 }

[[classifiers.train]]
name = "prose"
purpose = "The same from signals of the surface, for the annotator `quality`."
method = "signals"
positive = "manual"
texts = [{ path = "REFERENCE", label = "manual", group_field = "topic" }]
crawl = { documents = 100, split_by = "document" }
max_per_label = 200
heldout_share = 0.3

[perplexity]
order = 3

[[perplexity.references]]
name = "manual"
kind = "jsonl"
path = "REFERENCE"
language = "en"
licence = "PSF-2.0"

[[perplexity.references]]
name = "packages"
kind = "documents"

[annotate]
use = [
  "language", "gopher_quality", "gopher_repetition", "classifier", "quality", "perplexity", "prose_score", "pii",
]
settings.classifier.models = ["manual"]
settings.quality.model = "prose"

[consolidate]
filters = ["language", "gopher_quality", "gopher_repetition", "classifier", "perplexity"]
limits.classifier.at_least = { manual = 0.02 }
limits.perplexity.drop_buckets = ["tail"]
gold = { "classifier.manual" = 0.5, "quality.score" = 0.5 }
"""
)
TRAINED = {"train_classifiers": "classifiers", "train_perplexity": "perplexity"}


@pytest.fixture(scope="module")
def corpus(stack, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """A recipe added to the running stack, with its crawl and corpus; the results of stages by task."""
    recipe = Path(os.environ["SLUICE_RECIPES"]) / f"{NAME}.toml"
    recipe.write_text(RECIPE.replace("REFERENCE", manual(tmp_path_factory.mktemp("manual") / "manual.jsonl")))
    DagChain(stack.airflow, NAME).wait_for_dags(120)
    for dag in ("corpus", "tokens"):
        stack.pause(f"{NAME}.{dag}", True)
    stack.run(f"{NAME}.crawl", {})
    stack.pause(f"{NAME}.corpus", False)
    run = stack.run(f"{NAME}.corpus", {})
    assert run["state"] == "success"
    tasks = stack.airflow.tasks(f"{NAME}.corpus", run["dag_run_id"])
    return {task["task_id"]: stack.airflow.xcom(task) for task in tasks}


def manual(path: Path) -> str:
    """Writes this interpreter's Python language manual as texts of some paragraphs."""
    from pydoc_data.topics import topics

    with path.open("w") as file:
        for topic, text in topics.items():
            for piece in pieces(text.split("\n\n")):
                file.write(json.dumps({"topic": topic, "text": piece}) + "\n")
    return str(path)


def pieces(paragraphs: list[str], least: int = 1000) -> list[str]:
    """Joins paragraphs until they have `least` characters; a shorter rest is dropped."""
    found, held = [], ""
    for paragraph in paragraphs:
        held = f"{held}\n\n{paragraph}".strip()
        if len(held) >= least:
            found, held = [*found, held], ""
    return found


def logged(stack, stage: str) -> "tuple[Run, dict[str, bytes]]":
    """Returns the MLflow run of a stage, and its artifacts."""
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=stack.home.mlflow_url)
    experiment = client.get_experiment_by_name(NAME)
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id], f"tags.`sluice.stage` = '{stage}'")
    paths = [entry.path for entry in client.list_artifacts(run.info.run_id)]
    return run, {path: Path(client.download_artifacts(run.info.run_id, path)).read_bytes() for path in paths}


def rows_of(artifact, folder: str) -> list[dict[str, Any]]:
    return pa.concat_tables(artifact.table(path) for path in artifact.files(folder)).to_pylist()


def test_the_records_of_models_and_scores_name_their_inputs(stack, corpus) -> None:
    assert not any(result["skipped"] for result in corpus.values())
    extracted = stack.artifact(f"{NAME}/extracted").record
    for kind, texts in (("classifiers", "texts/manual"), ("perplexity", "reference:manual")):
        inputs = {ref.role: ref for ref in stack.artifact(f"{NAME}/{kind}").record.inputs}
        assert inputs["extracted"].fingerprint == extracted.fingerprint
        assert inputs[texts].address == f"external:{texts}"
    scored = {ref.role: ref.fingerprint for ref in stack.artifact(f"{NAME}/attributes").record.inputs}
    for kind in TRAINED.values():
        assert scored[kind] == stack.artifact(f"{NAME}/{kind}").record.fingerprint


def test_held_out_scores_and_model_cards_are_in_mlflow(stack, corpus) -> None:
    for stage, kind in TRAINED.items():
        made = stack.artifact(f"{NAME}/{kind}")
        run, files = logged(stack, stage)
        assert made.record.metrics.items() <= run.data.metrics.items()
        assert f"{NAME}/extracted@dev" in {one.dataset.name for one in run.inputs.dataset_inputs}
        cards = {f"card-{path.partition('/')[0]}.md": made.read(path) for path in made.files() if "card.md" in path}
        assert len(cards) == 2
        assert cards.items() <= files.items()
    scores = corpus["train_classifiers"]["metrics"]
    assert scores["manual_auc"] > 0.8
    assert scores["prose_auc"] > 0.8
    perplexity = corpus["train_perplexity"]["metrics"]
    assert 1 < perplexity["en/heldout_perplexity_known"] < perplexity["en/heldout_perplexity"] < 1000


def test_documents_carry_the_scores_of_the_models(stack, corpus) -> None:
    rows = found_in(stack.artifact(f"{NAME}/attributes"))
    assert len(rows) == stack.artifact(f"{NAME}/extracted").record.rows_out
    assert all(0 <= row["classifier"]["manual"] <= 1 for row in rows)
    assert any(row["quality"]["score"] > 0.5 for row in rows)
    assert {row["perplexity"]["bucket"] for row in rows} == {"head", "middle", "tail"}


def test_verdicts_and_tiers_follow_from_the_scores(stack, corpus) -> None:
    documents, scored = stack.artifact(f"{NAME}/documents"), stack.artifact(f"{NAME}/attributes")
    measured = {row["id"]: row for row in found_in(scored)}
    kept, rejected = rows_of(documents, "kept/"), rows_of(documents, "rejected/")
    for row in kept:
        by_manual, by_prose = measured[row["id"]]["classifier"]["manual"], measured[row["id"]]["quality"]["score"]
        assert (row["tier"] == "gold") == (by_manual >= 0.5 and by_prose >= 0.5)
        if row["source"] == "web":
            assert by_manual >= 0.02
            assert measured[row["id"]]["perplexity"]["bucket"] != "tail"
    assert {row["tier"] for row in kept} == {"gold", "silver"}
    for row in rejected:
        assert (row["classifier"]["manual"] < 0.02) == ("classifier_manual_low" in row["reasons"])
        assert (row["perplexity"]["bucket"] == "tail") == ("perplexity_tail" in row["reasons"])
    assert {"classifier_manual_low", "perplexity_tail"} <= {row["reason"] for row in rejected}


def test_the_funnel_and_the_audit_page_are_in_mlflow(stack, corpus) -> None:
    documents = stack.artifact(f"{NAME}/documents")
    run, files = logged(stack, "consolidate")
    assert files["audit.html"] == documents.read("audit.html")
    assert files["funnel.png"].startswith(b"\x89PNG")
    funnel = documents.table("funnel.parquet").to_pylist()
    assert len(files["funnel.csv"].splitlines()) == 1 + len(funnel)
    for row in funnel:
        shown = row["reason"].replace("_", "_<wbr>") or "kept"
        assert f"{shown}<" in files["audit.html"].decode()
    assert run.data.metrics["kept"] == corpus["consolidate"]["rows"]["out"] == documents.record.rows_out
    for reason, count in documents.record.rejected.items():
        assert run.data.metrics[f"rejected.{reason}"] == count

"""The demo of fine-tuning through the real scheduler: PDF files to a model, compared, registered, traced.

Soak: three minutes after the base, which is the model of `smoke`.
"""

import json
import re
import subprocess

import pytest

from tests.tasks.run.tracking.test_tracking import client
from tests.tasks.trainer.interchange.chat_templates import FAMILIES, write_chat_folder

pytestmark = pytest.mark.soak
VERSION = "smoke-dev"


@pytest.fixture(scope="module")
def first(stack, smoke) -> subprocess.CompletedProcess[str]:
    """The first run, on the model of `smoke`."""
    return stack.demo("finetune", "--base", "smoke/checkpoint@dev")


def test_it_ends_green_with_a_report(stack, first) -> None:
    assert first.returncode == 0, first.stdout + first.stderr
    for dag in ("corpus", "tokens", "finetune"):
        assert re.search(rf"^manuals\.{dag} \d+/\d+ done", first.stdout, re.MULTILINE), first.stdout
    for title in ("Examples", "Fine-tuning", "Base and model", "A question", "Its page", "Time"):
        assert re.search(rf"^{title}$", first.stdout, re.MULTILINE), first.stdout
    page = first.stdout.partition("\nIts page\n")[2]
    assert re.search(r"file://manuals/\S+\.pdf", page)
    assert re.search(r"page 1, box \d+, \d+, \d+, \d+ in points", page)
    assert re.search(r"steps +\d+", page)


def test_the_model_has_a_lower_loss_than_its_base_on_the_page_of_the_question(first) -> None:
    base, tuned = map(float, re.search(r"costs the base ([\d.]+) .* the model ([\d.]+)", first.stdout).groups())
    assert tuned < 0.9 * base, "a base of 60 steps; that of the demo answers word for word"


def test_base_and_model_have_scored_the_same_text_and_examples(stack, first) -> None:
    found = json.loads(stack.artifact("manuals/tuned_scores", VERSION).read("comparison.json"))
    assert (found["base"], found["tuned"]) == ("smoke/checkpoint@dev", f"manuals/finetuned@{VERSION}")
    assert {row["kind"] for row in found["rows"]} == {"source", "examples"}
    assert all(row["interval"][0] < row["difference"] < row["interval"][1] for row in found["rows"])


def test_the_model_is_registered_with_its_base_and_the_table_is_in_mlflow(stack, first) -> None:
    mlflow = client(stack.home.mlflow_url)
    (version,) = mlflow.search_model_versions("name='manuals-tuned'")
    assert version.tags["sluice.initial"].startswith("smoke/checkpoint@dev ")
    assert version.tags["sluice.chunks"].startswith(f"manuals/chunks@{VERSION} ")
    experiment = mlflow.get_experiment_by_name("manuals")
    (run,) = mlflow.search_runs([experiment.experiment_id], "tags.`sluice.stage` = 'evaluate_tuned'")
    assert "comparison.md" in {file.path for file in mlflow.list_artifacts(run.info.run_id)}
    assert "examples/responses/low" in run.data.metrics


def test_the_second_run_finds_everything_unchanged(stack, first) -> None:
    before = {
        kind: stack.artifact(f"manuals/{kind}", VERSION).record for kind in ("chunks", "finetuned", "tuned_model")
    }
    again = stack.demo("finetune", "--base", "smoke/checkpoint@dev")
    assert again.returncode == 0, again.stdout + again.stderr
    for dag in ("corpus", "tokens", "finetune"):
        assert re.search(rf"^manuals\.{dag} \d+/\d+ unchanged", again.stdout, re.MULTILINE), again.stdout
    assert {kind: stack.artifact(f"manuals/{kind}", VERSION).record for kind in before} == before


def test_a_model_folder_is_imported_and_tuned_in_its_own_chat_template(stack, tmp_path) -> None:
    folder = write_chat_folder(tmp_path / "random", "Llama 3.1")
    result = stack.demo("finetune", "--base", str(folder))
    assert result.returncode == 0, result.stdout + result.stderr
    version = re.search(r"begun from imported/checkpoint@(random-\w+)", result.stdout)[1]
    model = stack.artifact("manuals/tuned_model", f"imported-{version}")
    assert json.loads(model.read("model/tokenizer_config.json"))["chat_template"] == FAMILIES["Llama 3.1"].jinja
    assert json.loads(model.read("model/model.json"))["template"]["date"] == "2026-01-01"

"""The page of a training, on a small real run over hostile texts."""

import html
import json
import re
from pathlib import Path

import numpy as np
import pytest
from sluice_ui import training as module
from sluice_ui.frame import Address
from sluice_ui.run_log import BEFORE, RunLog, _rises
from sluice_ui.training import training

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.run.recipe import Recipe
from tasks.run.trace.trace import trace_step
from tasks.trainer import answering
from tasks.trainer.place import TrainPlace, Watch
from tests.conftest import run_stage_in
from tests.corpora import Made, corpus, kept_document, tokens_in
from tests.plugins.conftest import HOSTILE
from tests.tasks.run.champions import recipe_in
from tests.tasks.trainer.in_process import training_in_process
from tests.tasks.trainer.small_run import small_config

STEPS = 12


class Run:
    """A store with tokens and a training of 12 steps, and its recipe."""

    def __init__(self, folder: Path) -> None:
        rows = [*corpus(90), kept_document(f"http://site.localhost/{HOSTILE}", HOSTILE * 40)]
        self.store = Store(str(folder))
        self.made: Made = tokens_in(folder, rows)
        inputs = {"shards": self.made.shards, "plan": self.made.plan}
        config = small_config(steps=STEPS, heldout={"every": 4, "max_tokens": 200})
        place = TrainPlace(watch=Watch(profile_every=8, layers_every=4))
        with training_in_process():
            self.checkpoint: Artifact = run_stage_in(
                folder, "tasks.stages.train.stage", config, inputs, kind="checkpoint", place=place
            )
        self.recipe: Recipe = recipe_in(folder)

    def page(self, **query: str) -> str:
        return training(self.recipe, "dev", Address("/training", {"recipe": "test", "version": "dev", **query}))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("trained"))


def figures(text: str) -> list[dict]:
    return [json.loads(html.unescape(found)) for found in re.findall(r'data-figure="([^"]*)"', text)]


def test_the_curves_are_those_of_the_run(run: Run) -> None:
    loss, heldout, norm, rate = figures(run.page())
    log = run.checkpoint.table("loss.parquet").to_pydict()
    assert loss["data"][0]["x"] == log["step"]
    assert loss["data"][0]["y"] == pytest.approx(log["loss"])
    assert norm["data"][0]["y"] == pytest.approx(log["grad_norm"])
    assert rate["data"][0]["y"] == pytest.approx(log["lr"])
    by_name = {line["name"]: line for line in heldout["data"]}
    assert by_name.keys() == {"mean", "web", "code", "my-books"}
    assert by_name["mean"]["x"] == [3, 7, 11]


def test_the_layers_are_maps_and_the_profiled_step_has_its_shares(run: Run) -> None:
    text = run.page()
    assert text.count('<svg viewBox="0 0 640 ') == 6
    labels = re.findall(r"<figcaption>(.*?)</figcaption>", text)
    assert [label.partition(",")[0] for label in labels[:2]] == ["Update / weight", "Gradient norm before clipping"]
    cells = [path.count("M") for path in re.findall(r'class="heat"[^>]* d="([^"]*)"', text.partition("</figure>")[0])]
    assert sum(cells) == 3 * 4, "three measured steps of embedding, two layers and norm"
    shares = run.checkpoint.record.metrics
    assert f"{shares['profile/computing']:.1%}" in text
    assert "aten::" in text, "the top operations, of which a busy machine chooses other ones"


def test_the_result_is_in_a_sentence_with_what_needs_attention(run: Run) -> None:
    assert "nats per token in 12 steps" in run.page()
    assert "No alert, no skipped step, no fault." in run.page()


def test_a_step_shows_its_documents_in_the_order_read_with_its_neighbors(run: Run) -> None:
    text = run.page(step="5")
    read = trace_step(run.store, "test", "dev", 5)
    ids = [part.id for sequence in read.sequences for part in sequence.slices or ()]
    assert re.findall(r"what=([0-9a-f]{32})", text) == ids
    assert "step=4#step" in text
    assert "step=6#step" in text
    assert "step=-1" not in run.page(step="0")
    assert f"step={STEPS}#step" not in run.page(step=str(STEPS - 1))


def test_a_step_that_does_not_exist_is_said_in_words(run: Run) -> None:
    assert "test/checkpoint@dev has no step 99. Its steps are 0 to 11." in run.page(step="99")
    assert "is not a step" in run.page(step=HOSTILE)


def test_texts_of_pages_are_escaped(run: Run) -> None:
    for step in range(STEPS):
        text = run.page(step=str(step), weights=HOSTILE)
        assert "<img" not in text
        assert "<script>alert" not in text


def test_the_loss_of_each_document_is_that_of_the_step(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # With the weights before the first step the mean over a batch would be the run's own loss; milestone 6 had read
    # steps 0 to 5, so the loss that the run recorded at step 6 is that of its weights.
    losses = answering.step_losses(run.checkpoint, run.made.shards, run.made.plan, 6, 6)
    parts = [part for sequence in losses for part in sequence]
    total = sum(part["tokens"] * part["loss"] for part in parts if part["tokens"])
    recorded = run.checkpoint.table("loss.parquet")["loss"].to_pylist()[6]
    assert total / sum(part["tokens"] for part in parts) == pytest.approx(recorded, abs=1e-4)
    monkeypatch.setattr(module.answering, "step_losses", lambda *_: losses)
    text = run.page(step="6", weights="6")
    assert "with the weights after 6 steps, which had not yet read this step" in text
    shown = [f"{part['loss']:.4g}" for part in parts if part["loss"] is not None]
    assert all(f'<td class="number">{value}</td>' in text for value in shown)


def test_a_milestone_that_does_not_exist_is_said_in_words(run: Run) -> None:
    assert "There is no milestone 7." in run.page(step="6", weights="7")


def test_a_version_without_a_training_is_said_in_words(run: Run) -> None:
    with pytest.raises(InputError, match="nothing was trained as test@v9"):
        training(run.recipe, "v9", Address("/training", {}))


def test_a_run_that_is_not_complete_shows_its_milestones_and_alerts(run: Run) -> None:
    folder = ArtifactId("test/checkpoint", "half").path
    for name in run.checkpoint.files("steps/")[:1]:
        run.store.publish(f"{folder}/{name}", run.checkpoint.read(name))
    alert = {"kind": "spike", "step": 3, "what": HOSTILE, "do": "nothing", "fingerprint": "1"}
    run.store.publish(f"{folder}/.alerts/00000003-spike.json", json.dumps(alert).encode())
    text = training(run.recipe, "half", Address("/training", {"recipe": "test", "version": "half", "step": "2"}))
    assert "up to the newest milestone, step 5. The run is not complete." in text
    assert "<td>spike</td>" in text
    assert "<img" not in text
    assert "known when the run is complete" in text


def test_the_largest_rise_is_the_step_that_lies_most_above_those_before_it() -> None:
    losses = np.full(100, 2.0)
    losses[70], losses[40] = 5.0, np.nan
    rises = _rises(losses)
    assert int(np.nanargmax(rises)) == 70
    assert rises[70] == pytest.approx(3.0)
    assert np.isnan(rises[40])
    assert np.isnan(rises[: BEFORE // 2]).all()


def test_skipped_steps_lead_to_their_pages(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    line = {"step": 4, "reason": "loss_spike", "loss": 9.5, "grad_norm": 1.0, "documents": 3}
    monkeypatch.setattr(RunLog, "skipped", [line])
    text = run.page()
    assert "<td>loss_spike</td>" in text
    assert "step=4#step" in text

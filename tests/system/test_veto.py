"""A person vetoes the decision of a canary DAG in the browser, thinks again, and the same run goes on to its end.

The next run of the DAG then starts from the decision.
"""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.store import Store
from tasks.run.recipe import find_recipe
from tasks.run.runner import run_stage
from tasks.run.tracking import TrackingContext
from tests.system.browser import logged_in, needs_chromium, trigger
from tests.waiting import until

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = needs_chromium

DAG, VERSION, NEXT = "vetoed.canary", "v1", "v2"
QUESTION = "vetoed: may the large model be trained on this mixture?"


@pytest.fixture(scope="module")
def page(stack) -> Iterator["playwright.Page"]:
    """A page logged in to Airflow."""
    with logged_in(stack) as page:
        yield page


@pytest.fixture(scope="module")
def tokens(stack) -> None:
    """The tokens of the recipe `vetoed`, made in this process; its training does not start."""
    stack.pause("vetoed.pretrain", True)
    folder, draw = Path(os.environ["SLUICE_RECIPES"]) / "vetoed", random.Random(5)
    for source in ("verse", "notes"):
        (folder / source).mkdir(parents=True, exist_ok=True)
        words = [f"{source}{letter}" for letter in "abcdefghi"]  # no token is in both sources
        for number in range(12):
            text = f"the and of {number} {' '.join(draw.choices(words, k=90))}.\n"
            (folder / source / f"{number}.txt").write_text(text)
    recipe = find_recipe("vetoed").override({"place.store": str(stack.home.root / "store")})
    for stage in (*recipe.stages("corpus"), *recipe.stages("tokens")):
        run_stage(recipe, stage, version=VERSION, tracking=TrackingContext("", recipe.name))


def answer(page, run: str, option: str) -> None:
    """Answers the question of the run on its page, where the report is."""
    page.goto(f"{run}/tasks/approve/required_actions")
    page.get_by_text(QUESTION).first.wait_for()
    page.get_by_text("Use a new mixture").first.wait_for()  # the first line of the report
    page.get_by_test_id(f"hitl-option-{option}").click()
    page.get_by_text("Response received at").first.wait_for()


def events_of_the_mixture(stack) -> int:
    """The events of the asset that starts the training."""
    found = stack.airflow.pages("/assets", "assets", dag_ids="vetoed.pretrain")
    (asset,) = [one for one in found if one["name"].endswith("mixture")]
    return len(stack.airflow.pages("/assets/events", "asset_events", asset_id=asset["id"]))


def begun_after(stack) -> dict:
    """What the next cycle registers before its first run; it has the same tokens, and ends there."""
    for kind in ("plan", "shards"):
        stack.copy(f"vetoed/{kind}/{VERSION}", f"vetoed/{kind}/{NEXT}")
    run_id = stack.airflow.trigger(DAG, {"version": NEXT})
    stack.done(DAG, run_id, "round_1.arms")
    stack.stop(DAG, run_id)
    return json.loads(stack.artifact("vetoed/arms/round-1", NEXT).read("cycle.json"))


def test_a_vetoed_decision_starts_no_training_until_it_is_approved_and_then_the_next_cycle(stack, tokens, page) -> None:
    trigger(stack, page, DAG, {"version": VERSION})
    (started,) = stack.airflow.pages(f"/dags/{DAG}/dagRuns", "dag_runs")
    run_id = started["dag_run_id"]
    run = f"{stack.home.airflow_url}/dags/{DAG}/runs/{run_id}"

    def states() -> dict[str, str]:
        return {task["task_id"]: task["state"] for task in stack.airflow.tasks(DAG, run_id)}

    def waits(ended: int) -> bool:
        # Answered before the scheduler knows that the process which asks has ended, the task would ask again: its end
        # would be taken for that of the process which reads the answer.
        end = f"executor event with state success for task instance TaskInstanceKey(dag_id='{DAG}', task_id='approve'"
        log = (stack.home.root / "logs" / "scheduler.log").read_text()
        return states()["approve"] == "awaiting_input" and log.count(end) == ended

    page.goto(run)
    page.get_by_label("Show Graph").first.click()
    for node in ("round_1", "finalist", "confirm", "decide", "approve", "gate"):
        page.locator(".react-flow__node").filter(has_text=node).first.wait_for()
    until(lambda: waits(1), 600)
    answer(page, run, "Reject")
    assert stack.finished(DAG, run_id)["state"] == "success"
    assert (states()["approve"], states()["gate"]) == ("success", "skipped")
    store = Store(str(stack.home.root / "store"))
    assert "rejected by" in stack.artifact("vetoed/rejected", VERSION).record.note
    assert events_of_the_mixture(stack) == 0
    page.goto(f"{run}/tasks/gate")
    page.get_by_text("Skipped", exact=True).first.wait_for()

    page.goto(f"{run}/tasks/approve")
    page.get_by_label("Press shift+c to clear").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Confirm").click()
    dialog.wait_for(state="hidden")
    until(lambda: waits(3), 600)
    answer(page, run, "Approve")
    assert stack.finished(DAG, run_id)["state"] == "success"
    assert (states()["approve"], states()["gate"]) == ("success", "success")
    assert Artifact.find(store, ArtifactId("vetoed/rejected", VERSION)) is None
    assert events_of_the_mixture(stack) == 1
    page.goto(f"{run}/tasks/gate")
    page.get_by_text("Success", exact=True).first.wait_for()

    following = begun_after(stack)
    assert following["arms"][0]["weights"] == {"notes": 0.5, "verse": 0.5}, "the recipe has 0.1 and 0.9"
    assert "The current mixture is the decision of vetoed/mixture@v1." in following["registered"]["rules"]
    [known] = following["evidence"]["cycles"]
    assert (known["artifact"], len(known["runs"])) == ("vetoed/mixture@v1", 3)

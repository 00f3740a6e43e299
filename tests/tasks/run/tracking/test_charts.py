"""The order of MLflow's charts, by the rule of its page (`tasks.run.tracking.describe`).

The soak test asks the page itself; run it after a change of the version of MLflow.
"""

import re
from pathlib import Path

import pytest

from tasks.run.tracking import Message, TrackingContext, describe
from tasks.run.tracking.send import StageRun
from tests.conftest import run_stage_in
from tests.tasks.run.toy_stage import ToyConfig
from tests.tasks.run.tracking.test_tracking import CHROMIUM, CHROMIUM_FLAGS

DOCS = Path(__file__).parents[4] / "docs" / "training.md"
OWN, SYSTEM = "Model metrics", "System metrics"


def sections(names: list[str]) -> list[str]:
    """The sections of the page, from the first one on."""
    found = {name.rpartition("/")[0] for name in names}
    others = sorted(found - {"", "system"})
    return [*others, *([OWN] if "" in found else []), *([SYSTEM] if "system" in found else [])]


def logged() -> list[str]:
    """The metrics of a training, as docs/training.md lists them."""
    table = DOCS.read_text().split("## Watching a run")[1].split("**MFU**")[0]
    names = [
        name
        for line in table.splitlines()
        if line.startswith("| `")
        for name in re.findall("`(.*?)`", line.split("|")[1])
    ]
    return [f"step_s{name}" if name.startswith("/") else re.sub("<.*>", "some", name) for name in names]


def test_loss_is_the_first_chart_of_a_training_and_machine_and_alerts_are_the_last_ones() -> None:
    names = [describe.series_name(name) for name in logged()]
    assert {"loss", "bpb", "alert/some", "gpu/busy", "step_s/p90"} <= {*logged()}
    assert sections(names) == ["loss", "loss_by_source", "optimizer", "speed", SYSTEM]
    assert sorted(name for name in names if name.startswith("loss/")) == ["loss/heldout_bpb", "loss/train"]
    assert "system/alert.some" in names
    numbers = [describe.number_name(name) for name in ("loss", "rows_in", "alerts/slow", "faults/poison")]
    assert sections([*names, *numbers])[-2:] == [OWN, SYSTEM]


@pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="no chromium on this machine (apt-get install chromium)")
@pytest.mark.soak
def test_the_page_of_a_run_shows_the_charts_in_this_order(server: str, tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    artifact = run_stage_in(tmp_path, "tests.tasks.run.toy_stage", ToyConfig(), kind="toy")
    run = StageRun(artifact.store, Message(TrackingContext(server, "charts"), "charts", "train"))
    for step in range(3):
        run.metrics(step, dict.fromkeys(logged(), 1.0))
    assert run.close("FINISHED", artifact)
    expected = [
        one for one in sections([describe.series_name(name) for name in [*logged(), "rows_in"]]) if one != SYSTEM
    ]
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        page = browser.new_context(viewport={"width": 1400, "height": 2400}).new_page()
        page.set_default_timeout(60_000)
        page.goto(run.url.replace("?", "/model-metrics?"))
        heads = page.locator(".du-bois-light-collapse-header, [class*=collapse-header]")
        heads.nth(len(expected) - 1).wait_for()
        shown = [text.split("\n")[0] for text in heads.all_inner_texts()]
        browser.close()
    assert shown == expected

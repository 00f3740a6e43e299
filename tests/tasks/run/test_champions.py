"""The champion version: decided in the store, and mirrored by the aliases of MLflow's registry."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tasks.core.artifact import ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.errors import InputError
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.run.inputs import resolve
from tasks.run.lineage import chain_of
from tasks.run.place import Retention
from tasks.run.retention import survey
from tasks.run.trace.cards import card
from tasks.run.tracking.outbox import OUTBOX, send_messages
from tasks.stages.registry.promote import model_ref
from tasks.trainer.interchange.huggingface import llama_name
from tasks.trainer.interchange.weights import tensors_in
from tests.kills import die_in
from tests.tasks.run.champions import FIRST, JUDGED, STEPS, Champions, champions_in, recipe_in
from tests.tasks.run.tracking.servers import client, free_port, relay

YOUNG, CHILD, MIDDLE, OLD = STEPS


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Champions:
    """A store with tokens and milestones, and no decision yet."""
    return champions_in(tmp_path_factory.mktemp("champions"))


@pytest.fixture(scope="module")
def judged(begun: Champions, tmp_path_factory: pytest.TempPathFactory) -> Champions:
    """A copy of it in which the model of v1 is champion, as the first one."""
    made = copied(begun, tmp_path_factory.mktemp("judged") / "store")
    made.judge("v1", YOUNG)
    return made


@pytest.fixture
def champions(judged: Champions, tmp_path: Path) -> Champions:
    """A copy of the store with a champion."""
    return copied(judged, tmp_path / "store")


def copied(begun: Champions, folder: Path) -> Champions:
    shutil.copytree(begun.store.root, folder)
    return Champions(Store(str(folder)), recipe_in(folder))


def test_the_champion_changes_only_if_a_model_is_significantly_better(champions: Champions) -> None:
    first = champions.decision("v1")
    assert (first["champion"]["artifact"], first["promoted"]) == ("test/model@v1", True)
    assert first["reason"] == ("test/model@v1 becomes champion: it is the first, there was none to compare it with")
    better = champions.judge("v2", OLD)
    assert (better["champion"]["artifact"], better["promoted"]) == ("test/model@v2", True)
    assert better["reason"].startswith("test/model@v2 becomes champion: better than test/model@v1 by +")
    itself = champions.judge("v3", OLD)
    assert (itself["champion"], itself["promoted"]) == (better["champion"], False)
    compared = champions.comparison("v3")
    assert compared["score"]["interval"] == [0.0, 0.0]
    assert [row["difference"] for row in compared["rows"]] == [0.0, 0.0, 0.0]
    worse = champions.judge("v4", CHILD)
    assert (worse["champion"], worse["promoted"]) == (better["champion"], False)
    assert worse["reason"].startswith("test/model@v2 stays champion: test/model@v4 is surely worse, -")
    assert {row["name"] for row in champions.comparison("v4")["rows"] if row["worse"]} == {"code", "my-books", "web"}


def test_rejecting_a_challenger_keeps_the_last_decision(champions: Champions) -> None:
    champions.checkpoint("v2", MIDDLE)
    for stage in JUDGED[:3]:  # the approval precedes the last task
        champions.run(stage, "v2")
    assert champions.comparison("v2")["promoted"]
    champions.judge("v3", OLD)
    assert champions.comparison("v3")["champion"]["artifact"] == "test/model@v1"


def test_a_verdict_is_valid_only_for_the_champion_it_compared(champions: Champions) -> None:
    champions.checkpoint("v2", OLD)
    for stage in JUDGED[:3]:
        champions.run(stage, "v2")
    champions.judge("v3", MIDDLE)
    with pytest.raises(InputError, match=r"is with test/model@v1, but the champion is test/model@v3 now"):
        champions.run("promote", "v2")


def test_a_deleted_champion_is_named_with_a_remedy(champions: Champions) -> None:
    champions.artifact("model", "v1").remove()
    champions.checkpoint("v2", OLD)
    for stage in JUDGED[:2]:
        champions.run(stage, "v2")
    with pytest.raises(InputError, match=r"test/champion@v1 names test/model@v1 as champion, which is gone"):
        champions.run("compare", "v2")


def test_a_guarded_source_without_held_out_text_is_refused_before_anything_is_scored(champions: Champions) -> None:
    champions.checkpoint("v2", OLD)
    for stage in JUDGED[:2]:
        champions.run(stage, "v2")
    files = [{"name": name, "kind": "text", "path": "/nowhere/*"} for name in ("code", "new")]
    with pytest.raises(InputError, match='guarded: no source with held-out text and no task is called "new"'):
        champions.run("compare", "v2", promote__guarded=["new"], extract__files=files)
    assert not champions.store.list("test/comparison/v2")


@pytest.mark.soak
def test_a_killed_comparison_ends_with_the_same_bytes(judged: Champions, champions: Champions, tmp_path: Path) -> None:
    whole = copied(judged, tmp_path / "whole")
    for one in (champions, whole):
        one.checkpoint("v2", OLD)
        for stage in JUDGED[:2]:
            one.run(stage, "v2")
    program = [sys.executable, "-m", __spec__.name, champions.store.root]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL
    parts = Path(champions.store.root, "test", "comparison", "v2", ".parts")
    assert {path.stem.partition(".")[0] for path in parts.glob("*.json")} == {"champion", "challenger"}
    for one in (champions, whole):
        one.run("compare", "v2")
        one.run("promote", "v2")
    for kind in ("comparison", "champion"):
        assert champions.artifact(kind, "v2").record.content == whole.artifact(kind, "v2").record.content


def weights(path: str) -> dict[str, np.ndarray]:
    return {name: tensor.values() for name, tensor in tensors_in(Path(path))}


def test_the_better_one_of_the_merged_and_the_last_checkpoint_challenges_the_champion(champions: Champions) -> None:
    merging = {"merge__last": 3}
    for version, last, chosen in (("v2", OLD, False), ("v3", YOUNG, True)):
        champions.whole_run(version, last)
        for stage in ("evaluate", "register", "merge", "compare", "promote"):
            champions.run(stage, version, **merging)
        compared = champions.comparison(version)
        kind = "merged_model" if chosen else "model"
        assert compared["merged"]["artifact"] == f"test/merged_model@{version}"
        assert compared["merged"]["chosen"] is chosen is (compared["merged"]["interval"][0] > 0)
        assert compared["challenger"]["artifact"] == f"test/{kind}@{version}"
        said = f"{'is' if chosen else 'is not'} the challenger: better than the last checkpoint by"
        assert f"`test/merged_model@{version}`, the mean of checkpoints" in (
            report := champions.artifact("comparison", version).read("report.md").decode()
        )
        assert said in report
    assert champions.decision("v2")["champion"]["artifact"] == "test/model@v2"
    # The champion is compared with the merged model alone.
    assert {row["items"] for row in champions.comparison("v3")["rows"]} == {
        row["items"] for row in champions.comparison("v2")["rows"]
    }


def test_a_merged_model_is_the_mean_of_the_last_checkpoints_before_the_decay_and_names_them(
    champions: Champions,
) -> None:
    champions.whole_run("v2")
    for stage in ("evaluate", "register", "merge"):
        champions.run(stage, "v2", merge__last=3)
    merged, checkpoint = champions.artifact("merged_model", "v2"), champions.artifact("checkpoint", "v2")
    steps = [24, 30, 36]  # of 60, with a decay of 24 steps and a milestone every 6
    assert json.loads(merged.read("model/lineage.json"))["merged"] == steps
    assert {ref.address for ref in merged.record.inputs} == {"test/checkpoint@v2", "test/model@v2"}
    files = [weights(checkpoint.local(f"checkpoints/step-{step:08d}/model.safetensors")) for step in steps]
    found = weights(merged.local("model/model.safetensors"))
    assert len(found) == len(files[0])
    for name in files[0]:
        mean = np.mean([one[name] for one in files], axis=0, dtype=np.float64).astype(np.float32)
        np.testing.assert_array_equal(found[llama_name(name)], mean)
    assert "mean of the checkpoints after 24, 30, 36 steps; the scores" in card(chain_of(merged), ())
    assert "test/merged_model@v2" in {
        one.artifact for one in survey(champions.store, "test", Retention(versions=1)).holdings if one.needed
    }
    champions.whole_run("v3")
    for stage in ("evaluate", "register"):
        champions.run(stage, "v3")
    with pytest.raises(InputError, match=r"last = 7: test/checkpoint@v3 has 6 checkpoints before its decay"):
        champions.run("merge", "v3", merge__last=7, train__milestones=20)


def test_a_run_can_begin_from_the_champion_whose_merged_model_leads_to_its_checkpoint(champions: Champions) -> None:
    recipe = champions.recipe.override({"train.init_from": "champion"})

    def chosen() -> str:
        return str(resolve(recipe, champions.store, "train", "next", FIRST, "").inputs["initial"].address)

    assert chosen() == "test/checkpoint@v1"
    champions.judge("v2", OLD)
    champions.judge("v3", CHILD)  # stays challenger
    assert chosen() == "test/checkpoint@v2"
    champions.whole_run("v4", YOUNG)
    for stage in ("evaluate", "register", "merge"):
        champions.run(stage, "v4", merge__last=3)
    decision = {"champion": model_ref(champions.artifact("merged_model", "v4"))}
    output = Output(champions.store, ArtifactId("test/champion", "v4"), "by-hand")
    with output.part("champion.json", conserved=False) as part, part.file("champion.json") as file:
        file.write(json.dumps(decision).encode())
    commit(output, "promote", 1, Config(), [], Report())
    assert chosen() == "test/checkpoint@v4"


def aliases(uri: str) -> dict[str, str]:
    """Returns the artifact of each alias of the registered model."""
    held = client(uri)
    names = held.get_registered_model("test").aliases
    return {alias: held.get_model_version_by_alias("test", alias).tags["sluice.artifact"] for alias in names}


def test_aliases_follow_the_newest_decision_in_any_order_of_logging(
    begun: Champions, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    champions = copied(begun, tmp_path / "store")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    champions.checkpoint("v1", YOUNG)
    for stage in JUDGED:
        champions.run(stage, "v1", uri if stage in ("compare", "promote") else "")  # without a listener
    missed = {path: champions.store.read(path) for path in champions.store.list(OUTBOX)}
    assert len(missed) == 2
    with relay(port, server):
        assert send_messages(champions.store).sent == 2
        assert aliases(uri) == {"champion": "test/model@v1", "challenger": "test/model@v1"}
        champions.judge("v2", OLD, uri)
        assert aliases(uri) == {"champion": "test/model@v2", "challenger": "test/model@v2"}
        for path, message in missed.items():
            with champions.store.write(path) as file:
                file.write(message)
        assert send_messages(champions.store).sent == 2
        assert aliases(uri) == {"champion": "test/model@v2", "challenger": "test/model@v2"}, "none is moved back"
        champions.judge("v3", MIDDLE, uri)
        assert aliases(uri) == {"champion": "test/model@v2", "challenger": "test/model@v3"}
        held = client(uri)
        assert len(held.search_model_versions("name='test'")) == 3
        experiment = held.get_experiment_by_name("test").experiment_id
        found = held.search_runs([experiment], "tags.`sluice.artifact` = 'test/comparison@v3'")
        (run,) = found
        assert {"report.md", "comparison.png"} <= {entry.path for entry in held.list_artifacts(run.info.run_id)}
        assert run.data.metrics["promoted"] == 0
        assert run.data.metrics["score/high"] < 0


if __name__ == "__main__":
    die_in("challenger", 2, folder="test/comparison")
    root = Path(sys.argv[1])
    Champions(Store(str(root)), recipe_in(root)).run("compare", "v2")

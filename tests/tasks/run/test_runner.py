"""The runner on the cheap first stage of a real recipe: skips, refusals, and the start of a cycle."""

import json
import logging
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tasks.core.artifact import REMOVED, TRACKING, Artifact, ArtifactId, InputRef
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.errors import DriftError, InputError, RecipeError, StoppedError, TransientError
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.formats.warc.archive import MANIFEST, MANIFEST_SCHEMA
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.result import StageResult
from tasks.run.runner import open_store, run_stage
from tasks.run.shell import main
from tasks.run.tracking import TrackingContext
from tasks.stages.crawl.rank import RANKS
from tasks.stages.crawl.storage import crawldb
from tasks.stages.crawl.storage.crawldb import KnownUrls
from tasks.trainer.place import CheckpointLocations, CopyFolder, Layout, PreemptionNotice, Timeouts, TrainPlace
from tests.corpora import tokens_in
from tests.decisions import commit_decision, decision

EMPTY = {
    crawldb.URLS_FILE: crawldb.URLS,
    crawldb.HOSTS_FILE: crawldb.HOSTS,
    crawldb.ROBOTS_FILE: crawldb.ROBOTS,
    crawldb.EDGES_FILE: crawldb.EDGES,
}


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("SLUICE_STORE", str(tmp_path / "store"))
    return find_recipe("demo")


def test_an_unchanged_stage_is_skipped_and_keeps_its_record(recipe: Recipe) -> None:
    first = run_stage(recipe, "inject")
    again = run_stage(recipe, "inject")
    assert (first.skipped, again.skipped) == (False, True)
    assert (again.fingerprint, again.content, again.members) == (first.fingerprint, first.content, ("p0", "p1"))


def test_an_artifact_is_made_even_if_its_temporary_files_stay_which_the_next_run_removes(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: object) -> None:
        raise TransientError("the store did not answer")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "remove", refused)
        first = run_stage(recipe, "inject")
    assert (
        "demo/seeds@dev] is complete, but temporary files are left, which the next run of its stage removes: the store"
        in caplog.text
    )
    store, folder = open_store(recipe), ArtifactId.parse(first.address).path
    beside = {f"{folder}/{name}" for name in (REMOVED, TRACKING)}
    for path in (*beside, f"{folder}/.live.json", f"{folder}/unlisted.bin"):
        store.publish(path, b'{"url": ""}')
    assert store.exists(f"{folder}/.parts")
    assert run_stage(recipe, "inject").skipped
    artifact = Artifact.open_at(store, ArtifactId.parse(first.address))
    kept = {f"{folder}/{path}" for path in (*artifact.files(), *artifact.record_paths)}
    assert set(store.list(folder, unfinished=True)) == kept | beside
    assert not artifact.verify()


def test_a_changed_field_is_refused_with_both_values_and_a_remedy(recipe: Recipe) -> None:
    run_stage(recipe, "inject")
    with pytest.raises(DriftError, match=r"crawl\.max_pages was 450 and is 451.*another version"):
        run_stage(recipe.override({"crawl.max_pages": 451}), "inject")
    assert not run_stage(recipe.override({"crawl.max_pages": 451}), "inject", version="next").skipped


def test_the_place_is_not_in_the_fingerprint(recipe: Recipe, tmp_path: Path) -> None:
    elsewhere = recipe.override({"place.store": str(tmp_path / "other"), "place.workers": 3})
    assert run_stage(recipe, "inject").fingerprint == run_stage(elsewhere, "inject").fingerprint


def test_a_missing_input_names_the_stage_that_makes_it(recipe: Recipe) -> None:
    with pytest.raises(InputError, match=r"needs demo/seeds@dev.*[Rr]un the stage inject first"):
        run_stage(recipe, "fetch", member="p0")


def test_a_missing_input_is_read_at_the_source_version_and_dead_seeds_are_named(recipe: Recipe) -> None:
    dead = recipe.override({"crawl.seeds": ["http://library.localhost:9/"], "crawl.partitions": 1})
    for stage, member in (("inject", ""), ("rank", ""), ("generate", "p0")):
        run_stage(dead, stage, member=member)
    with pytest.raises(InputError, match=r"library\.localhost:9.*robots_unavailable") as caught:
        run_stage(dead, "fetch", member="p0", version="v2", source_version="dev")
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


def test_an_unknown_stage_is_refused_with_the_nearest_one(recipe: Recipe) -> None:
    with pytest.raises(RecipeError, match=r'no stage "extrakt"\. Did you mean "extract"'):
        run_stage(recipe, "extrakt")


def test_the_shell_refuses_an_unknown_command_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["extrat", "--recipe", "demo"]) == 2
    assert capsys.readouterr().err == 'sluice: there is no stage or command "extrat". Did you mean "extract"?\n'


def test_a_store_that_cannot_be_used_is_one_line_in_the_shell(
    recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "store").write_text("")
    assert main(["inject", "--recipe", "demo"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"sluice: the store {tmp_path}/store is a file. Set")
    (tmp_path / "store").unlink()
    (tmp_path / "store").symlink_to(tmp_path / "missing")
    assert main(["inject", "--recipe", "demo"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(rf"sluice: the store {tmp_path}/store cannot be created \(.+\)\. Create the folder", line)


def test_the_log_says_rows_only_of_a_stage_that_has_some(recipe: Recipe, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sluice")
    run_stage(recipe, "inject")
    assert caplog.messages[-1] == "[demo/seeds@dev] done: 3 rows in, 3 out"
    run_stage(recipe, "rank")
    assert caplog.messages[-1] == "[demo/ranks@dev] done"


def test_a_silent_dask_scheduler_is_a_retryable_error(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.core.engine._CONNECT_S", 1)
    nowhere = recipe.override({"place.dask.address": "tcp://127.0.0.1:9"})
    with pytest.raises(TransientError, match=r"no Dask scheduler responds at tcp://127\.0\.0\.1:9"):
        run_stage(nowhere, "inject", on_dask=True)


def test_a_cycle_starts_from_the_last_published_one_and_keeps_it(recipe: Recipe, tmp_path: Path) -> None:
    recrawl = recipe.override({"crawl.recrawl": True})
    store = Store(str(tmp_path / "store"))
    given_cycle(store, "1")
    given_cycle(store, "1b", published=False)  # a cycle that was not completed
    second = generate(recrawl, "2")
    assert "demo/crawldb/p0@1" in inputs_of(store, "2")
    assert "demo/crawldb/p0@1b" not in inputs_of(store, "2")
    given_cycle(store, "3")
    # A newer crawl DB does not change the inputs of an older cycle.
    again = generate(recrawl, "2")
    assert again.skipped
    assert again.fingerprint == second.fingerprint


def test_without_recrawl_every_version_is_a_new_crawl(recipe: Recipe, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    given_cycle(store, "1")
    generate(recipe, "2")
    assert inputs_of(store, "2") == ["demo/ranks@2", "demo/seeds@2"]


def test_another_number_of_partitions_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    given_cycle(Store(str(tmp_path / "store")), "1")
    with pytest.raises(InputError, match=r"has 2 members, the recipe has 3. Set crawl.partitions = 2"):
        generate(recipe.override({"crawl.recrawl": True, "crawl.partitions": 3}), "2")


def generate(recipe: Recipe, version: str) -> StageResult:
    """Runs the stages up to the fetch list of the first partition."""
    run_stage(recipe, "inject", version=version)
    run_stage(recipe, "rank", version=version)
    return run_stage(recipe, "generate", member="p0", version=version)


def given_cycle(store: Store, version: str, *, published: bool = True) -> None:
    """Puts an empty crawl DB into the store in the layout of `update`, with the `warc` artifact that completes it."""
    made = []
    for name in ("p0", "p1"):
        output = Output(store, ArtifactId(f"demo/crawldb/{name}", version), version, member=name)
        with output.part("urls", conserved=False) as part:
            for file, schema in EMPTY.items():
                with part.file(file) as raw:
                    pq.write_table(schema.empty_table(), raw)
            with part.file(crawldb.KNOWN_FILE) as raw:
                raw.write(KnownUrls().to_bytes())
        made.append(commit(output, "update", 1, Config(), (), Report()))
    output = Output(store, ArtifactId("demo/ranks", version), version)
    with output.part("ranks", conserved=False) as part:
        with part.file("ranks.parquet") as raw:
            pq.write_table(RANKS.empty_table(), raw)
        with part.file("cycle.json") as raw:
            raw.write(b'{"cycle": 1, "computed": 0}')
    commit(output, "rank", 1, Config(), (), Report())
    if published:
        refs = [
            InputRef(role="crawldb", address=str(one.address), fingerprint=one.record.fingerprint, content="")
            for one in made
        ]
        output = Output(store, ArtifactId("demo/warc", version), version)
        with output.part("manifest"):
            pass
        commit(output, "publish", 1, Config(), refs, Report())


def inputs_of(store: Store, version: str) -> list[str]:
    record = Artifact.open_at(store, ArtifactId("demo/fetchlist/p0", version)).record
    return sorted(ref.address for ref in record.inputs)


def test_the_shell_prints_the_same_result_and_exits_with_a_status(
    recipe: Recipe, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inject", "--recipe", "demo"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["fingerprint"] == run_stage(recipe, "inject").fingerprint
    assert main(["inject", "--recipe", "demo", "--set", "crawl.max_pages=oops"]) == 2
    assert capsys.readouterr().err.startswith("sluice: override: crawl.max_pages")


def test_the_record_has_code_host_and_times(recipe: Recipe, tmp_path: Path) -> None:
    run_stage(recipe, "inject")
    record = Artifact.open_at(Store(str(tmp_path / "store")), ArtifactId("demo/seeds", "dev")).record
    assert record.code["version"]
    assert record.host["python"].startswith("3.11")
    assert record.started <= record.finished


def placed(recipe: Recipe, train: TrainPlace) -> Recipe:
    return recipe.model_copy(update={"place": recipe.place.model_copy(update={"train": train})})


def test_a_stage_gets_the_training_place_of_its_recipe_with_variables_expanded(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVME", "/mnt/nvme")
    seen = []

    def run(config: object, inputs: object, output: Output, engine: object) -> Report:
        seen.append(TrainPlace.of(output.place))
        raise InputError("enough")

    monkeypatch.setattr("tasks.stages.crawl.inject.run", run)
    layout, notice = Layout(shard=3, recompute="full"), PreemptionNotice(provider="gcp")
    given, expanded = (
        TrainPlace(
            nproc=3,
            layout=layout,
            checkpoints=CheckpointLocations(folder=CopyFolder(path=f"{root}/checkpoints", every=500)),
            preemption=notice,
            timeouts=Timeouts(step_s=9),
        )
        for root in ("${NVME}", "/mnt/nvme")
    )
    for place in (TrainPlace(nproc=2), given):
        with pytest.raises(InputError, match="enough"):
            run_stage(placed(recipe, place), "inject")
    assert seen == [TrainPlace(nproc=2), expanded]
    monkeypatch.setenv("PET_NPROC_PER_NODE", "5")
    assert main(["inject", "--recipe", "demo"]) == 2
    assert seen[2] == recipe.place.train.model_copy(update={"nproc": 5})


@pytest.mark.parametrize("recrawl", [True, False])
@pytest.mark.parametrize(("named", "first"), [({"code": 0.5, "web": 0.5}, 0.8), ({"code": 0.3, "web": 0.7}, 0.3)])
def test_a_cycle_starts_with_the_decided_mixture_unless_the_recipe_changed_it(
    recipe: Recipe, tmp_path: Path, recrawl: bool, named: dict[str, float], first: float
) -> None:
    mine = recipe.override({"name": "test", "crawl.recrawl": recrawl, "canary.current": {"code": 0.5, "web": 0.5}})
    store = Store(str(tmp_path / "store"))
    tokens_in(tmp_path / "store")
    commit_decision(tmp_path / "store", "test/mixture@1", decision({"code": 0.8, "web": 0.2}), mine.canary)
    run_stage(mine.override({"canary.current": named}), "arms", version="2", source_version="dev", member="round-1")
    arms = json.loads(Artifact.open_at(store, ArtifactId("test/arms/round-1", "2")).read("arms.json"))
    assert arms[0]["weights"]["code"] == first


def test_external_files_are_pinned_per_version(recipe: Recipe, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.txt").write_text("A text that is long enough to be a document. " * 20)
    source = {"name": "notes", "kind": "text", "path": f"{notes}/*.txt"}
    mine = recipe.override({"extract.files": [source], "canary.current": {}})
    no_captures(Store(str(tmp_path / "store")))
    first = run_stage(mine, "extract")
    assert first.rows["out"] == 1
    (notes / "b.txt").write_text("Another text that is long enough to be a document. " * 20)
    assert run_stage(mine, "extract").skipped
    later = run_stage(mine, "extract", version="later", source_version="dev")
    assert later.rows["out"] == 2
    assert later.fingerprint != first.fingerprint


def no_captures(store: Store) -> None:
    """Puts a `warc` artifact without files into the store in the layout of `publish`."""
    output = Output(store, ArtifactId("demo/warc", "dev"), "none")
    with output.part("warc", conserved=False) as part, part.file(MANIFEST) as file:
        pq.write_table(MANIFEST_SCHEMA.empty_table(), file)
    commit(output, "publish", 1, Config(), (), Report())


@pytest.mark.parametrize(
    ("error", "status"), [(StoppedError("asked to stop"), "KILLED"), (InputError("no input"), "FAILED")]
)
def test_a_stopped_run_is_reported_as_killed_and_not_as_failed(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, status: str
) -> None:
    def run(*_: object) -> Report:
        raise error

    monkeypatch.setattr("tasks.stages.crawl.inject.run", run)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    nowhere = TrackingContext("http://127.0.0.1:9", recipe.name)
    with pytest.raises(type(error)):
        run_stage(recipe, "inject", tracking=nowhere)
    [kept] = (tmp_path / "store" / ".outbox").iterdir()
    assert json.loads(kept.read_bytes())["status"] == status

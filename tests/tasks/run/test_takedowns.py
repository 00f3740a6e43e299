"""Contract of takedowns as inputs: later versions respect them, earlier ones do not change, audits report both."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.errors import DriftError
from tasks.core.stage import Output, Report
from tasks.run.catalogue import STAGES
from tasks.run.inputs import takedowns_in_force
from tasks.run.recipe import Recipe
from tasks.run.result import StageResult
from tasks.run.runner import open_store, run_stage
from tasks.run.shell import main
from tasks.run.trace.audit import audit
from tasks.run.tracking import TrackingContext
from tests.tasks.run.test_adopted import REFINE, TOKENS, small_recipe


def made(recipe: Recipe, stages: tuple[str, ...], version: str, source: str | None = None) -> dict[str, StageResult]:
    context = TrackingContext("", recipe.name)
    return {
        stage: run_stage(recipe, stage, version=version, source_version=source, tracking=context) for stage in stages
    }


def artifact(recipe: Recipe, address: str) -> Artifact:
    return Artifact.open_at(open_store(recipe), ArtifactId.parse(address))


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return small_recipe(tmp_path)


def test_a_takedown_applies_to_later_versions_and_does_not_change_earlier_ones(recipe: Recipe, capsys) -> None:
    before = made(recipe, REFINE + TOKENS, "1")
    ids = (
        artifact(recipe, "smoke/documents@1").table("kept/part-00000-of-00004.parquet", ["id"]).column("id").to_pylist()
    )
    gone = ids[0]
    text = recipe.override({"place.mlflow": ""}).text
    asked = ["takedown", "--recipe", text, "--document", gone, "--reason", "asked", "--requested-by", "Ann"]
    assert main([*asked, "--date", "2026-11-21T09:30:15+00:00"]) == 0
    assert json.loads(capsys.readouterr().out)["address"] == "smoke/takedown@2026.11.21-093015"

    # Existing artifacts are kept, and not silently treated as current.
    assert artifact(recipe, "smoke/documents@1").record.content == before["consolidate"].content
    with pytest.raises(DriftError, match=r"the takedown smoke/takedown@.* came into force after it was made"):
        made(recipe, ("consolidate",), "1")
    found = audit(open_store(recipe), recipe.name).to_json()
    assert [(one["kind"], one["present"]) for one in found["checked"]] == [("documents", 1), ("plan", 1)]
    assert main(["audit", "--recipe", text]) == 1
    assert "made before the takedown: run corpus again" in capsys.readouterr().out

    # Only tokens, from the old shards: the plan is free of it.
    only = made(recipe, ("pack",), "tokens", "1")["pack"]
    assert only.rows["takedown"] == 1
    # Everything: documents are free of it, and later artifacts are adopted or derived from these.
    after = made(recipe, REFINE + TOKENS, "2", "1")
    assert [stage for stage in REFINE if not after[stage].skipped] == ["consolidate"]
    assert after["consolidate"].rows["takedown"] == 1
    answer = audit(open_store(recipe), recipe.name)
    found = answer.to_json()
    assert found["absent"]
    assert found["takedowns"] == [
        {
            "takedown": "smoke/takedown@2026.11.21-093015",
            "date": "2026-11-21T09:30:15+00:00",
            "requested_by": "Ann",
            "reason": "asked",
            "new": {"document": 1},
            "lifts": {},
        }
    ]
    assert found["values"] == {"document": [gone]}
    assert main(["audit", "--recipe", text, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found
    assert "for Ann: asked" in answer.text()

    # And back: a lifted document is handled as if it had never been taken down.
    lifted = ["takedown", "--recipe", text, "--lift", gone, "--reason", "a slip", "--date", "2026-11-22T00:00:00+00:00"]
    assert main(lifted) == 0
    back = made(recipe, ("extract", "annotate", "dedup", "consolidate"), "3", "2")["consolidate"]
    assert artifact(recipe, "smoke/documents@3").record.content == before["consolidate"].content
    assert "takedown" not in back.rows
    answer = audit(open_store(recipe), recipe.name)
    found = answer.to_json()
    assert [(one["new"], one["lifts"]) for one in found["takedowns"]] == [({}, {}), ({}, {"document": 1})]
    assert "nothing new, lifts 1 document: a slip" in answer.text()


def test_a_takedown_without_matches_reruns_consolidate_and_pack_but_no_training(recipe: Recipe) -> None:
    recipe = recipe.override({"makes": ["documents", "tokens", "checkpoint"]})
    made(recipe, (*REFINE, *TOKENS, "train"), "1")
    nowhere = recipe.override({"takedown.urls": "http://nowhere.net/", "takedown.date": "2026-11-21T09:30:15"})
    made(nowhere, ("takedown",), "t1")
    after = made(recipe, (*REFINE, *TOKENS, "train"), "2", "1")
    assert [stage for stage in after if not after[stage].skipped] == ["consolidate", "pack"]
    assert artifact(recipe, "smoke/plan@1").record.content == artifact(recipe, "smoke/plan@2").record.content


def test_a_takedown_is_stored_once_and_the_next_one_contains_it(recipe: Recipe) -> None:
    first = recipe.override({"takedown.urls": "http://a.net/"})
    assert not made(first, ("takedown",), "t1")["takedown"].skipped
    made(recipe.override({"takedown.urls": "http://b.net/"}), ("takedown",), "t2")
    assert made(first, ("takedown",), "t1")["takedown"].skipped
    with pytest.raises(DriftError, match=r"takedown\.urls was"):
        made(recipe.override({"takedown.urls": "http://c.net/"}), ("takedown",), "t1")
    rows = artifact(recipe, "smoke/takedown@t2").table("tombstones.parquet").to_pylist()
    assert [row["value"] for row in rows] == ["http://a.net/", "http://b.net/"]


def test_a_crawl_cycle_keeps_the_takedowns_it_started_with(recipe: Recipe) -> None:
    store = open_store(recipe)
    table = pa.table({"url": ["http://a.net/"]})
    before = by_hand(recipe, "fetchlist/p0", "c1", "urls.parquet", table)
    made(recipe.override({"takedown.domains": "gone.net"}), ("takedown",), "t1")

    def read(stage: str, kind: str, version: str, **current: Artifact) -> list[str]:
        own = ArtifactId(f"smoke/{kind}/p0", version)
        found = takedowns_in_force(recipe, store, STAGES[stage], own, current, {})
        return [str(one.address) for several in found.values() for one in several]

    assert read("generate", "fetchlist", "c1") == []
    assert read("fetch", "segment", "c1", fetchlist=before) == []
    assert read("generate", "fetchlist", "c2") == ["smoke/takedown@t1"]


def test_the_newest_crawl_db_has_no_url_taken_down_before_any_fetch(recipe: Recipe) -> None:
    made(recipe.override({"takedown.domains": "gone.net"}), ("takedown",), "t1")
    due = datetime(2026, 11, 1, tzinfo=UTC)
    for version, when, present in (("c1", due, 1), ("c2", None, 0)):
        rows = [{"url": "http://www.gone.net/a", "next_due": when}, {"url": "http://stays.net/", "next_due": due}]
        schema = pa.schema([("url", pa.string()), ("next_due", pa.timestamp("us", tz="UTC"))])
        known = by_hand(recipe, "crawldb/p0", version, "urls.parquet", pa.Table.from_pylist(rows, schema=schema))
        by_hand(recipe, "warc", version, "manifest.parquet", pa.table({"path": ["a"]}), known)
        (checked,) = audit(open_store(recipe), recipe.name).to_json()["checked"]
        assert (checked["artifact"], checked["present"]) == (f"smoke/crawldb/p0@{version}", present)
        assert checked["examples"] == ["http://www.gone.net/a"] * present


def by_hand(recipe: Recipe, kind: str, version: str, path: str, table: pa.Table, *inputs: Artifact) -> Artifact:
    """Commits one table as an artifact with inputs."""
    output = Output(open_store(recipe), ArtifactId(f"smoke/{kind}", version), "by hand")
    with output.part("all", conserved=False) as part, part.file(path) as file:
        pq.write_table(table, file)
    return commit(output, "by hand", 1, Config(), [one.ref("crawldb") for one in inputs], Report())


def test_a_recipe_without_takedowns_has_no_takedown_inputs(recipe: Recipe, capsys) -> None:
    assert main(["audit", "--recipe", recipe.text]) == 0
    assert capsys.readouterr().out == "smoke has no takedown\n\nnothing was made yet\n"

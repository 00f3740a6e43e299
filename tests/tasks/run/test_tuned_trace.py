"""Fine-tuned models in traces and takedowns: from steps to pages and back, and to their base."""

import json
from pathlib import Path

import pytest

from tasks.core.errors import DriftError, InputError
from tasks.formats.documents.examples import Examples
from tasks.run.trace.audit import audit
from tasks.run.trace.text import render
from tasks.run.trace.trace import trace
from tests.tasks.run.tunings import PAPER, Tunings, tunings

__all__ = ["tunings"]

NOTE = "file://notes/3.txt"


@pytest.fixture
def own(tunings: Tunings, tmp_path: Path) -> Tunings:
    """A copy of the store for a test that adds to it."""
    return tunings.copied(tmp_path / "store")


def steps_with(tunings: Tunings, version: str, url: str) -> list[int]:
    """The steps of a fine-tuning that name a page, from traces of all steps."""
    steps = range(4)
    return [
        s
        for s in steps
        if any(r["url"] == url for r in trace(tunings.store, "mine", version, f"tuned:{s}").to_json()["rows"])
    ]


def test_a_step_names_chunks_documents_pages_and_boxes(tunings: Tunings) -> None:
    examples = Examples(tunings.artifact("examples", "1"))
    chunks = tunings.artifact("chunks", "1")
    rows = {row["id"]: row for path in chunks.files("chunks/") for row in chunks.table(path).to_pylist()}
    found = [row for step in range(4) for row in trace(tunings.store, "mine", "1", f"tuned:{step}").to_json()["rows"]]
    assert found
    for row in found:
        chunk = rows[row["chunk"]]
        assert (row["document"], row["url"], row.get("pages")) == (chunk["document"], chunk["url"], chunk["pages"])
        assert row.get("boxes") == chunk["boxes"]
        assert row["chunk"] in {one["chunk"] for one in examples.sources(row["sequence"])}
    step = steps_with(tunings, "1", PAPER)[0]
    told = render(trace(tunings.store, "mine", "1", f"tuned:{step}"))
    assert told.startswith(f"step {step} of mine/finetuned@1, begun from mine/checkpoint@1: ")
    assert f"{PAPER}, page 1  chunk " in told
    assert "    page 1, box 60, " in told
    with pytest.raises(InputError, match="Its steps are 0 to 3"):
        trace(tunings.store, "mine", "1", "tuned:4")
    with pytest.raises(InputError, match="it as tuned:42"):
        trace(tunings.store, "mine", "1", "tuned:last")


def test_a_page_is_traced_to_the_steps_of_base_and_fine_tuned_model(own: Tunings) -> None:
    by_url = trace(own.store, "mine", "1", PAPER).to_json()
    (document,) = by_url["documents"]
    by_id = trace(own.store, "mine", "1", document["id"]).to_json()
    for found in (by_url, by_id):
        one = next(one for one in found["tuned"] if one["model"] == "mine/finetuned@1")
        assert (one["bases"], one["problem"]) == (["mine/checkpoint@1"], "")
        (tuned,) = one["documents"]
        assert tuned["id"] == document["id"]
        assert tuned["steps"] == steps_with(own, "1", PAPER) != []
        assert [row["pages"] for row in tuned["examples"]] == [[1], [2]]
        assert tuned["checkpoints"] == [count for count in (2, 4) if count > tuned["steps"][0]]
    told = render(trace(own.store, "mine", "1", PAPER))
    assert "fine-tuned: mine/finetuned@1, begun from mine/checkpoint@1" in told
    assert "  examples   2 chunks, of page 1, 2" in told
    # At a version with only a fine-tuning, the steps are those of its base.
    taught = own.tune("taught", examples__chunks={"sources": ["notes"]})
    assert taught.record.inputs[0].role == "base"
    note = trace(own.store, "mine", "taught", NOTE).to_json()
    assert note["documents"] == trace(own.store, "mine", "1", NOTE).to_json()["documents"]
    assert {one["model"] for one in note["tuned"]} == {"mine/finetuned@1", "mine/finetuned@taught"}
    assert "none of the 4 steps read it" in render(trace(own.store, "mine", "taught", PAPER))


def tuned_elsewhere(tunings: Tunings) -> Tunings:
    """A recipe whose model was fine-tuned again, with chunks of this one."""
    file = tunings.artifact("tokenizer", "1").local("tokenizer.json")
    chunks = {"of": "mine/chunks@1", "kinds": ["text"]}
    settings = {"name": "other", "examples.chunks": chunks, "finetune.base": "mine/finetuned@1", "tokenizer.file": file}
    other = Tunings(tunings.recipe.override(settings), tunings.store)
    for stage in ("extract", "annotate", "dedup", "consolidate", "tokenizer"):
        other.run(stage, "1", None)
    other.tune("1")
    return other


def test_a_model_fine_tuned_twice_names_all_its_bases_in_any_recipe(own: Tunings) -> None:
    other = tuned_elsewhere(own)
    assert {ref.role: ref.address for ref in other.artifact("examples", "1").record.inputs} == {
        "other_chunks": "mine/chunks@1",
        "tokenizer": "other/tokenizer@1",
        "files": "external:files",
    }
    (one,) = (
        one for one in trace(own.store, "mine", "1", PAPER).to_json()["tuned"] if one["model"].startswith("other/")
    )
    assert one["bases"] == ["mine/finetuned@1", "mine/checkpoint@1"]
    assert one["documents"][0]["url"] == PAPER


def test_documents_learned_as_chunks_are_excluded_from_held_out_text(own: Tunings) -> None:
    with pytest.raises(InputError, match="there is nothing to compare mine/finetuned@1 with its base on"):
        own.run("evaluate_tuned", "1")
    # Drawn by the same hash: documents held out by encode are also held out by a larger share of examples.
    own.tune("apart", examples__heldout_share=0.3)
    own.run("evaluate_tuned", "apart", examples__heldout_share=0.3)
    found = json.loads(own.artifact("tuned_scores", "apart").read("comparison.json"))
    assert found["learned_documents"] == 0
    assert {row["kind"] for row in found["rows"]} == {"source"}, "no example fits into the 16 tokens of the base"
    own.run("register_tuned", "apart", examples__heldout_share=0.3)
    model = own.artifact("tuned_model", "apart")
    lineage = json.loads(model.read("model/lineage.json"))
    assert lineage["initial"]["artifact"] == "mine/checkpoint@1"
    named = {role: of["artifact"] for role, of in lineage["made_from"].items()}
    assert named == {"chunks": "mine/chunks@1", "documents": "mine/documents@1"}
    assert {"mine/chunks@1", "mine/documents@1"} <= {ref.address for ref in model.record.inputs}


def test_a_takedown_names_fine_tuned_models_and_applies_to_later_ones(own: Tunings) -> None:
    other = tuned_elsewhere(own)
    own.run("examples", "late", examples__chunks={"sources": ["papers", "notes"]})
    read = trace(own.store, "mine", "1", "step:0").to_json()["sequences"][0]["slices"][0]
    (paper,) = trace(own.store, "mine", "1", PAPER).to_json()["documents"]
    own.run("takedown", "t1", None, takedown__documents=[read["id"], paper["id"]], takedown__reason="asked")
    report = json.loads(own.artifact("takedown", "t1").read("report.json"))
    met = {one["artifact"]: one for one in report["artifacts"]}
    assert {"mine/chunks@1", "mine/examples@1", "mine/examples@late", "mine/checkpoint@1"} <= met.keys()
    steps = {step for url in (PAPER, read["url"]) for step in steps_with(own, "1", url)}
    tuned = met["mine/finetuned@1"]
    assert (tuned["documents"], tuned["steps"]) == (2, len(steps))
    assert (tuned["first_step"], tuned["last_step"]) == (min(steps), max(steps))
    assert tuned["through"] == ["mine/checkpoint@1"]
    assert met["other/finetuned@1"]["documents"] == 2
    assert met["other/finetuned@1"]["steps"] > 0, "its own, with chunks of this recipe"
    assert met["other/examples@1"]["documents"] == 2
    answer = audit(own.store, "mine")
    found = answer.to_json()
    assert "mine/finetuned@1" in {one["artifact"] for one in found["models"]}
    assert "mine/finetuned@1 " in answer.text()
    assert [one["says"][:7] for one in found["checked"] if one["kind"] in ("chunks", "examples")] == ["present"] * 2

    with pytest.raises(DriftError, match=r"the takedown mine/takedown@t1 came into force after it was made"):
        own.run("examples", "1")
    free = own.tune("free")
    rejected = own.artifact("examples", "free").record.rejected
    chunks = own.artifact("chunks", "1")
    gone = [row for path in chunks.files("chunks/") for row in chunks.table(path, ["document"]).to_pylist()]
    assert rejected == {"takedown": sum(row["document"] in (read["id"], paper["id"]) for row in gone)}
    assert "has learned from 1 document now taken down" in free.record.note
    (checked,) = (one for one in audit(own.store, "mine").to_json()["checked"] if one["kind"] == "examples")
    assert (checked["artifact"], checked["says"]) == ("mine/examples@free", "absent")
    other.run("examples", "2")
    assert other.artifact("examples", "2").record.rejected["takedown"] == rejected["takedown"]
    # Earlier examples: their pages are blank from the first step on, and the record names the takedown.
    own.run("finetune", "late")
    late = own.artifact("finetuned", "late")
    assert "mine/takedown@t1" in {ref.address for ref in late.record.inputs}
    rows = [row for step in range(4) for row in trace(own.store, "mine", "late", f"tuned:{step}").to_json()["rows"]]
    assert {row["url"] for row in rows if row.get("withheld")} == {PAPER, read["url"]} & {row["url"] for row in rows}
    models = {one["model"]: one for one in trace(own.store, "mine", "1", PAPER).to_json()["tuned"]}
    assert models["mine/finetuned@late"]["documents"][0]["steps"] == []
    assert models["mine/finetuned@late"]["documents"][0]["withheld_from"] == 0
    assert other.artifact("finetuned", "1").verify() == own.artifact("examples", "1").verify() == []

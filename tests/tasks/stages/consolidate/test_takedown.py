"""Contract of `consolidate` with a takedown: it is not kept, for any source, and its text is in no file."""

from pathlib import Path

import pytest

from tasks.stages.consolidate.config import ConsolidateConfig
from tests.conftest import run_stage_in
from tests.taken_down import take_down
from tests.tasks.stages.consolidate.test_stage import CONSOLIDATE, kept, prepare, rejected, text
from tests.tasks.stages.dedup.made import document


@pytest.mark.parametrize("by", ["url", "domain", "document"])
def test_takedowns_are_rejected_before_any_rule_for_every_source(tmp_path: Path, by: str) -> None:
    secret = "unmistakable " + text(1)
    rows = [
        document(secret, "gone", source="books", url="https://www.gone.net/a"),
        document(text(2), "stays", url="https://stays.net/a"),
        document(text(3), "poor", url="http://gone.net/a", poor=True),
    ]
    request = {
        "url": {"urls": "http://gone.net/a"},
        "domain": {"domains": "gone.net"},
        "document": {"documents": f"{rows[0]['id']}\n{rows[2]['id']}"},
    }
    inputs = prepare(tmp_path, rows)
    taken = {**inputs, "takedowns": [take_down(tmp_path, **request[by])]}
    config = ConsolidateConfig(trusted=("books",))
    artifact = run_stage_in(tmp_path, CONSOLIDATE, config, taken)
    assert kept(artifact) == {rows[1]["id"]}
    assert {row["reason"] for row in rejected(artifact).values()} == {"takedown"}
    assert artifact.record.rejected == {"takedown": 2}
    for path in artifact.files():
        assert b"unmistakable" not in (
            repr(artifact.table(path).to_pylist()).encode() if path.endswith(".parquet") else artifact.read(path)
        )


def test_a_copy_at_another_url_replaces_a_document_taken_down(tmp_path: Path) -> None:
    rows = [
        document(text(1), "keeper", url="https://gone.net/a", prose_score=0.9),
        document(text(1), "exact", url="https://other.net/a", prose_score=0.5),
        document(text(1, edited=3), "near", url="https://third.net/a", prose_score=0.1),
    ]
    inputs = prepare(tmp_path, rows)
    assert kept(run_stage_in(tmp_path, CONSOLIDATE, ConsolidateConfig(), inputs, version="before")) == {rows[0]["id"]}
    inputs["takedowns"] = [take_down(tmp_path, domains="gone.net")]
    after = run_stage_in(tmp_path, CONSOLIDATE, ConsolidateConfig(), inputs, version="after")
    assert kept(after) == {rows[1]["id"]}
    gone = rejected(after)
    assert gone[rows[0]["id"]]["reasons"][0] == "takedown"
    assert gone[rows[2]["id"]]["duplicate_of"] == rows[1]["id"]

"""`pack` with a takedown: a plan has none of its documents, even if the shards are older."""

from pathlib import Path

import pytest

from tasks.formats.tokens.plan import Plan
from tasks.formats.tokens.shard import TRAIN, ShardSet
from tasks.stages.tokens import PackConfig
from tests.conftest import run_stage_in
from tests.corpora import corpus, tokens_in
from tests.taken_down import take_down

ROWS = corpus(60)


@pytest.mark.parametrize("request_", [{"domains": "h1.org"}, {"documents": "\n".join(row["id"] for row in ROWS[::7])}])
def test_a_plan_after_a_takedown_has_exactly_the_other_documents(tmp_path: Path, request_: dict) -> None:
    made = tokens_in(tmp_path, ROWS)
    inputs = {"shards": made.shards, "takedowns": [take_down(tmp_path, **request_)]}
    after = run_stage_in(tmp_path, "tasks.stages.tokens.pack", PackConfig(seq_len=32), inputs, kind="plan", version="2")
    shards, plan = ShardSet.open(made.shards), Plan.open(after)
    if "domains" in request_:
        gone = {row["id"] for row in ROWS if "//h1.org/" in row["url"]}
    else:
        gone = {row["id"] for row in ROWS[::7]}
    packed, left = set(), 0
    for source in plan.sources:
        tokens = 0
        for sequence in range(plan.sequences[source]):
            pieces = plan.slices(source, sequence)
            tokens += int(pieces["length"].sum())
            packed |= {shards.shard(plan.shards[n]).uid(row).hex() for n, row in pieces[["shard", "row"]].tolist()}
        names = shards.names(source, TRAIN)
        lengths = {
            shards.shard(name).uid(row).hex(): int(length)
            for name in names
            for row, length in enumerate(shards.shard(name).lengths)
        }
        whole = sum(length for uid, length in lengths.items() if uid not in gone)
        assert tokens == whole // 32 * 32
        left += len(gone & lengths.keys())
    assert not packed & gone
    assert after.record.rejected["takedown"] == left > 0
    assert after.record.rows_in == after.record.rows_out + sum(after.record.rejected.values())

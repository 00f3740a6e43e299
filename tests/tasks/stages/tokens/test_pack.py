"""Packing: sequences of exactly seq_len tokens, every token once but the last incomplete sequence, both ways."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.core.errors import InputError
from tasks.formats.tokens.plan import Plan, rows_of
from tasks.formats.tokens.shard import TRAIN, ShardSet
from tasks.stages.tokens.config import PackConfig
from tasks.stages.tokens.pack import concat
from tests.corpora import kept_document, tokens_in


@given(st.lists(st.lists(st.integers(1, 30), max_size=12), min_size=1, max_size=4), st.integers(2, 17))
def test_slices_cover_the_joined_documents_once_and_in_order(shards: list[list[int]], seq_len: int) -> None:
    lengths = [(f"s{index}", np.array(sizes, dtype=np.int64)) for index, sizes in enumerate(shards)]
    stream = [(name, row, token) for name, sizes in lengths for row, size in enumerate(sizes) for token in range(size)]
    rows = [row for table in concat(lengths, seq_len) for row in table.to_pylist()]
    packed = [
        (row["shard"], row["row"], token) for row in rows for token in range(row["start"], row["start"] + row["len"])
    ]
    whole = len(stream) // seq_len
    assert packed == stream[: whole * seq_len]
    places = [(row["seq_id"], row["pos"] + token) for row in rows for token in range(row["len"])]
    assert places == [(place // seq_len, place % seq_len) for place in range(whole * seq_len)]


def test_the_plan_gives_each_sequence_and_finds_it_from_its_documents(tmp_path: Path) -> None:
    made = tokens_in(tmp_path)
    shards, plan = ShardSet.open(made.shards), Plan.open(made.plan)
    for source in plan.sources:
        stream = np.concatenate(
            [shards.slice(name, row, 0, int(length)) for name in shards.names(source, TRAIN)
             for row, length in enumerate(shards.shard(name).lengths)]
        )  # fmt: skip
        for seq_id in range(plan.sequences[source]):
            tokens, lengths = plan.tokens(source, seq_id, shards)
            assert tokens.tolist() == stream[seq_id * 32 : seq_id * 32 + 32].tolist()
            assert lengths.sum() == plan.seq_len == 32
            for piece in plan.slices(source, seq_id):
                assert seq_id in plan.sequences_of(source, piece.shard, piece.row)
                for other in plan.sequences_of(source, piece.shard, piece.row):
                    assert any(one[:2] == piece[:2] for one in plan.slices(source, other))
    assert plan.sequences_of("web", "no-such-train-00000-000", 0) == []


def test_some_sequences_are_read_without_the_rest_of_the_plan(tmp_path: Path) -> None:
    made = tokens_in(
        tmp_path, [kept_document(f"https://a.org/{i}", "word " * (i % 90)) for i in range(3000)], seq_len=16
    )
    path = "plan/web.parquet"
    with made.plan.open(path) as file:
        assert pq.ParquetFile(file).num_row_groups > 2
    everything = made.plan.table(path).to_pylist()
    last = everything[-1]["seq_id"]
    for wanted in ({0}, {last}, {5, 6, last // 2, last}, set(range(0, last, 7))):
        assert rows_of(made.plan, "web", wanted) == [row for row in everything if row["seq_id"] in wanted]


def test_the_summary_counts_what_was_packed_and_what_was_dropped(tmp_path: Path) -> None:
    made = tokens_in(tmp_path)
    shards, summary = ShardSet.open(made.shards), json.loads(made.plan.read("plan/summary.json"))
    for source in shards.sources:
        assert summary["tokens"][source] == summary["sequences"][source] * 32
        assert summary["tokens"][source] + summary["dropped_tokens"][source] == shards.n_tokens(source)
        assert summary["dropped_tokens"][source] < 32
        assert summary["heldout_tokens"][source] == shards.n_tokens(source, "heldout")
    assert summary["vocab_size"] == 300
    assert summary["tokens_dtype"] == "uint16"


def test_held_out_documents_are_in_no_sequence(tmp_path: Path) -> None:
    made = tokens_in(tmp_path)
    for path in made.plan.files("plan/"):
        if path.endswith(".json"):
            continue
        assert not any("heldout" in name for name in made.plan.table(path).column("shard").to_pylist())


def test_a_plan_reads_from_a_folder_and_crosses_processes(tmp_path: Path) -> None:
    made = tokens_in(tmp_path)
    plan = Plan.open(made.plan)
    folder = Plan.read(str(Path(made.plan.local("plan/summary.json")).parent))
    assert folder.slices("web", 3) == plan.slices("web", 3) == pickle.loads(pickle.dumps(plan)).slices("web", 3)
    with pytest.raises(InputError, match='no source "wbe"'):
        plan.slices("wbe", 0)
    with pytest.raises(IndexError, match='"web" has the sequences'):
        plan.slices("web", 10**6)
    with pytest.raises(InputError, match=r"summary\.json is missing"):
        Plan.read("/nonexistent")


def test_too_little_text_for_one_sequence_is_an_error(tmp_path: Path, run_stage: Callable) -> None:
    inputs = {"shards": tokens_in(tmp_path).shards}
    with pytest.raises(InputError, match=r"no source has the 9999999 tokens.*Lower \[pack\] seq_len"):
        run_stage("tasks.stages.tokens.pack", PackConfig(seq_len=9_999_999), inputs, version="long")

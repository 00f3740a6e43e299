"""Packing: every token once but for the last incomplete sequence, from sequences to documents and back."""

import itertools
import json
import os
import pickle
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.core.ranges import checksums_path
from tasks.core.store import Store
from tasks.formats.tokens.plan import Plan, array_name
from tasks.formats.tokens.shard import Shard, ShardSet, shard_path
from tasks.stages.tokens import EncodeConfig, PackConfig, pack
from tasks.stages.tokens.pack import Documents, PackedSequences, best_fit, concat
from tests.corpora import corpus, tokens_in
from tests.s3_server import S3Server

LENGTHS = st.lists(st.lists(st.integers(1, 40), max_size=12), min_size=1, max_size=4)


def documents(shards: list[list[int]]) -> Documents:
    """Documents of some shards, stored contiguously in the file of each shard after a header of 64 tokens."""
    rows = [
        (number, row, 64 + sum(sizes[:row]), size)
        for number, sizes in enumerate(shards)
        for row, size in enumerate(sizes)
    ]
    return Documents(*np.array(rows, dtype=np.int64).reshape(-1, 4).T)


def tokens_of(packed: PackedSequences) -> list[list[tuple[int, int]]]:
    """The tokens of each sequence as (shard, offset)."""
    ends = np.cumsum(packed.lengths).tolist()
    return [
        [(shard, place) for shard, _, offset, length in packed.slices[begin:end].tolist()
         for place in range(offset, offset + length)]
        for begin, end in itertools.pairwise([0, *ends])
    ]  # fmt: skip


def stream(made: Documents) -> list[tuple[int, int]]:
    return [(shard, offset + token) for shard, _, offset, size in zip(*made, strict=True) for token in range(size)]


@given(LENGTHS, st.integers(2, 17))
def test_concat_joins_the_documents_and_cuts_every_seq_len_tokens(shards: list[list[int]], seq_len: int) -> None:
    made = documents(shards)
    everything = stream(made)
    whole = range(0, len(everything) // seq_len * seq_len, seq_len)
    assert tokens_of(concat(made, seq_len)) == [everything[begin : begin + seq_len] for begin in whole]


@given(LENGTHS, st.integers(2, 17))
def test_best_fit_reads_every_token_once_and_splits_only_documents_longer_than_a_sequence(
    shards: list[list[int]], seq_len: int
) -> None:
    made = documents(shards)
    packed = best_fit(made, seq_len)
    sequences = tokens_of(packed)
    assert sorted(itertools.chain(*sequences)) == sorted(stream(made))
    assert all(1 <= len(sequence) <= seq_len for sequence in sequences)
    slices = Counter(packed.slices[["shard", "row"]].tolist())
    for shard, row, _, size in zip(*made, strict=True):
        assert slices[shard, row] == -(-size // seq_len)
    # Two half-empty sequences would have been one.
    assert sum(len(sequence) <= seq_len // 2 for sequence in sequences) <= 1


def test_best_fit_wastes_less_than_two_thousandths_of_usual_text() -> None:
    sizes = np.random.default_rng(3).lognormal(5.8, 1.1, 20_000).astype(int).clip(1)
    packed = best_fit(documents([sizes.tolist()]), 2048)
    assert 1 - packed.slices["length"].sum() / (2048 * len(packed.lengths)) < 0.002


def test_best_fit_takes_the_pieces_of_a_sequence_from_two_successive_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "_SPAN_TOKENS", 4096)
    sizes = np.random.default_rng(3).lognormal(3.3, 1.1, 5_000).astype(int).clip(1)
    packed = best_fit(documents([sizes.tolist()]), 128)
    sequence = np.repeat(np.arange(len(packed.lengths)), packed.lengths)
    span = (packed.slices["offset"].astype(int) - 64) // 4096
    first, last = (
        at(span, np.unique(sequence, return_index=True)[1]) for at in (np.minimum.reduceat, np.maximum.reduceat)
    )
    assert (last - first).max() <= 2, "a document may begin in a span and end in the next one"
    assert np.diff(first).min() >= -1, "sequences are in the order of their spans"


@pytest.mark.parametrize("method", ["concat", "best_fit"])
def test_the_plan_maps_sequences_to_documents_and_back(tmp_path: Path, method: Literal["concat", "best_fit"]) -> None:
    made = tokens_in(tmp_path, method=method)
    shards, plan = ShardSet.open(made.shards), Plan.open(made.plan)
    assert tuple(plan.shards) == shards.all_names
    containing = defaultdict(set)
    for source in plan.sources:
        for seq_id in range(plan.sequences[source]):
            for number, row, offset, length in plan.slices(source, seq_id).tolist():
                shard = shards.shard(plan.shards[number])
                start = offset - shard.token_offset(row)
                assert shard.flat[offset : offset + length].tolist() == shard.slice(row, start, length).tolist()
                containing[source, plan.shards[number], row].add(seq_id)
                assert seq_id in plan.sequences_of(source, plan.shards[number], row, offset + length - 1)
                assert seq_id in plan.sequences_of(source, plan.shards[number], row, 0, offset + 1)
                assert seq_id not in plan.sequences_of(source, plan.shards[number], row, offset + length)
    for (source, name, row), sequences in containing.items():
        assert plan.sequences_of(source, name, row) == sorted(sequences)
    assert plan.sequences_of("web", "no-such-train-00000-000", 0) == []


def test_the_parts_of_a_packed_source_do_not_depend_on_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_stage: Callable
) -> None:
    inputs = {"shards": tokens_in(tmp_path, parts=5, encode=EncodeConfig(shard_tokens=700)).shards}
    monkeypatch.setattr(pack, "_PART_TOKENS", 1500)
    config, module = PackConfig(seq_len=32), "tasks.stages.tokens.pack"
    one, two = (run_stage(module, config, inputs, version=f"w{count}", workers=count) for count in (0, 2))
    assert one.files() == two.files()
    assert all(one.read(path) == two.read(path) for path in one.files())
    plan = Plan.open(one)
    assert len(range(*plan.summary["parts"]["web"])) > 1
    whole = [plan.slices("web", sequence).tolist() for sequence in range(plan.sequences["web"])]
    assert len({row[:2] for rows in whole for row in rows}) == plan.summary["documents"]["web"]
    for sequence, rows in enumerate(whole):
        assert sequence in plan.sequences_of("web", plan.shards[rows[-1][0]], rows[-1][1])


def test_a_thousand_shards_are_packed_by_their_record_and_index(tmp_path: Path, run_stage: Callable) -> None:
    made = tokens_in(tmp_path, corpus(1_000), encode=EncodeConfig(shard_tokens=1, heldout_share=0.1))
    shards = ShardSet.open(made.shards)
    assert len(shards.all_names) == 1_000
    summary = json.loads(made.plan.read("plan/summary.json"))
    others = shards.all_names[1:]
    for name in others:
        os.unlink(made.shards.local(shard_path(name)))
    again = run_stage("tasks.stages.tokens.pack", PackConfig(seq_len=32), {"shards": made.shards}, version="again")
    assert again.record.content == made.plan.record.content
    for source in shards.sources:
        assert summary["heldout_documents"][source] == len(shards.names(source, "heldout"))


@pytest.mark.parametrize("by", ["source", "language", "source+tier"])
def test_packing_opens_no_shard(tmp_path: Path, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a shard was opened")

    monkeypatch.setattr(Shard, "__init__", refuse)
    assert sum(Plan.open(tokens_in(tmp_path, by=by).plan).sequences.values())


@pytest.mark.parametrize("method", ["concat", "best_fit"])
def test_the_summary_counts_what_was_packed_dropped_and_padded(
    tmp_path: Path, method: Literal["concat", "best_fit"]
) -> None:
    made = tokens_in(tmp_path, method=method)
    shards, summary = ShardSet.open(made.shards), json.loads(made.plan.read("plan/summary.json"))
    for source in shards.sources:
        assert summary["tokens"][source] == summary["sequences"][source] * 32 - summary["padding_tokens"][source]
        for split, counted in (("train", "tokens"), ("heldout", "heldout_tokens")):
            tokens = sum(shards.shard(name).n_tokens for name in shards.names(source, split))
            dropped = summary["dropped_tokens"][source] if split == "train" else 0
            assert summary[counted][source] + dropped == tokens == shards.n_tokens(source, split)
        assert summary["heldout_documents"][source] == sum(1 for _ in shards.heldout(source))
    assert all(count < 32 for count in summary["dropped_tokens"].values())
    assert sum(summary["padding_tokens" if method == "concat" else "dropped_tokens"].values()) == 0
    assert summary["vocab_size"] == 300
    assert summary["tokens_dtype"] == "uint16"
    lost = sum(summary["dropped_tokens"].values()) + sum(summary["padding_tokens"].values())
    assert made.plan.record.metrics["waste"] == lost / (lost + sum(summary["tokens"].values()))


def test_held_out_documents_are_in_no_sequence(tmp_path: Path) -> None:
    plan = Plan.open(tokens_in(tmp_path).plan)
    read = [plan.slices(source, sequence) for source in plan.sources for sequence in range(plan.sequences[source])]
    names = {plan.shards[number] for number in np.concatenate(read)["shard"].tolist()}
    assert names
    assert not any("heldout" in name for name in names)


def test_a_plan_can_be_pickled_and_names_what_it_has_not(tmp_path: Path) -> None:
    plan = Plan.open(tokens_in(tmp_path).plan)
    assert pickle.loads(pickle.dumps(plan)).slices("web", 3).tolist() == plan.slices("web", 3).tolist()
    with pytest.raises(InputError, match='no source "wbe"'):
        plan.slices("wbe", 0)
    with pytest.raises(IndexError, match='"web" has the sequences'):
        plan.slices("web", 10**6)


def test_a_truncated_plan_or_one_of_another_format_is_refused(tmp_path: Path) -> None:
    made = tokens_in(tmp_path).plan
    folder = Path(made.local("plan/summary.json")).parent
    for name in ("web-00000-slices.npy", "web-00000-first.npy", "web-00000-documents.npy"):
        whole = (folder / name).read_bytes()
        for kept in (0, 40, len(whole) - 16):
            (folder / name).write_bytes(whole[:kept])
            with pytest.raises(InputError, match=r"plan/web-.* is not readable.*Run the stage pack again"):
                Plan.open(made).slices("web", 0)
        (folder / name).write_bytes(whole)
    shutil.copy(folder / "code-00000-first.npy", folder / "web-00000-first.npy")
    with pytest.raises(InputError, match='the plan of "web" does not fit its tables'):
        Plan.open(made).slices("web", 0)
    (folder / "summary.json").write_text('{"seq_len": 32}')
    with pytest.raises(InputError, match="earlier version of Sluice"):
        Plan.open(made)


def test_too_little_text_for_one_sequence_is_an_error(tmp_path: Path, run_stage: Callable) -> None:
    inputs = {"shards": tokens_in(tmp_path).shards}
    with pytest.raises(InputError, match=r"no source has the 9999999 tokens.*Lower \[pack\] seq_len"):
        run_stage("tasks.stages.tokens.pack", PackConfig(seq_len=9_999_999), inputs, version="long")


def test_a_remote_plan_is_read_by_the_blocks_of_the_sequences_and_verified(tmp_path: Path, s3: S3Server) -> None:
    made = tokens_in(tmp_path).plan
    remote = Store(f"s3://sluice/{tmp_path.name}")
    for path in made.store.list(made.path):
        with remote.write(path) as file:
            file.write(made.store.read(path))
    artifact = Artifact.open_at(remote, made.address)
    here, before = Plan.open(made), s3.faults.requests
    there = Plan.open(artifact)
    assert s3.faults.requests - before == 1  # the summary
    wanted = [(source, number) for source in here.sources for number in range(here.sequences[source])]
    for reader in (there, pickle.loads(pickle.dumps(there))):
        assert [one.tolist() for one in reader.slices_of(wanted)] == [here.slices(*one).tolist() for one in wanted]
        reader.close()
    # Checksums and block of the table of parts, by both readers, and of each source those of two arrays; the third one
    # is for the way back. The other reader finds the blocks in the cache.
    assert s3.faults.requests - before == 1 + 2 + 4 * len(here.sources) + 1 + 2 * len(here.sources)
    shard, row = int(here.slices("web", 0)["shard"][0]), int(here.slices("web", 0)["row"][0])
    assert there.sequences_of("web", there.shards[shard], row) == here.sequences_of("web", here.shards[shard], row)
    data = bytearray(made.read("plan/code-00000-slices.npy"))
    data[-1] ^= 1
    with remote.write(f"{made.path}/plan/code-00000-slices.npy") as file:
        file.write(bytes(data))
    shutil.rmtree(os.environ["SLUICE_CACHE"])
    with pytest.raises(InputError, match=r"plan/code-00000-slices\.npy is damaged"):
        Plan.open(artifact).slices("code", 0)


def test_a_plan_has_the_files_of_the_shards_and_its_own_as_the_records_have_them(tmp_path: Path) -> None:
    made = tokens_in(tmp_path)
    plan, shards = Plan.open(made.plan), ShardSet.open(made.shards)
    for number, name in enumerate(shards.all_names):
        entry = plan.tables.shard(number, made.shards.folder)
        recorded = made.shards.entry(shard_path(name))
        sums = made.shards.entry(checksums_path(recorded.path))
        assert entry[1:] == (recorded.path, recorded.bytes, recorded.rows, recorded.sha256, sums.sha256)
        assert plan.shards.number(name) == number
        assert plan.tables.shards[number]["tokens"] == recorded.tokens
    assert plan.shards.number("web-train-99999-000") is None
    for source, (first, end) in plan.summary["parts"].items():
        for row in range(first, end):
            path = f"plan/{array_name(source, row - first, 'slices')}"
            recorded = made.plan.entry(path)
            sums = made.plan.entry(checksums_path(path))
            assert plan.tables.array(row, "slices", path)[2:] == (
                recorded.bytes, recorded.rows, recorded.sha256, sums.sha256
            )  # fmt: skip


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    made = tokens_in(tmp_path).plan
    path = Path(made.local("plan/shards.npy"))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"plan/shards\.npy is not readable"):
        Plan.open(made).shards[0]

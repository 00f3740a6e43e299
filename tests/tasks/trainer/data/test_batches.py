"""Batches: what the plan and the order say, with the right token to predict everywhere."""

import itertools
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from tasks.formats.tokens.shard import ShardSet
from tasks.trainer.data.batches import Batches
from tasks.trainer.model.loss import IGNORED
from tests.corpora import Made, corpus, tokens_in
from tests.tasks.trainer.small_run import small_spec


def batches_of(made: Made, folder: Path) -> Batches:
    return Batches(small_spec(made, folder))


@pytest.mark.parametrize("method", ["concat", "best_fit"])
def test_every_label_is_the_next_token_of_its_own_document(
    tmp_path: Path, method: Literal["concat", "best_fit"]
) -> None:
    made = tokens_in(tmp_path / "made", corpus(30), seq_len=256, method=method)
    batches, shards = batches_of(made, tmp_path), ShardSet.open(made.shards)
    eos, checked, padded = batches.eos_id, 0, 0
    for step in range(8):
        batch, rows = batches.batch(step), batches.order.batch(step)
        for row, (source, sequence, _) in enumerate(rows):
            place = 0
            for number, at, offset, length in batches.plan.slices(source, sequence).tolist():
                shard = shards.shard(batches.plan.shards[number])
                document, start = shard.slice(at, 0, int(shard.lengths[at])), offset - shard.token_offset(at)
                end = start + length
                assert batch.tokens[row, place : place + length].tolist() == document[start:end].tolist()
                following = np.append(document[1:], [eos])[start:end]
                labels = batch.labels[row, place : place + length].numpy()
                # Where a document goes on in another sequence, only the last token of this one has a label for it.
                inside = (document[start:end] != eos) & (labels != IGNORED)
                assert inside.sum() >= (document[start:end] != eos).sum() - 1
                assert labels[inside].tolist() == following[inside].tolist()
                checked += inside.sum()
                place += length
            assert (batch.tokens[row, place:] == eos).all()
            assert (batch.labels[row, place:] == IGNORED).all()
            if place < batches.seq_len:
                assert batch.labels[row, place - 1] == IGNORED
                assert batch.documents[row, place] != batch.documents[row, place - 2]
                padded += 1
    assert checked > 900
    assert bool(padded) == (method == "best_fit")


def test_end_of_text_opens_the_next_document_and_predicts_its_first_token(made: Made, tmp_path: Path) -> None:
    batches = batches_of(made, tmp_path)
    seen = 0
    for step in range(8):
        batch = batches.batch(step)
        ends = (batch.tokens[:, :-1] == batches.eos_id).nonzero().tolist()
        for row, place in ends:
            assert batch.documents[row, place] == batch.documents[row, place + 1]
            assert batch.labels[row, place] == batch.tokens[row, place + 1]
            if place:
                assert batch.documents[row, place] != batch.documents[row, place - 1]
                assert batch.labels[row, place - 1] == batches.eos_id
            seen += 1
        last = batch.tokens[:, -1] == batches.eos_id
        assert (batch.labels[last, -1] == IGNORED).all()
        assert (batch.labels[~last, -1] != IGNORED).all()
    assert seen > 5


def test_a_batch_is_a_function_of_its_step(made: Made, tmp_path: Path) -> None:
    one, other = batches_of(made, tmp_path / "one"), batches_of(made, tmp_path / "other")
    for step in (5, 0, 5):
        assert one.batch(step).tokens.equal(other.batch(step).tokens)
    assert not one.batch(0).tokens.equal(one.batch(1).tokens)


def test_microbatch_n_of_m_has_the_sequences_n_n_plus_m_and_so_on(made: Made, tmp_path: Path) -> None:
    batches = batches_of(made, tmp_path)
    batch, parts = batches.batch(0), batches.microbatches(0, [1, 0])
    for number in (0, 1):
        assert parts[number].tokens.equal(batch.tokens[number::2])
        assert parts[number].labels.equal(batch.labels[number::2])
        assert parts[number].documents.equal(batch.documents[number::2])
        assert batches.microbatches(0, [number])[number].tokens.equal(parts[number].tokens)


def test_cu_seqlens_says_where_each_document_of_the_sequences_begins(made: Made, tmp_path: Path) -> None:
    batches = batches_of(made, tmp_path)
    for step in range(4):
        batch = batches.batch(step)
        edges = batch.cu_seqlens.tolist()
        rows = batch.documents + 1000 * torch.arange(4)[:, None]
        lengths = [len(list(group)) for _, group in itertools.groupby(rows.flatten().tolist())]
        assert edges == [0, *itertools.accumulate(lengths)]
        assert batch.cu_seqlens.dtype == torch.int32


def test_slices_name_the_documents_of_a_step(made: Made, tmp_path: Path) -> None:
    batches, shards = batches_of(made, tmp_path), ShardSet.open(made.shards)
    pieces = [p for s, n, _ in batches.order.batch(0) for p in batches.plan.slices(s, n).tolist()]
    for named, (number, row, offset, length) in zip(batches.slices(0), pieces, strict=True):
        assert named["shard"] == batches.plan.shards[number]
        assert named["document"] == shards.shard(named["shard"]).uid(row).hex()
        assert (named["offset"], named["length"]) == (offset, length)
    assert sum(piece[3] for piece in pieces) == 4 * batches.seq_len

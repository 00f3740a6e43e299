"""Batches: what the plan and the order say, with the right token to predict everywhere."""

from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from tasks.trainer.batches import Batches
from tasks.trainer.loss import IGNORED
from tests.corpora import Made, corpus, tokens_in
from tests.tasks.trainer.small_run import WEIGHTS, small_spec


def batches_of(made: Made, folder: Path) -> Batches:
    return Batches(small_spec(made, folder))


@pytest.mark.parametrize("method", ["concat", "best_fit"])
def test_every_label_is_the_next_token_of_its_own_document(
    tmp_path: Path, method: Literal["concat", "best_fit"]
) -> None:
    batches = batches_of(tokens_in(tmp_path / "made", corpus(30), seq_len=256, method=method), tmp_path)
    eos, checked, padded = batches.eos_id, 0, 0
    for step in range(8):
        batch, rows = batches.batch(step), batches.order.batch(step)
        for row, (source, sequence, _) in enumerate(rows):
            place = 0
            for number, at, offset, length in batches.plan.slices(source, sequence).tolist():
                shard = batches.shards.shard(batches.plan.shards[number])
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


def test_the_parts_of_a_batch_are_the_batch(made: Made, tmp_path: Path) -> None:
    batch = batches_of(made, tmp_path).batch(0)
    rows = sorted(row for number in range(2) for row in batch.part(number, 2).tokens.tolist())
    assert rows == sorted(batch.tokens.tolist())


def test_slices_name_the_documents_of_a_step(made: Made, tmp_path: Path) -> None:
    batches = batches_of(made, tmp_path)
    slices = batches.slices(0)
    known = {
        uid.tobytes().hex() for s in WEIGHTS for n in batches.shards.names(s) for uid in batches.shards.shard(n).uids
    }
    assert {one["document"] for one in slices} <= known
    assert sum(one["length"] for one in slices) == 4 * batches.seq_len

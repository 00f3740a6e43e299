"""Bits per byte: the definition, computed by hand and by brute force."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.formats.tokens.shard import HELDOUT, TRAIN, ShardEntry, ShardSet, TokenFormat, shard_name, write_shard
from tasks.stages.evaluate.stage import unigram_bits
from tasks.stages.tokens import EncodeConfig, TokenizerConfig
from tasks.trainer.data.heldout import HeldoutDocument, evaluation_windows, heldout_documents
from tasks.trainer.evaluation.bpb import document_bits
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.transformer import Transformer, build
from tests.conftest import run_stage_in
from tests.corpora import Made, corpus, documents_in
from tests.shards import buffer_of

EOS, VOCABULARY, CONTEXT = 0, 40, 16


def write(folder: Path, split: str, documents: list[list[int]], n_bytes: list[int]) -> str:
    path = folder / f"{shard_name('web', split, 0, 0)}.arrow"
    uids = [index.to_bytes(16, "big") for index in range(len(documents))]
    buffer = buffer_of("web", split, uids, [np.array(one) for one in documents], n_bytes)
    with path.open("wb") as file:
        write_shard(file, buffer, TokenFormat(5, EOS, ""))
    return str(path)


def brute_force_bits(model: Transformer, tokens: list[int]) -> float:
    """Each token alone, from end-of-text and the preceding tokens within its window."""
    stream, bits, done = [EOS, *tokens], 0.0, 0
    while done < len(tokens):
        end = min(len(tokens), done + (CONTEXT // 2 if done else CONTEXT))
        begin = max(0, end - CONTEXT)
        for place in range(done, end):
            seen = torch.tensor([stream[begin : place + 1]])
            logits = model(seen, torch.zeros_like(seen))[0, -1].double()
            bits -= float(torch.log_softmax(logits, dim=-1)[tokens[place]]) / math.log(2)
        done = end
    return bits


def test_bits_per_document_equal_a_token_by_token_computation() -> None:
    model = build(ModelConfig(layers=1, dim=16, heads=2, kv_heads=1), VOCABULARY, 1).eval()
    rng = np.random.default_rng(0)
    documents = [
        HeldoutDocument(b"", np.append(rng.integers(1, VOCABULARY, size), EOS), 10) for size in (0, 3, 15, 16, 50)
    ]
    with torch.no_grad():
        expected = [brute_force_bits(model, document.tokens.tolist()) for document in documents]
    assert document_bits(model, documents, EOS, CONTEXT, 3) == pytest.approx(expected, rel=1e-5)
    assert document_bits(model, documents, EOS, CONTEXT, 1) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 24, 25, 100])
@pytest.mark.parametrize("context", [1, 2, 7, 16])
def test_windows_predict_every_token_once_with_at_least_half_a_context(length: int, context: int) -> None:
    tokens = np.arange(1, length + 1)
    found = list(evaluation_windows(0, tokens, EOS, context))
    assert [int(label) for one in found for label in one.labels[one.first :]] == tokens.tolist()
    assert all(len(one.inputs) == len(one.labels) <= context for one in found)
    assert all(one.first >= context - max(1, context // 2) for one in found[1:])
    assert all(one.inputs[1:].tolist() == one.labels[:-1].tolist() for one in found)
    assert [one.inputs[0] == EOS for one in found] == [True] + [False] * (len(found) - 1)
    assert all(a.labels[-1] < b.labels[-1] for a, b in pairwise(found))


def test_a_uniform_model_needs_log2_of_the_vocabulary_per_token() -> None:
    model = build(ModelConfig(layers=1, dim=16, heads=2, kv_heads=1), 64, 0).eval()
    with torch.no_grad():
        model.embedding.weight.zero_()
    document = HeldoutDocument(b"", np.array([5, 9, EOS]), 9)
    assert document_bits(model, [document], EOS, 8) == pytest.approx([3 * 6])


def test_the_unigram_model_uses_add_one_smoothing(tmp_path: Path) -> None:
    train = write(tmp_path, TRAIN, [[1, 1, 2, EOS], [1, EOS]], [6, 2])
    held = write(tmp_path, HELDOUT, [[4, 4, 4, EOS]], [3])
    # Counts 2 3 1 0 0, plus one: 3 4 2 1 1 of 11.
    expected = [-math.log2(count / 11) for count in (3, 4, 2, 1, 1)]
    assert unigram_bits(
        ShardSet({Path(path).stem: ShardEntry(path, rows, 6 - rows) for path, rows in ((train, 2), (held, 1))}, None)
    ).tolist() == pytest.approx(expected)


def test_held_out_documents_are_taken_whole_up_to_the_budget(made: Made) -> None:
    shards = ShardSet.open(made.shards)
    everything = heldout_documents(shards, "web", 10**9)
    sizes = [len(document.tokens) for document in everything]
    assert len(everything) > 2
    assert [d.uid for d in heldout_documents(shards, "web", sum(sizes[:2]))] == [d.uid for d in everything[:2]]
    assert len(heldout_documents(shards, "web", 1)) == 1
    with pytest.raises(InputError, match='"poems" has no held-out document'):
        heldout_documents(shards, "poems", 1)


def test_months_of_a_corpus_that_grows_have_equal_shares_of_the_budget(tmp_path: Path) -> None:
    rows = [{**row, "source": "web"} for row in corpus(140)]
    months = {"1": rows[:80], "2": rows[80:86], "3": rows[86:140]}
    encode = EncodeConfig(accumulate=True, heldout_share=0.45)
    tokenizer, earlier, month_of = None, {}, {}
    for month, of_month in months.items():
        documents = {"documents": documents_in(tmp_path, of_month, version=month)}
        tokenizer = tokenizer or run_stage_in(
            tmp_path, "tasks.stages.tokens.bpe", TokenizerConfig(vocab_size=300), documents, kind="tokenizer"
        )
        inputs: dict[str, Artifact] = {**documents, "tokenizer": tokenizer, **earlier}
        stage = "tasks.stages.tokens.encode"
        earlier = {"earlier": run_stage_in(tmp_path, stage, encode, inputs, kind="shards", version=month)}
        month_of |= {bytes.fromhex(row["id"]): month for row in of_month}
    shards = ShardSet.open(earlier["earlier"])
    everything = heldout_documents(shards, "web", 10**9)
    assert [(one.uid, one.n_bytes) for one in everything] == [(uid, size) for uid, _, size in shards.heldout("web")]

    def tokens(documents: list[HeldoutDocument]) -> dict[str, int]:
        return {month: sum(len(one.tokens) for one in documents if month_of[one.uid] == month) for month in months}

    longest, budget = max(len(one.tokens) for one in everything), sum(tokens(everything).values()) // 2
    taken = heldout_documents(shards, "web", budget)
    assert tokens(taken)["2"] == tokens(everything)["2"] < budget / 3, "a small month is measured as a whole"
    assert abs(tokens(taken)["1"] - tokens(taken)["3"]) <= longest, "the others share the rest"
    assert budget - 2 * longest <= sum(tokens(taken).values()) <= budget
    for month in months:
        own, all_of_it = ({one.uid for one in some if month_of[one.uid] == month} for some in (taken, everything))
        assert own == set(sorted(all_of_it)[: len(own)]), "the lowest ids"
    assert [one.uid for one in taken] == [one.uid for one in everything if one.uid in {one.uid for one in taken}]
    without = heldout_documents(shards, "web", budget, left_out=[one.uid for one in taken])
    assert without
    assert not {one.uid for one in without} & {one.uid for one in taken}

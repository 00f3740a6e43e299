"""Batches of fine-tuning: unlearned tokens give no gradient, and every step records its rows."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.formats.documents import examples
from tasks.trainer.config import TrainConfig, TrainSpec, TuningSpec
from tasks.trainer.data.batches import ExampleBatches
from tasks.trainer.data.withheld import blank_slices
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.loss import IGNORED
from tasks.trainer.model.transformer import build
from tasks.trainer.spec import artifact_spec

VOCABULARY, EOS, SEQ_LEN = 50, 0, 24
MODEL = ModelConfig(layers=2, dim=16, heads=2, kv_heads=1)


def rows(count: int) -> Iterator[dict[str, object]]:
    """Examples with a prompt of 2 to 5 tokens, a response of 1 to 4, and end-of-text."""
    drawn = np.random.default_rng(7)
    for number in range(count):
        prompt, response = 2 + number % 4, 1 + number % 3
        tokens = [*drawn.integers(1, VOCABULARY, prompt + response).tolist(), EOS]
        learned = [False] * prompt + [True] * (response + 1)
        found = {"lengths": [len(tokens)], "tokens": tokens, "learned": learned}
        yield {"line": number + 1, "id": f"row-{number}", **found}


def artifact(folder: Path, count: int = 40, **summary: object) -> Artifact:
    output = Output(Store(str(folder)), ArtifactId("test/examples", "dev"), "by-hand")
    files = {"part-0": "first.jsonl", "part-1": "second.jsonl"}
    for name in files:
        file = f"examples/{name}.arrow"
        with output.part(name, conserved=False) as part, part.file(file) as raw, examples.Writer(raw) as writer:
            for row in rows(count):
                writer.add(row)
    with output.part("summary", conserved=False) as part, part.file(examples.SUMMARY) as file:
        file.write(json.dumps({"seq_len": SEQ_LEN, "files": files, **summary}).encode())
    return commit(output, "by hand", 1, Config(), [], Report())


def spec_of(made: Artifact, **settings: object) -> TrainSpec:
    return TrainSpec(
        run=TrainConfig(model=MODEL, steps=9, batch_size=4, microbatch=2),
        weights={"examples": 1.0},
        shards=artifact_spec(made),
        tuning=TuningSpec(loss="sft", vocab_size=VOCABULARY, eos_id=EOS, seq_len=SEQ_LEN, **settings),
        plan=None,
        out="",
    )


@pytest.fixture
def batches(tmp_path: Path) -> ExampleBatches:
    return ExampleBatches(spec_of(artifact(tmp_path)))


def test_texts_of_an_imported_template_begin_with_their_own_first_token(tmp_path: Path) -> None:
    batches = ExampleBatches(spec_of(artifact(tmp_path, template={"jinja": "", "tokens": {}})))
    found = [batches.examples[number] for number in batches.examples.numbers(0)]
    tokens, labels, documents = batches._row(found)
    used = sum(example.lengths[0] for example in found)
    assert tokens[:used].tolist() == [token for example in found for token in example.tokens.tolist()]
    at = 0
    for number, example in enumerate(found):
        end = at + example.lengths[0]
        following = np.where(example.learned, example.tokens.astype(int), IGNORED)[1:].tolist()
        assert labels[at:end].tolist() == [*following, IGNORED], "no text predicts the first token of the next"
        assert set(documents[at:end].tolist()) == {number}
        at = end
    batch = batches.microbatches(0, [0])[0]
    slices = batches.slices_of(0, 0)
    blank = blank_slices(batch, slices, [np.arange(len(of_row)) == 0 for of_row in slices], EOS)
    for row, (_, sequence) in enumerate(batches.drawn(0, 0)):
        first = sum(batches.examples[batches.examples.numbers(sequence)[0]].lengths)
        assert set(blank.tokens[row, :first].tolist()) == {EOS}
        assert set(blank.labels[row, :first].tolist()) == {IGNORED}
        for name in ("tokens", "labels"):
            kept, before = (getattr(one, name)[row, first:] for one in (blank, batch))
            assert kept.tolist() == before.tolist(), "of the other examples"


def test_a_label_is_the_next_token_if_that_is_learned(batches: ExampleBatches) -> None:
    found = [batches.examples[number] for number in batches.examples.numbers(0)]
    tokens, labels, documents = batches._row(found)
    at = 0
    for number, example in enumerate(found):
        length = example.lengths[0]
        assert tokens[at : at + length].tolist() == [EOS, *example.tokens[:-1].tolist()]
        expected = np.where(example.learned, example.tokens.astype(int), IGNORED)
        assert labels[at : at + length].tolist() == expected.tolist()
        assert set(documents[at : at + length].tolist()) == {number}
        at += length
    assert set(labels[at:].tolist()) <= {IGNORED}
    assert at <= SEQ_LEN


def test_prompt_tokens_give_exactly_zero_gradient(batches: ExampleBatches) -> None:
    """The gradient of the response's labels only, computed in another way from the logits; others are exactly 0."""
    part = batches.microbatches(0, [0])[0]
    model = build(MODEL, VOCABULARY, 0)
    hidden = model.hidden(part.tokens, part.documents)
    hidden.retain_grad()
    model.head_loss(hidden, model.head_weight, part.labels).backward()
    assert hidden.grad is not None
    unlearned = torch.ones(part.labels.shape, dtype=torch.bool)
    for row, (_, sequence) in enumerate(batches.drawn(0, 0)):
        flags = np.concatenate([batches.examples[number].learned for number in batches.examples.numbers(sequence)])
        unlearned[row, : len(flags)] = torch.from_numpy(~flags)
    assert torch.equal(hidden.grad[unlearned], torch.zeros_like(hidden.grad[unlearned]))
    assert (hidden.grad[~unlearned].abs().sum(dim=-1) > 0).all()
    logits = model(part.tokens, part.documents)
    expected = torch.nn.functional.cross_entropy(logits[~unlearned], part.labels[~unlearned], reduction="sum")
    torch.testing.assert_close(model.loss(part.tokens, part.documents, part.labels), expected)


def test_every_sequence_is_read_once_in_an_epoch_and_names_its_rows(batches: ExampleBatches) -> None:
    count = batches.examples.sequences
    read = [one for step in range(count // 4 + 1) for one in batches.slices(step)]
    drawn = list(dict.fromkeys(one["sequence"] for one in read))
    assert sorted(drawn[:count]) == list(range(count))
    seen = [one for sequence in range(count) for one in batches.examples.sources(sequence)]
    assert len({(one["file"], one["line"]) for one in seen}) == len(seen) == 80
    assert all(one["id"] == f"row-{one['line'] - 1}" for one in seen)
    assert {one["file"] for one in seen} == {"first.jsonl", "second.jsonl"}


def test_only_a_bad_example_is_masked(batches: ExampleBatches) -> None:
    part, slices = batches.microbatches(0, [0])[0], batches.slices_of(0, 0)
    gone = [np.arange(len(found)) == 1 for found in slices]
    after = blank_slices(part, slices, gone, EOS)
    mine = part.documents == 1
    learned = part.labels != IGNORED
    assert (after.labels[mine] == IGNORED).all()
    assert (after.tokens[mine] == EOS).all()
    # The end-of-text of the previous example marks the begin of the hidden one, and stays.
    kept = learned & ~mine
    assert torch.equal(after.labels[kept], part.labels[kept])
    assert torch.equal(after.tokens[~mine], part.tokens[~mine])

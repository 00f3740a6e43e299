"""Explain: every result is checked against a brute-force pass over all documents, sequences and steps."""

import json
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.tokens.order import Order
from tasks.formats.tokens.plan import Plan
from tasks.formats.tokens.shard import TRAIN, ShardSet
from tasks.run.shell import main
from tasks.run.trace.explain import MOST_CHARACTERS, explain
from tasks.run.trace.text import render_explanation
from tasks.stages.spans import SpansConfig
from tasks.stages.tokens import PackConfig
from tasks.stages.tokens.bpe import load
from tasks.trainer.config import OptimConfig, TrainConfig
from tasks.trainer.model.config import ModelConfig
from tests.conftest import run_stage_in
from tests.corpora import Made, corpus, tokens_in


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Made, Artifact]:
    """A tiny run over 60 pages, its tokens indexed in several groups."""
    folder = tmp_path_factory.mktemp("explained")
    made = tokens_in(folder, corpus(60))
    config = SpansConfig(enabled=True, group_tokens=2_000)
    spans = run_stage_in(folder, "tasks.stages.spans.stage", config, {"shards": made.shards}, kind="spans")
    assert len(spans.files()) > 1
    train = TrainConfig(
        model=ModelConfig(layers=1, dim=16, heads=2, kv_heads=1), optim=OptimConfig(warmup_steps=2), steps=20,
        batch_size=4, microbatch=4, checkpoint_every=10, milestones=2,
    )  # fmt: skip
    inputs = {"shards": made.shards, "plan": made.plan}
    return Store(str(folder)), made, run_stage_in(folder, "tasks.stages.train.stage", train, inputs, kind="checkpoint")


def training_pages(made: Made) -> dict[str, tuple[str, int, list[int]]]:
    """Returns the training documents: id -> (shard, row, tokens without end-of-text)."""
    shards = ShardSet.open(made.shards)
    return {
        shards.shard(name).uid(row).hex(): (name, row, shards.shard(name).slice(row, 0, int(size) - 1).tolist())
        for source in shards.sources
        for name in shards.names(source, TRAIN)
        for row, size in enumerate(shards.shard(name).lengths)
    }


def steps_reading(made: Made, checkpoint: Artifact, place: tuple[str, int], start: int, end: int) -> list[int]:
    """Iterates over all batches; returns the steps with one of the tokens `start` .. `end` - 1 of a document."""
    plan, held = Plan.open(made.plan), json.loads(checkpoint.read("run.json"))
    order, before = Order.of_run(held), ShardSet.open(made.shards).shard(place[0]).token_offset(place[1])
    return [
        step
        for step in range(held["steps"])
        if any(
            (plan.shards[number], row) == place
            and set(range(offset - before, offset - before + length)) & set(range(start, end))
            for source, sequence, _ in order.batch(step)
            for number, row, offset, length in plan.slices(source, sequence).tolist()
        )
    ]


def longest_page(made: Made) -> str:
    pages = training_pages(made)
    return max(pages, key=lambda doc_id: len(pages[doc_id][2]))


def test_a_text_from_a_training_page_is_explained_with_page_steps_and_checkpoint(run: tuple) -> None:
    store, made, checkpoint = run
    rows, pages = {row["id"]: row for row in corpus(60)}, training_pages(made)
    seen = set()
    for doc_id in sorted(pages, key=lambda doc_id: -len(pages[doc_id][2]))[:8]:
        shard, row, tokens = pages[doc_id]
        found = explain(store, "test", "dev", rows[doc_id]["text"]).to_json()
        (span,) = found["spans"]
        assert (span["text"], span["count"], span["tokens"]) == (rows[doc_id]["text"], 1, len(tokens))
        (document,) = span["documents"]
        assert (document["id"], document["url"]) == (doc_id, rows[doc_id]["url"])
        steps = steps_reading(made, checkpoint, (shard, row), 0, len(tokens))
        assert document["steps"] == steps
        assert document["first_checkpoint"] == min((n for n in (10, 20) for step in steps if step < n), default=None)
        seen.add(document["first_checkpoint"])
    assert seen >= {10}


def test_only_sequences_with_the_tokens_of_the_span_count(run: tuple) -> None:
    store, made, checkpoint = run
    doc_id = longest_page(made)
    shard, row, tokens = training_pages(made)[doc_id]
    whole = explain(store, "test", "dev", load(made.tokenizer).decode(tokens)).to_json()["spans"][0]["documents"][0]
    start, end = 100, 160
    (span,) = explain(store, "test", "dev", load(made.tokenizer).decode(tokens[start:end])).to_json()["spans"]
    (document,) = span["documents"]
    assert document["id"] == doc_id
    assert document["starts"][0] in range(start - 1, start + 2)  # a cut word may have other tokens
    first = document["starts"][0]
    assert document["steps"] == steps_reading(made, checkpoint, (shard, row), first, first + document["length"])
    assert set(document["sequences"]) < set(whole["sequences"])


def test_a_text_is_found_with_and_without_a_leading_space(run: tuple) -> None:
    store, made, _ = run
    doc_id = longest_page(made)
    text = next(row["text"] for row in corpus(60) if row["id"] == doc_id)
    words = " ".join(text.split()[20:60])
    for spelled in (words, f" {words}"):
        (span,) = explain(store, "test", "dev", spelled).to_json()["spans"]
        assert span["text"].strip() == words
        assert [document["id"] for document in span["documents"]] == [doc_id]


def test_spans_are_counted_over_all_groups_and_none_is_inside_another(run: tuple) -> None:
    store, made, _ = run
    pages, tokenizer = training_pages(made), load(made.tokenizer)
    text = " water river stone the valley of light import the stone of naïve return the 数据 строка über of water"
    found = explain(store, "test", "dev", text, min_tokens=3).to_json()
    assert found["spans"]
    for span in found["spans"]:
        ids = tokenizer.encode(span["text"]).ids
        ends = [
            start + len(ids)
            for _, _, tokens in pages.values()
            for start in range(len(tokens))
            if tokens[start : start + len(ids)] == ids
        ]
        assert span["count"] == len(ends)
        assert sum(len(document["starts"]) for document in span["documents"]) == min(len(ends), 10)
    ranges = [(span["start"], span["end"]) for span in found["spans"]]
    assert not [(a, b) for a in ranges for b in ranges if a != b and b[0] <= a[0] and a[1] <= b[1]]
    bits = [span["bits"] for span in found["spans"]]
    assert bits == sorted(bits, reverse=True)


@pytest.mark.parametrize(
    "text", ["", " ", "Η γάτα κάθεται στο παράθυρο και κοιτάζει", "\ud800 <|endoftext|>", "\0" * 50]
)
def test_a_text_that_occurs_nowhere_has_no_spans(run: tuple, text: str) -> None:
    answer = explain(run[0], "test", "dev", text)
    found = answer.to_json()
    assert found["spans"] == []
    assert "no span of 8 tokens or more occurs verbatim" in render_explanation(answer)


def test_a_held_out_page_is_not_among_the_pages(run: tuple) -> None:
    store, made, _ = run
    held_out = [row for row in corpus(60) if row["id"] not in training_pages(made)]
    assert held_out
    for row in held_out[:3]:
        spans = explain(store, "test", "dev", row["text"]).to_json()["spans"]
        assert row["id"] not in {document["id"] for span in spans for document in span["documents"]}


def test_unanswerable_requests_are_refused(run: tuple, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the text has 20,001 characters"):
        explain(run[0], "test", "dev", "a" * (MOST_CHARACTERS + 1))
    with pytest.raises(InputError, match="at least 1 token, not 0"):
        explain(run[0], "test", "dev", "a", min_tokens=0)
    tokens_in(tmp_path, corpus(20))
    with pytest.raises(InputError, match=r"the tokens of test/shards@dev are not indexed.*\[spans\] enabled = true"):
        explain(Store(str(tmp_path)), "test", "dev", "a")


def test_a_plan_of_another_version_uses_the_index_of_its_own_tokens(run: tuple) -> None:
    store, made, _ = run
    run_stage_in(
        store.root,
        "tasks.stages.tokens.pack",
        PackConfig(seq_len=16),
        {"shards": made.shards},
        kind="plan",
        version="v2",
    )
    text = next(row["text"] for row in corpus(60) if row["id"] == longest_page(made))
    answer = explain(store, "test", "v2", text)
    found = answer.to_json()
    assert found["artifacts"]["plan"] == "test/plan@v2"
    assert found["artifacts"]["spans"] == "test/spans@dev"
    assert found["run"] is None
    assert len(found["spans"][0]["documents"][0]["sequences"]) > 10
    assert "nothing was trained from them yet" in render_explanation(answer)


def test_the_shell_prints_text_or_json_and_reads_standard_input(
    run: tuple, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, made, _ = run
    row = next(row for row in corpus(60) if row["id"] == longest_page(made))
    recipe = tmp_path / "test.toml"
    recipe.write_text(
        f'name = "test"\n[[extract.files]]\nname = "a"\nkind = "text"\npath = "/a/*"\n[place]\nstore = "{store.root}"\n'
    )
    arguments = ["explain", "--recipe", str(recipe)]
    assert main([*arguments, row["text"]]) == 0
    shown = capsys.readouterr().out
    assert "1 span of 8 tokens or more" in shown
    assert row["url"] in shown
    assert "first seen by step-000000" in shown
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(row["text"].encode() + b"\xff")))
    assert main([*arguments, "--json", "--min-tokens", "20", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["min_tokens"] == 20
    assert found["spans"][0]["documents"][0]["url"] == row["url"]
    assert main([*arguments, "a" * 20_001]) == 2

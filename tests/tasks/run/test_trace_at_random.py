"""Random tokens and pages of a run with two stages and replay, traced and checked against its batches."""

import random
from collections import defaultdict
from typing import NamedTuple

import pytest

from tasks.core.artifact import Artifact
from tasks.core.stage import Inputs
from tasks.core.store import Store
from tasks.run.trace.trace import trace
from tasks.stages.tokens.bpe import load
from tasks.trainer.config import AnnealConfig, OptimConfig, ReplayConfig, TrainConfig
from tasks.trainer.data.batches import Batches
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.spec import make_spec
from tests.conftest import run_stage_in
from tests.corpora import Made, corpus, tokens_in

ROWS = corpus(1200)
STEPS, BATCH = 150, 16
CONFIG = TrainConfig(
    model=ModelConfig(layers=1, dim=16, heads=2, kv_heads=1),
    optim=OptimConfig(warmup_steps=2),
    steps=STEPS,
    batch_size=BATCH,
    microbatch=BATCH,
    checkpoint_every=100,
    mixture={"web": 0.7, "code": 0.2, "my-books": 0.1},
    anneal=AnnealConfig(share=0.4, mixture={"web": 0.2, "code": 0.4, "my-books": 0.4}),
    replay=ReplayConfig(share=0.25, old=("my-books",)),
)


class Run(NamedTuple):
    store: Store
    made: Made
    batches: Batches
    checkpoint: Artifact


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("traced")
    made = tokens_in(folder, ROWS, method="best_fit")
    inputs = {"shards": made.shards, "plan": made.plan}
    checkpoint = run_stage_in(folder, "tasks.stages.train.stage", CONFIG, inputs, kind="checkpoint")
    spec = make_spec(CONFIG, Inputs(inputs), tmp_path_factory.mktemp("spec"))
    return Run(Store(str(folder)), made, Batches(spec), checkpoint)


def test_a_thousand_random_tokens_are_traced_to_their_exact_position_on_a_page(run: Run) -> None:
    draw, tokenizer = random.Random(11), load(run.made.tokenizer)
    eos = run.batches.eos_id
    encoded = {row["url"]: [*tokenizer.encode(row["text"]).ids, eos] for row in ROWS}
    wanted = defaultdict(list)
    steps = draw.sample(range(STEPS), 40)
    for _ in range(1000):
        wanted[draw.choice(steps)].append((draw.randrange(BATCH), draw.randrange(run.batches.seq_len)))
    compared = 0
    for step, places in wanted.items():
        tokens = run.batches.batch(step).tokens
        found = trace(run.store, "test", "dev", f"step:{step}").to_json()["sequences"]
        for sequence, position in places:
            pieces = found[sequence]["slices"]
            hits = [one for one in pieces if one["pos"] <= position < one["pos"] + one["length"]]
            if not hits:  # the rest of a sequence after its documents is padding
                assert position >= max(one["pos"] + one["length"] for one in pieces)
                assert tokens[sequence, position] == eos
                continue
            (piece,) = hits
            assert encoded[piece["url"]][piece["start"] + position - piece["pos"]] == tokens[sequence, position]
            compared += 1
    assert compared > 950


def test_three_hundred_pages_are_traced_to_the_steps_found_by_replaying_all_batches(run: Run) -> None:
    uid_steps: dict[str, set[int]] = defaultdict(set)
    for step in range(STEPS):
        for source, sequence, _ in run.batches.order.batch(step):
            for number, row in run.batches.plan.slices(source, sequence)[["shard", "row"]].tolist():
                uid_steps[run.batches.plan.shards[number], row].add(step)
    rows = random.Random(12).sample(ROWS, 300)
    read = 0
    for row in rows:
        (document,) = trace(run.store, "test", "dev", row["url"]).to_json()["documents"]
        assert document["id"] == row["id"]
        place = (document["shard"], document["row"])
        assert document["steps"] == sorted(uid_steps.get(place, ())), row["url"]
        read += bool(document["steps"])
    assert 150 < read <= 300

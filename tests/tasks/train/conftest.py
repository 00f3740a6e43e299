"""A small corpus as token shards and a plan, for the trainer and the evaluations."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.tokens.plan import SCHEMA
from tasks.tokens.shard import Shard, ShardSet, Shelf, TokenFormat, shard_name, write_shard
from tasks.train.config import ModelConfig, OptimConfig, TrainConfig, TrainSpec

VOCABULARY, EOS, SEQ_LEN = 97, 0, 32


def document(rng: np.random.Generator, length: int) -> np.ndarray:
    """A walk over the vocabulary in strides of 1 to 3: easy enough that a tiny model learns it in a few steps."""
    strides = rng.integers(1, 4, length)
    return np.append(1 + np.cumsum(strides) % (VOCABULARY - 1), EOS)


def write_corpus(folder: Path, documents: int = 60) -> ShardSet:
    """Writes two sources with a train and a held-out shard each, and the plan of concat-and-chunk."""
    fmt = TokenFormat(VOCABULARY, EOS, "0" * 64)
    (folder / "shards").mkdir(parents=True)
    (folder / "plan").mkdir()
    sequences = {}
    for number, source in enumerate(("code", "docs")):
        rng = np.random.default_rng(number)
        for split, count in (("train", documents), ("heldout", 3)):
            tokens = [document(rng, int(rng.integers(3, 90))) for _ in range(count)]
            uids = [bytes([number, split == "train", *index.to_bytes(14, "big")]) for index in range(count)]
            name = shard_name(source, split, 0, 0)
            with (folder / "shards" / f"{name}.arrow").open("wb") as file:
                write_shard(file, Shelf(source, split, uids, tokens, [len(t) * 3 for t in tokens]), fmt)
        sequences[source] = write_plan(folder, source)
    (folder / "plan" / "summary.json").write_text(json.dumps({"seq_len": SEQ_LEN, "sequences": sequences}))
    return ShardSet(str(path) for path in (folder / "shards").iterdir())


def write_plan(folder: Path, source: str) -> int:
    """Writes the plan of one source; returns its sequences."""
    name = shard_name(source, "train", 0, 0)
    lengths = Shard(str(folder / "shards" / f"{name}.arrow")).lengths.tolist()
    rows, place = [], 0
    for row, length in enumerate(lengths):
        start = 0
        while start < length:
            sequence, pos = divmod(place, SEQ_LEN)
            size = min(SEQ_LEN - pos, length - start)
            rows.append((sequence, name, row, start, size, pos))
            start, place = start + size, place + size
    count = place // SEQ_LEN
    rows = [row for row in rows if row[0] < count]
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)]
    pq.write_table(pa.table(columns, schema=SCHEMA), folder / "plan" / f"{source}.parquet")
    return count


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with `shards/` and `plan/` of two sources."""
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return folder


@pytest.fixture
def make_spec(corpus: Path, tmp_path: Path) -> Callable[..., TrainSpec]:
    """Returns a function that makes a spec of a run of seconds; keywords override the settings of the run."""

    def make(out: str = "run", **settings: object) -> TrainSpec:
        run = {
            "model": ModelConfig(layers=2, dim=32, heads=4, kv_heads=2),
            "optim": OptimConfig(lr=1e-2, warmup_steps=2),
            "steps": 12,
            "batch_size": 4,
            "microbatch": 2,
            "checkpoint_every": 3,
            "milestones": 2,
        }
        return TrainSpec(
            run=TrainConfig(**{**run, **settings}),
            weights={"code": 0.5, "docs": 0.5},
            shards=tuple(sorted(str(path) for path in (corpus / "shards").iterdir())),
            plan=str(corpus / "plan"),
            out=str(tmp_path / out),
        )

    return make

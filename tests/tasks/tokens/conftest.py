"""A small corpus of three sources, and what the token stages make of it."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tasks.artifact import Artifact
from tasks.tokens.config import EncodeConfig, PackConfig, TokenizerConfig
from tests.conftest import run_stage_in

WORDS = [
    "water",
    "river",
    "stone",
    "light",
    "valley",
    "über",
    "naïve",
    "строка",
    "数据",
    "return",
    "import",
    "the",
    "of",
]


def corpus(page: Callable[..., dict], count: int = 120) -> list[dict]:
    draw = random.Random(5)
    rows = []
    for index in range(count):
        source = ("web", "code", "my-books")[index % 3]
        text = " ".join(draw.choices(WORDS, k=draw.randint(5, 200)))
        rows.append(page(f"https://h{index % 7}.org/{index}", text, source, ("en", "de")[index % 2]))
    return rows


class Made(NamedTuple):
    documents: Artifact
    tokenizer: Artifact
    shards: Artifact
    plan: Artifact


def make_in(
    folder: Path,
    page: Callable[..., dict],
    make_documents: Callable[..., Artifact],
    rows: list[dict] | None = None,
    parts: int = 3,
    workers: int = 0,
    encode: EncodeConfig | None = None,
    seq_len: int = 32,
) -> Made:
    run = partial(run_stage_in, folder, workers=workers)
    documents = make_documents(corpus(page) if rows is None else rows, parts, folder=folder)
    tokenizer = run("tasks.tokens.bpe", TokenizerConfig(vocab_size=300), {"documents": documents})
    shards = run("tasks.tokens.encode", encode or EncodeConfig(), {"documents": documents, "tokenizer": tokenizer})
    plan = run("tasks.tokens.pack", PackConfig(seq_len=seq_len), {"shards": shards})
    return Made(documents, tokenizer, shards, plan)


@pytest.fixture
def make_tokens(tmp_path: Path, page: Callable, make_documents: Callable) -> Callable[..., Made]:
    """Runs tokenizer, encode and pack over a corpus."""
    return partial(make_in, tmp_path, page, make_documents)


@pytest.fixture
def make_tokens_elsewhere(tmp_path: Path, page: Callable, make_documents: Callable) -> Callable[..., Made]:
    """`make_tokens` in a store of its own."""
    return partial(make_in, tmp_path / "elsewhere", page, make_documents)

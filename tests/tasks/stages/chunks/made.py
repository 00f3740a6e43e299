"""Helpers of the tests of chunks: a small tokenizer, and the stage over rows of documents. Not a test module."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.core.artifact import Artifact
from tasks.formats.documents.document import DOCUMENT, LAYOUT
from tasks.stages.chunks import ChunksConfig
from tasks.stages.chunks.cut import Count, token_counter
from tasks.stages.tokens import TokenizerConfig
from tasks.stages.tokens.bpe import train
from tests.conftest import run_stage_in
from tests.corpora import by_hand, documents_in

STAGE = "tasks.stages.chunks.stage"
WORDS = "The doors of the old harbour museum open at nine, and close when the last visitor has gone home. "


@functools.cache
def tokenizer_json() -> str:
    """A tokenizer whose tokens are a few characters long."""
    text: str = train([WORDS * 3], TokenizerConfig(vocab_size=330)).to_str()
    return text


def count() -> Count:
    return token_counter(tokenizer_json())


def chunked(
    folder: Path,
    rows: Sequence[dict[str, Any]],
    parts: int = 2,
    workers: int = 0,
    layouts: Sequence[dict[str, Any]] = (),
    before: Sequence[dict[str, Any]] = (),
    takedown: Artifact | None = None,
    **settings: Any,
) -> Artifact:
    """The chunks of kept documents; `before` are the extracted documents of those with one of the `layouts`."""
    (folder / "tokenizer.json").parent.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer_json())
    documents = documents_in(folder, rows, parts)
    tables = {"documents": (DOCUMENT, [{name: row[name] for name in row if name in DOCUMENT.names} for row in before])}
    if layouts:
        tables["layout"] = (LAYOUT, [{"url": "", **row} for row in layouts])
    inputs: dict[str, Any] = {"documents": documents, "extracted": by_hand(folder, "extracted", parts, tables)}
    config = TokenizerConfig(file=str(folder / "tokenizer.json"))
    inputs["tokenizer"] = run_stage_in(folder, "tasks.stages.tokens.bpe", config, inputs, kind="tokenizer")
    inputs |= {"takedowns": takedown} if takedown else {}
    chunks = ChunksConfig(**{"enabled": True, "max_tokens": 128, "min_tokens": 32, **settings})
    return run_stage_in(folder, STAGE, chunks, inputs, workers=workers, kind="chunks")


def rows_of(made: Artifact, folder: str = "chunks/") -> list[dict[str, Any]]:
    return [row for path in made.files(folder) for row in made.table(path).to_pylist()]

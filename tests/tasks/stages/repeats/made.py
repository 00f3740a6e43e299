"""Token shards of given documents, and the artifacts of spans, repeats and pack made from them."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.engine import open_engine
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.formats.documents.key_index import merge
from tasks.formats.tokens.shard import HELDOUT, TRAIN, TokenFormat
from tasks.stages.repeats import RepeatsConfig
from tasks.stages.spans import SpansConfig
from tasks.stages.tokens import TokenizerConfig
from tasks.stages.tokens.encode import ShardWriter, documents_table
from tests.conftest import run_stage_in
from tests.corpora import corpus, documents_in

EOS = 0
Documents = Sequence[Sequence[int]]


def shards_in(folder: Path, shards: Sequence[Documents], heldout: Documents = ((1, 2),), vocab: int = 300) -> Artifact:
    """Commits documents as test/shards, each list a training shard of a part of its own; end-of-text is appended."""
    output, fmt = Output(Store(str(folder)), ArtifactId("test/shards", "dev"), "by-hand"), TokenFormat(vocab, EOS, "")
    for index, documents in enumerate(shards):
        with output.part(f"part-{index:05d}", conserved=False) as part:
            writer = ShardWriter(part, index, fmt, (), 1 << 30)
            split = [(TRAIN, documents), *([(HELDOUT, heldout)] if index == 0 else [])]
            for name, several in split:
                uids = [f"{name[0]}{index:04d}{row:04d}".encode().ljust(16) for row in range(len(several))]
                tokens = [np.array([*document, EOS], fmt.dtype) for document in several]
                urls = [f"https://www.d{index}.org/{name}/{row}" for row in range(len(several))]
                writer.add(documents_table(uids, urls, tokens, list(map(len, several))), "web", name)
            writer.close()
    with open_engine(workers=0) as engine:
        merge(output, engine, [record for _, record in sorted(output.committed.items())])
    return commit(output, "by hand", 1, Config(), [], Report())


@cache
def tokenizer() -> Artifact:
    """A tokenizer of 300 entries; one for all tests of a process."""
    folder = Path(mkdtemp(prefix="tokenizer-"))
    documents = documents_in(folder, corpus(30))
    config = TokenizerConfig(vocab_size=300)
    return run_stage_in(folder, "tasks.stages.tokens.bpe", config, {"documents": documents}, kind="tokenizer")


def inputs_in(folder: Path, shards: Artifact, group_tokens: int = 1_000_000) -> dict[str, Any]:
    """The inputs of the stage repeats."""
    config = SpansConfig(enabled=True, group_tokens=group_tokens)
    spans = run_stage_in(folder, "tasks.stages.spans.stage", config, {"shards": shards}, kind="spans")
    return {"shards": shards, "spans": spans, "tokenizer": tokenizer()}


def repeats_in(folder: Path, inputs: dict[str, Any], min_tokens: int, range_tokens: int, **options: Any) -> Artifact:
    """Runs the stage."""
    config = RepeatsConfig(enabled=True, min_tokens=min_tokens, range_tokens=range_tokens)
    return run_stage_in(folder, "tasks.stages.repeats.stage", config, inputs, kind="repeats", **options)

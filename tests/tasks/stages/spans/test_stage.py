"""The suffix arrays of the stage `spans` find exactly the runs that a pass over the documents finds."""

import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.errors import InputError
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.formats.tokens import spans
from tasks.formats.tokens.shard import HELDOUT, TRAIN, ShardSet, TokenFormat, shard_name, write_shard
from tasks.formats.tokens.spans import SpanIndex
from tasks.run.catalogue import upstream
from tasks.run.recipe import find_recipe
from tasks.stages.spans import SpansConfig
from tasks.stages.spans.stage import sorted_suffixes
from tests.conftest import run_stage_in
from tests.shards import buffer_of

EOS = 0
Documents = list[list[int]]


def shards_in(folder: Path, shards: list[Documents], heldout: Documents, vocab_size: int = 300) -> Artifact:
    """Commits documents as test/shards, each list a training shard; the end-of-text token is appended to each."""
    output, fmt = (
        Output(Store(str(folder)), ArtifactId("test/shards", "dev"), "by-hand"),
        TokenFormat(vocab_size, EOS, ""),
    )
    named = [(TRAIN, index, documents) for index, documents in enumerate(shards)] + [(HELDOUT, 0, heldout)]
    for split, index, documents in named:
        tokens = [np.array([*document, EOS], dtype=fmt.dtype) for document in documents]
        uids = [f"{split}{index:04d}{row:04d}".encode()[:16].ljust(16) for row in range(len(documents))]
        name = shard_name("web", split, index, 0)
        path, count = f"shards/{name}.arrow", sum(map(len, tokens))
        with output.part(name, conserved=False) as part, part.file(path, len(tokens), count) as file:
            write_shard(file, buffer_of("web", split, uids, tokens, [1] * len(documents)), fmt)
    return commit(output, "by hand", 1, Config(), [], Report())


def spans_of(folder: Path, shards: Artifact, group_tokens: int, **options: object) -> Artifact:
    config = SpansConfig(enabled=True, group_tokens=group_tokens)
    return run_stage_in(folder, "tasks.stages.spans.stage", config, {"shards": shards}, kind="spans", **options)


def occurrences(shards: list[Documents], run: list[int]) -> list[tuple[str, int, int]]:
    """Returns (shard, row, start) of every occurrence of a run, by a pass over each document."""
    return [
        (shard_name("web", TRAIN, index, 0), row, start)
        for index, documents in enumerate(shards)
        for row, document in enumerate(documents)
        for start in range(len(document) - len(run) + 1)
        if document[start : start + len(run)] == run
    ]


tokens = st.integers(1, 3)
document = st.lists(tokens, max_size=12)


@settings(max_examples=40)
@given(
    st.lists(st.lists(document, min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(tokens, min_size=1, max_size=8),
    st.integers(1, 60),
    st.sampled_from([1, 2, 3, 512]),
    st.sampled_from([1, 7, 99]),
)
def test_a_run_of_tokens_is_found_at_its_positions_in_documents(
    shards: list[Documents], text: list[int], group_tokens: int, every: int, maps: int
) -> None:
    with (
        tempfile.TemporaryDirectory() as name,
        patch.object(spans, "SAMPLED_EVERY", every),
        patch.object(spans, "MOST_MAPS", maps),
    ):
        made = shards_in(Path(name), shards, heldout=[text])
        index = SpanIndex(spans_of(Path(name), made, group_tokens), ShardSet.open(made))
        longest = max(size for size in range(len(text) + 1) if not size or occurrences(shards, text[:size]))
        assert index.longest(text) == longest
        everywhere = occurrences(shards, text)
        assert index.count(text) == len(everywhere)
        assert sorted(index.places(text, 99)) == sorted(everywhere)
        some = index.places(text, 2)
        assert len(some) == len(set(some)) == min(2, len(everywhere))
        assert set(some) <= set(everywhere)
        kept = index._open.values()
        assert sum(group.maps for group in kept) <= maps or len(kept) == 1


@pytest.mark.parametrize("vocab_size", [300, 65_536, 128_000])
def test_suffixes_are_sorted_by_token_and_not_by_byte(vocab_size: int) -> None:
    draw = np.random.default_rng(0)
    edges = np.array([0, 1, 255, 256, 257, 299, 511, 65_535, 65_536, 127_999])
    text = draw.choice(edges[edges < vocab_size], 400).astype(np.uint16 if vocab_size <= 65_536 else np.uint32)
    expected = sorted(range(len(text)), key=lambda start: text[start:].tolist())
    assert sorted_suffixes([text[:150], text[150:]], len(text), vocab_size).tolist() == expected


def test_a_long_run_is_found_across_batches_of_a_shard(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    documents = [[1 + row % 5] for row in range(9_000)]  # more documents than a batch has rows
    documents[8_195] = draw.integers(1, 5, 2_000).tolist()
    made = shards_in(tmp_path, [documents], heldout=[])
    index = SpanIndex(spans_of(tmp_path, made, 1_000_000), ShardSet.open(made))
    text = documents[8_195][300:]
    assert index.longest([*text, 7, 7]) == 1_700
    assert index.places(text, 10) == [("web-train-00000-000", 8_195, 300)]


def test_the_bytes_are_the_same_on_any_number_of_workers(tmp_path: Path) -> None:
    draw = np.random.default_rng(2)
    shards = [[draw.integers(1, 9, 40).tolist() for _ in range(20)] for _ in range(5)]
    made = shards_in(tmp_path, shards, heldout=[[1, 2]])
    one, two = (spans_of(tmp_path, made, 1_700, workers=workers, version=f"w{workers}") for workers in (1, 2))
    assert one.record.content == two.record.content
    groups = [f"spans/group-{index:05d}-of-00003" for index in range(3)]
    assert one.files() == sorted(f"{group}{suffix}" for group in groups for suffix in (".arrow", "-sample.npy"))
    assert (one.record.rows_out, one.record.metrics["tokens"]) == (100, 5 * 20 * 41)


def test_suffix_arrays_of_other_shards_are_refused(tmp_path: Path) -> None:
    made = shards_in(tmp_path / "a", [[[1, 2]]], heldout=[])
    spans = spans_of(tmp_path / "a", made, 100)
    other = shards_in(tmp_path / "b", [[[1, 2, 3]]], heldout=[])
    with pytest.raises(InputError, match="was built from other shards"):
        SpanIndex(spans, ShardSet.open(other))


def test_spans_runs_after_encode_if_the_recipe_enables_it() -> None:
    recipe = find_recipe("demo")
    assert "spans" in recipe.stages("tokens")
    assert upstream("spans") == ("encode",)
    assert "spans" not in recipe.override({"spans.enabled": False}).stages("tokens")

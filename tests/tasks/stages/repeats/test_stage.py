"""Long repeats: exactly those that a pass over all runs of tokens finds, for any partitioning."""

import tempfile
from collections import defaultdict
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tasks.core.artifact import Artifact
from tasks.core.errors import RecipeError
from tasks.formats.tokens.plan import Plan
from tasks.formats.tokens.repeats import path_of
from tasks.formats.tokens.shard import ShardSet
from tasks.formats.tokens.spans import group_names
from tasks.run.catalogue import upstream
from tasks.run.recipe import find_recipe
from tasks.stages.repeats import maximal, stage
from tasks.stages.repeats.maximal import Suffixes, repeated
from tasks.stages.tokens import PackConfig
from tests.conftest import run_stage_in
from tests.tasks.stages.repeats.made import EOS, inputs_in, repeats_in, shards_in, tokenizer

WIDTH = 3
Shards = list[list[list[int]]]
document = st.lists(st.integers(1, 3), max_size=14)
shards_of = st.lists(st.lists(document, min_size=1, max_size=5), min_size=1, max_size=4)


def naive(shards: Shards) -> dict[tuple[int, ...], list[tuple[int, int, int]]]:
    """(shard, row, start) of all occurrences of the runs of WIDTH tokens that occur more than once, in order."""
    found = defaultdict(list)
    for shard, documents in enumerate(shards):
        for row, tokens in enumerate(documents):
            for start in range(len(tokens) - WIDTH + 1):
                found[tuple(tokens[start : start + WIDTH])].append((shard, row, start))
    return {run: places for run, places in found.items() if len(places) > 1}


def marks(shards: Shards) -> dict[tuple[int, int], tuple[set[int], set[int], dict[int, int]]]:
    """By document: its tokens in repeats, its omitted tokens, and the occurrences of the run at a token."""
    inside, later, first = defaultdict(set), defaultdict(set), defaultdict(set)
    counts: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    for places in naive(shards).values():
        for number, (shard, row, start) in enumerate(places):
            tokens = range(start, start + WIDTH)
            inside[shard, row].update(tokens)
            (later if number else first)[shard, row].update(tokens)
            counts[shard, row][start] = len(places)
    every = [(shard, row) for shard, documents in enumerate(shards) for row in range(len(documents))]
    return {key: (inside[key], later[key] - first[key], counts[key]) for key in every}


def in_order(tokens: set[int]) -> list[tuple[int, int]]:
    """Tokens as runs (begin, end)."""
    begins = sorted(token for token in tokens if token - 1 not in tokens)
    ends = sorted(token + 1 for token in tokens if token + 1 not in tokens)
    return list(zip(begins, ends, strict=True))


def rows_of(made: Artifact, shards: Shards) -> dict[tuple[int, int], dict]:
    tables = [made.table(path_of(f"web-train-{index:05d}-000")) for index in range(len(shards))]
    return {(shard, row): value for shard, table in enumerate(tables) for row, value in enumerate(table.to_pylist())}


@settings(max_examples=20)
@given(shards_of, st.integers(1, 60), st.integers(1, 60), st.integers(1, 9))
def test_marks_equal_those_of_a_brute_force_pass(
    shards: Shards, group_tokens: int, range_tokens: int, piece: int
) -> None:
    with (
        tempfile.TemporaryDirectory() as name,
        patch.object(stage, "_PIECE", piece),
        patch.object(stage, "_BLOCK_TOKENS", 7),
        patch.object(maximal, "_BLOCK", 2),
    ):
        inputs = inputs_in(Path(name), shards_in(Path(name), shards), group_tokens)
        found = rows_of(repeats_in(Path(name), inputs, WIDTH, range_tokens), shards)
    for key, (inside, again, counts) in marks(shards).items():
        tokens, row = shards[key[0]][key[1]], found[key]
        assert row["tokens"] == len(tokens)
        assert [(one["begin"], one["end"]) for one in row["again"]] == in_order(again)
        assert [tuple(one.values()) for one in row["spans"]] == [
            (begin, end, max(counts.get(start, 0) for start in range(begin, end))) for begin, end in in_order(inside)
        ]
        assert np.isclose(row["share"], len(inside) / max(1, len(tokens)))
        assert np.isclose(row["again_share"], len(again) / max(1, len(tokens)))


def all_maximal(shards: Shards) -> set[tuple[tuple[int, ...], int]]:
    """Runs of at least WIDTH tokens, with their occurrences, that occur less often if extended by any token."""
    around = defaultdict(list)
    for number, tokens in enumerate(one for documents in shards for one in documents):
        for start in range(len(tokens)):
            for end in range(start + WIDTH, len(tokens) + 1):
                before = tokens[start - 1] if start else ("begin", number)
                after = tokens[end] if end < len(tokens) else ("end", number)
                around[tuple(tokens[start:end])].append((before, after))
    return {
        (run, len(found))
        for run, found in around.items()
        if len(found) > 1 and len({before for before, _ in found}) > 1 and len({after for _, after in found}) > 1
    }


@settings(max_examples=30)
@given(shards_of, st.integers(1, 60), st.integers(4, 30))
def test_maximal_repeats_equal_those_of_a_brute_force_pass(shards: Shards, group_tokens: int, piece: int) -> None:
    with tempfile.TemporaryDirectory() as name, patch.object(maximal, "_BLOCK", 2):
        inputs = inputs_in(Path(name), shards_in(Path(name), shards), group_tokens)
        suffixes = Suffixes(inputs["spans"].folder, len(group_names(inputs["spans"])), ShardSet.open(inputs["shards"]))
        found, shared = [], []
        for slab, same in suffixes.pieces(suffixes.slab(None, None), piece, WIDTH):
            runs = repeated(suffixes, slab, WIDTH, same=same)
            for most, rows in ((1_000, found), (1, shared)):
                for tokens, occurrences, position in maximal.maximal(suffixes, runs, WIDTH, most).tolist():
                    rows.append((tuple(suffixes.text.read(position, tokens)), occurrences))
    assert len(set(found)) == len(found)
    assert set(found) == (expected := all_maximal(shards))
    # For a run with more than `most` occurrences, only what all of them share.
    assert set(shared) == {(run, count) for run, count in expected if count == len(naive(shards)[run[:WIDTH]])}


def test_a_plan_omits_all_occurrences_but_the_first(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    notice, own = [200 + token for token in range(60)], draw.integers(1, 150, (6, 40)).tolist()
    shards = [[[*own[0], *notice, *own[1]], [*own[2], *notice]], [[*notice, *own[3]], list(notice), [*own[4], *own[5]]]]
    inputs = inputs_in(tmp_path, shards_in(tmp_path, shards), 120)
    made = repeats_in(tmp_path, inputs, 50, 50)
    assert made.record.metrics["documents_with_repeats"] == 4
    packing = {"shards": inputs["shards"], "repeats": made}
    for method in ("concat", "best_fit"):
        config = PackConfig(seq_len=7, method=method, leave_out_repeats=True)  # type: ignore[arg-type]
        packed = run_stage_in(tmp_path, "tasks.stages.tokens.pack", config, packing, kind="plan", version=method)
        plan, text = Plan.open(packed), []
        for number in range(plan.sequences["web"]):
            for shard, row, offset, length in plan.slices("web", number).tolist():
                one = ShardSet.open(inputs["shards"]).shard(plan.shards[shard])
                text.append(((shard, row), one.flat[offset : offset + length].tolist(), offset))
        kept = [token for _, tokens, _ in sorted(text, key=lambda piece: (piece[0], piece[2])) for token in tokens]
        whole = [*own[0], *notice, *own[1], EOS, *own[2], EOS, *own[3], EOS, *own[4], *own[5], EOS]
        assert kept == (whole[: len(whole) // 7 * 7] if method == "concat" else whole)
        assert packed.record.metrics["repeated_tokens"] == 3 * 60 + 1  # and the end of the lone notice
        assert packed.record.rejected["repeated"] == 1
        assert packed.record.rows_in == 5


def test_the_report_counts_documents_and_domains_and_masks_addresses(tmp_path: Path) -> None:
    encode = Tokenizer.from_str(tokenizer().read("tokenizer.json").decode()).encode
    notice = encode("<b>Write to ann@example.org before you copy any of this to another harbour").ids
    shards = [[[*encode(f"page {name}").ids, *notice] for name in names] for names in ("abc", "def")]
    inputs = inputs_in(tmp_path, shards_in(tmp_path, shards))
    made = repeats_in(tmp_path, inputs, 40, 1_000_000)
    (row,) = made.table("frequent.parquet").to_pylist()
    assert (row["tokens"], row["occurrences"], row["documents"], row["domains"]) == (len(notice), 6, 6, 2)
    page = made.read("report.html").decode()
    assert "&lt;b&gt;Write to &lt;email&gt; before" in page
    assert "ann@" not in page
    assert not made.files("occurrences/")


def made_up(seed: int) -> Shards:
    """Documents of pieces from a small pool, so that many repeat."""
    draw = np.random.default_rng(seed)
    pool = [draw.integers(1, 200, size).tolist() for size in draw.integers(30, 90, 12)]
    return [
        [[token for piece in draw.integers(0, 12, 4) for token in pool[piece]] + [201 + shard, 210 + row]
         for row in range(6)] for shard in range(4)
    ]  # fmt: skip


def test_the_bytes_do_not_depend_on_the_workers(tmp_path: Path) -> None:
    inputs = inputs_in(tmp_path, shards_in(tmp_path, made_up(1)), 2_000)
    one, two = (repeats_in(tmp_path, inputs, 50, 900, workers=n, version=f"w{n}") for n in (1, 2))
    assert one.record.content == two.record.content
    assert one.record.metrics["again_share"] > 0.5


def test_a_recipe_with_repeats_has_suffix_arrays_and_packs_afterwards() -> None:
    recipe = find_recipe("demo").override({"repeats.enabled": True, "pack.leave_out_repeats": True})
    assert recipe.stages("tokens") == ("tokenizer", "encode", "spans", "repeats", "pack")
    assert upstream("repeats") == ("spans",)
    with pytest.raises(RecipeError, match=r"repeats.*set \[spans\] enabled = true"):
        recipe.override({"spans.enabled": False})
    with pytest.raises(RecipeError, match=r"leave_out_repeats.*set \[repeats\] enabled = true"):
        recipe.override({"repeats.enabled": False})

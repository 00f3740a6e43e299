"""The passes over buckets give the same results as one process with all documents (`reference`)."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tasks.core.artifact import Artifact
from tasks.formats.dedup.dedup_index import BAND, TEXT
from tasks.formats.documents.text import mix
from tasks.stages.dedup import DedupConfig
from tasks.stages.dedup.pairs import distinct, equal_links, pairs, shared_texts, without_crowds
from tasks.stages.dedup.preference import order, preferences
from tasks.stages.dedup.verdicts import both_directions, labels_of, large_star, small_star
from tasks.stages.dedup.workspace import EDGE, PAIR, packed, pair_key
from tests.conftest import run_stage_in
from tests.s3_server import S3Server
from tests.tasks.stages.dedup import reference
from tests.tasks.stages.dedup.made import corpus, document, rows_of
from tests.tasks.stages.dedup.test_gold import read

DEDUP = "tasks.stages.dedup.stage"
FINE = {"pairs_per_part": 25, "records_per_bucket": 120}
"""So little per bucket that a small corpus has dozens of them."""


def edited(source: int, change: int, drawn: np.random.Generator) -> str:
    """Returns a text of 60 words, some replaced; arguments that differ only in `drawn` give near copies."""
    words = [f"w{source}x{index}" for index in range(60)]
    for place in drawn.integers(0, 60, change):
        words[place] = f"e{drawn.integers(1 << 40)}"
    return " ".join(words)


def mixed(seed: int, count: int = 120) -> list[dict[str, Any]]:
    """Copies, near copies and chains of them, with enough ties in quality and time for ids to decide."""
    drawn = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for number in range(count):
        text = edited(int(drawn.integers(count // 6)), int(drawn.integers(3)), drawn)
        if number and drawn.random() < 0.2:
            text = str(rows[int(drawn.integers(number))]["text"]).upper() + "!"
        when = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=int(drawn.integers(3)))
        fetched_at = when if drawn.random() < 0.8 else None
        rows.append(document(text, f"{number}", prose_score=int(drawn.integers(4)) / 4, fetched_at=fetched_at))
    return [*rows, document("...", "empty"), document("", "none")]


def found_in(artifact: Artifact) -> tuple[dict[str, Any], set[tuple[Any, ...]]]:
    names = ("duplicate_of", "kind", "jaccard", "cluster", "text", "rank")
    verdicts = {row["id"]: tuple(row[name] for name in names) for row in rows_of(artifact, "duplicates/")}
    return verdicts, {tuple(row.values()) for row in rows_of(artifact, "pairs/")}


@pytest.mark.parametrize("settings", [{}, {"exact": False}, {"minhash": {"max_bucket": 2}}, {"near": False}])
def test_many_small_buckets_give_the_verdicts_of_one_process(tmp_path: Path, settings: dict[str, Any]) -> None:
    config = DedupConfig(**settings, **FINE)
    rows = mixed(1)
    made = run_stage_in(tmp_path, DEDUP, config, corpus(tmp_path, rows, 3))
    expected = reference.expected(rows, config)
    assert found_in(made) == (expected.verdicts, expected.pairs)
    assert sum(found[0] is not None for found in expected.verdicts.values()) > 10
    if config.near:
        metrics = made.record.metrics
        assert (metrics["candidate_pairs"], metrics["large_buckets"]) == expected[2:]


def test_real_pages_get_the_verdicts_of_one_process(shared_data: Path, tmp_path: Path) -> None:
    pages = read(shared_data / "near_dup" / "docs.jsonl.zst")[:400]
    rows = [document(page["text"], page["id"], prose_score=n * 7 % 10 / 10) for n, page in enumerate(pages)]
    config = DedupConfig(pairs_per_part=500, records_per_bucket=900)
    made = run_stage_in(tmp_path, DEDUP, config, corpus(tmp_path, rows, 4))
    expected = reference.expected(rows, config)
    assert len(made.files("pairs/")) > 3
    assert found_in(made) == (expected.verdicts, expected.pairs)


def test_a_long_chain_over_many_buckets_is_one_cluster(tmp_path: Path) -> None:
    words = [f"w{index}" for index in range(300)]
    rows = [document(" ".join(words[start : start + 60]), f"{start}") for start in range(0, 240, 3)]
    config = DedupConfig(pairs_per_part=60, records_per_bucket=250)
    made = run_stage_in(tmp_path, DEDUP, config, corpus(tmp_path, rows, 4))
    assert found_in(made) == reference.expected(rows, config)[:2]
    assert (made.record.metrics["clusters"], made.record.metrics["largest_cluster"]) == (1, 80)


def test_only_files_read_later_remain_in_the_artifact(tmp_path: Path) -> None:
    made = run_stage_in(tmp_path, DEDUP, DedupConfig(**FINE), corpus(tmp_path, mixed(3)))
    kept = {"bands", "captures", "duplicates", "pairs", "parts.json", "preference", "sizes", "sources", "texts"}
    kept |= {"audit.json", "domains", "domains.parquet", "largest", "verdicts"}
    assert {path.partition("/")[0] for path in made.files()} == kept
    assert set(made.store.sizes(made.path)) == {*made.files(), *made.record_paths}


def test_on_an_object_store_the_files_are_the_same(s3: S3Server, tmp_path: Path) -> None:
    config, inputs = DedupConfig(), corpus(tmp_path, mixed(5, 16))
    there = run_stage_in("s3://sluice/buckets", DEDUP, config, inputs)
    assert there.record.content == run_stage_in(tmp_path, DEDUP, config, inputs).record.content
    assert there.verify() == []


def test_the_pairs_of_a_cluster_are_in_the_file_of_its_bucket(tmp_path: Path) -> None:
    made = run_stage_in(tmp_path, DEDUP, DedupConfig(**FINE), corpus(tmp_path, mixed(4)))
    bucket = {row["text"]: row["bucket"] for row in rows_of(made, "duplicates/") if row["cluster"]}
    files = made.files("pairs/")
    linked = [(number, row) for number, path in enumerate(files) for row in made.table(path).to_pylist()]
    assert len({number for number, _ in linked}) > 2
    for number, row in linked:
        assert bucket[row["better"]] == bucket[row["worse"]] == number


GRAPHS = st.sets(st.tuples(st.integers(0, 30), st.integers(0, 30)).filter(lambda pair: pair[0] < pair[1]), max_size=60)


def components(edges: NDArray[np.void], count: int) -> tuple[NDArray[np.void], int]:
    """Runs the rounds over `count` buckets of nodes; returns the stars, and the number of rounds."""
    rounds = 0
    while True:
        moved = 0
        for step in (large_star, small_star):
            made = [step(edges[edges["key"] % np.uint64(count) == bucket]) for bucket in range(count)]
            nodes, others = (np.concatenate([found[side] for found, _ in made]) for side in (0, 1))
            moved += sum(changed for _, changed in made)
            one_way = packed(EDGE, key=mix(nodes), node=nodes, other=others)
            edges = both_directions(nodes, others) if step is small_star else one_way
        rounds += 1
        if not moved:
            return edges, rounds


@given(GRAPHS, st.integers(1, 4))
def test_stars_lead_to_the_smallest_node_of_the_component(graph: set[tuple[int, int]], count: int) -> None:
    linked = np.array(sorted(graph), np.int64).reshape(-1, 2)
    one, other = linked.T.astype(np.uint64)
    stars, _ = components(both_directions(one, other), count)
    assert labels_of(np.arange(31, dtype=np.uint64), stars).tolist() == reference.components(31, linked).tolist()


def test_a_chain_of_thousands_takes_few_rounds() -> None:
    nodes = np.random.default_rng(5).permutation(5000).astype(np.uint64)
    stars, rounds = components(both_directions(nodes[1:], nodes[:-1]), 3)
    assert not labels_of(nodes, stars).any()
    assert rounds <= 15


@pytest.mark.parametrize("block", [1, 5, 1000])
@given(st.data())
def test_every_member_is_paired_once_with_the_first_ones_of_its_group(block: int, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(2, 9), max_size=5))
    most = data.draw(st.integers(2, 10))
    starts = np.repeat(np.cumsum([0, *sizes])[:-1], sizes).astype(np.int64)
    blocks = list(pairs(starts, most, block))
    found = [couple for better, worse in blocks for couple in zip(better.tolist(), worse.tolist(), strict=True)]
    wanted = [
        (first + a, first + b) for first, size in zip(np.unique(starts), sizes, strict=True) for b in range(size)
        for a in range(min(b, most))
    ]  # fmt: skip
    assert sorted(found) == sorted(wanted)
    assert all(len(better) <= max(block, most) for better, _ in blocks)


def test_a_text_is_in_a_group_once_and_large_groups_are_in_order_of_preference() -> None:
    # Key 1: texts 10 (twice), 11, 12 and 13; key 2: text 10 alone, though twice; key 3: texts 10 and 11.
    rows = [(1, 11, 4), (1, 10, 7), (1, 12, 2), (1, 10, 3), (1, 13, 6), (2, 10, 3), (2, 10, 7), (3, 11, 4), (3, 10, 3)]
    bands = np.array(rows, BAND)
    best = [7, 4, 6, 3, 2]

    def ranks(row_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        return np.array([best.index(row_id) for row_id in row_ids.tolist()])

    row_ids, starts = shared_texts(bands, 2, ranks)
    # Text 10 is the best one for its copy 7, but goes by its first row id, 3.
    assert (row_ids.tolist(), starts.tolist()) == ([3, 4, 6, 2, 3, 4], [0, 0, 0, 0, 4, 4])
    ordinary, crowded, large = without_crowds(bands, 2)
    assert (sorted(set(ordinary["key"].tolist())), crowded["row_id"].tolist(), large) == ([2, 3], [3, 7, 4, 2, 6], 1)
    assert shared_texts(ordinary, 2)[0].tolist() == [3, 4]
    assert [len(found) for found in without_crowds(bands, 4)[:2]] == [9, 0]
    assert sorted(shared_texts(bands, 4)[0][:4].tolist()) == [2, 3, 4, 6]
    assert [len(found) for found in (*shared_texts(bands[:0], 2), *without_crowds(bands[:0], 2)[:2])] == [0, 0, 0, 0]


def made(quality: list[float], fetched: list[datetime | None] | None = None, ids: list[str] | None = None) -> Any:
    """Records of preference; unknown times and ids by number unless given."""
    times = pa.array(fetched or [None] * len(quality), pa.timestamp("ms", tz="UTC"))
    named = ids or [f"{number:032x}" for number in range(len(quality))]
    return preferences(
        pa.chunked_array([pa.array(quality, pa.float32())]), pa.chunked_array([times]), pa.chunked_array([named])
    )


SCORES = st.sampled_from([0.0, -0.0, 0.25, 1.0, -3.5, 1e-9, float("inf")])
TIMES = st.sampled_from([None, *(datetime(year, 1, 1, tzinfo=UTC) for year in (1960, 1970, 2026))])


@given(st.lists(st.tuples(SCORES, TIMES, st.integers(0, 2**128 - 1)), max_size=12, unique_by=lambda row: row[2]))
def test_the_order_of_records_is_that_of_the_columns(rows: list[tuple[float, Any, int]]) -> None:
    quality, fetched, numbers = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    ids = [f"{number:032x}" for number in numbers]
    records = made(quality, fetched or None, ids)
    columns = [pa.array(quality, pa.float32()), pa.array(fetched, pa.timestamp("ms", tz="UTC")), pa.array(ids)]
    ranks = reference.preference(*(pa.chunked_array([column]) for column in columns))
    assert order(records, np.arange(len(rows), dtype=np.uint64)).tolist() == np.argsort(ranks).tolist()


def test_equal_texts_are_linked_to_the_first_of_them() -> None:
    texts = np.array([(5, 1, 9), (5, 2, 3), (5, 1, 4), (0, 0, 7), (5, 1, 6)], TEXT)
    links = equal_links(texts)
    assert links[["left", "right", "equal"]].tolist() == [(4, 6, 1), (4, 9, 1)]
    assert links["key"].tolist() == mix(links["left"]).tolist()
    assert len(equal_links(texts[:0])) == 0


def test_a_pair_from_several_buckets_is_deduplicated() -> None:
    one, other = np.array([3, 1, 3, 1], np.uint64), np.array([8, 2, 8, 9], np.uint64)
    found = distinct(packed(PAIR, key=pair_key(one, other), left=one, right=other))
    assert sorted(found[["left", "right"]].tolist()) == [(1, 2), (1, 9), (3, 8)]


def test_pairs_are_spread_evenly_over_their_hashes() -> None:
    numbers = np.arange(50, dtype=np.uint64)
    left, right = (side.ravel() for side in np.meshgrid(numbers, numbers))
    keys = pair_key(left, right)
    assert len(np.unique(keys)) == 2500
    assert np.bincount((keys >> np.uint64(61)).astype(np.int64)).min() > 250

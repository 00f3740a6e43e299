"""Resolving duplicates by bucket equals resolving them in one bucket, and leaves no files in the artifact."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tasks.core.artifact import Artifact
from tasks.stages.consolidate.aligned_inputs import AlignedInputs
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.resolve import CAPTURE, older_captures, pairs_by_bucket, resolve
from tasks.stages.dedup import DedupConfig
from tests.conftest import run_stage_in
from tests.tasks.stages.consolidate.test_stage import CONSOLIDATE
from tests.tasks.stages.dedup.made import corpus, rows_of
from tests.tasks.stages.dedup.test_buckets import DEDUP, mixed
from tests.tasks.stages.dedup.test_stage import reopened

CONFIG = ConsolidateConfig(filters=("gopher_quality",))


def prepared(folder: Path, per_bucket: int = 1_000_000) -> dict[str, Artifact]:
    """A corpus in which every fourth document fails a filter, many of them keepers."""
    rows = [{**row, "poor": number % 4 == 0} for number, row in enumerate(mixed(6))]
    inputs = corpus(folder, rows, 3)
    duplicates = run_stage_in(folder, DEDUP, DedupConfig(records_per_bucket=per_bucket), inputs, kind="duplicates")
    return {**reopened(folder), "duplicates": duplicates}


def stays(artifact: Artifact) -> set[str]:
    return {row["id"] for row in rows_of(artifact, "kept/")}


def test_many_buckets_keep_the_same_documents_as_one(tmp_path: Path) -> None:
    many, one = prepared(tmp_path / "many", 100), prepared(tmp_path / "one")
    assert len(many["duplicates"].files("pairs/")) > 3
    assert len(one["duplicates"].files("pairs/")) == 1
    made = [run_stage_in(tmp_path / name, CONSOLIDATE, CONFIG, held) for name, held in (("many", many), ("one", one))]
    assert made[0].record.content == made[1].record.content
    assert made[0].record.metrics["promoted"] > 3
    assert not made[0].files("survivors") + made[0].files("resolved")


def test_resolving_in_one_process_agrees_with_the_passes(tmp_path: Path) -> None:
    inputs = prepared(tmp_path, 100)
    aligned = AlignedInputs(
        inputs["extracted"], inputs["attributes"], inputs["duplicates"], inputs["extracted"].store, ""
    )
    copies = pa.concat_tables(resolve(CONFIG, aligned).values()).to_pylist()
    rejected = rows_of(run_stage_in(tmp_path, CONSOLIDATE, CONFIG, inputs), "rejected/")
    dropped = {row["id"]: (row["duplicate_of"], row["reason"]) for row in rejected if "duplicate_" in row["reason"]}
    assert {row["id"]: (row["duplicate_of"], f"duplicate_{row['kind']}") for row in copies} == dropped
    assert len(dropped) > 10


def test_files_have_the_numbers_of_their_names_also_from_100_000_on() -> None:
    count = 100_002
    names = sorted(f"earlier-{number:05d}" for number in range(count))
    files = sorted(f"pairs/{number:05d}-of-{count}.parquet" for number in range(count))
    duplicates = SimpleNamespace(names=lambda folder: names, files=lambda folder: files)
    inputs: Any = SimpleNamespace(duplicates=duplicates, names=lambda: ["part-00000-of-00001"])
    numbered = AlignedInputs.numbered(inputs)
    assert [(part.number, part.name) for part in numbered[99_999:]] == [
        (99_999, "earlier-99999"),
        (100_000, "earlier-100000"),
        (100_001, "earlier-100001"),
        (100_002, "part-00000-of-00001"),
    ]
    paths = pairs_by_bucket(inputs)
    assert sorted(paths) == files
    assert paths[10_001] == f"pairs/10001-of-{count}.parquet"


def test_a_stage_resumes_at_the_bucket_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run_stage_in(tmp_path / "whole", CONSOLIDATE, CONFIG, prepared(tmp_path / "whole", 100))
    inputs = prepared(tmp_path / "stopped", 100)
    with monkeypatch.context() as broken:
        broken.setattr("tasks.stages.consolidate.resolve.copies_of", lambda *_: json.loads("stopped here"))
        with pytest.raises(ValueError, match="Expecting value"):
            run_stage_in(tmp_path / "stopped", CONSOLIDATE, CONFIG, inputs)
    assert list((tmp_path / "stopped").rglob("resolved/*.bin"))
    monkeypatch.setattr("tasks.stages.consolidate.resolve.resolve_clusters", None)
    resumed = run_stage_in(tmp_path / "stopped", CONSOLIDATE, CONFIG, inputs)
    assert resumed.record.content == whole.record.content


Captured = tuple[int, int, int, int, bool]
"""A capture: number of its page, its own one, that of its text, its time, and whether an earlier version has it."""


@pytest.mark.parametrize(
    ("captured", "dropped"),
    [
        ([], {}),
        ([(1, 10, 10, 5, False)], {}),
        ([(1, 3, 3, 5, False), (2, 20, 20, 7, False), (1, 4, 4, 6, False), (2, 21, 21, 4, False)], {3: 4, 21: 20}),
        ([(1, 12, 12, 6, False), (1, 10, 10, 5, False), (1, 11, 11, 6, False)], {10: 11, 12: 11}),
        ([(1, 10, 10, 5, True), (1, 11, 10, 6, False), (1, 12, 12, 4, False)], {12: 10}),
        ([(1, 10, 10, 5, False), (1, 10, 10, 6, False)], {}),
    ],
    ids=["none", "one", "the newest", "of equal times the smallest id", "a published text", "the same bytes"],
)
def test_of_each_page_one_capture_is_kept(captured: list[Captured], dropped: dict[int, int]) -> None:
    captures = np.zeros(len(captured), CAPTURE)
    for row, (page, number, text, fetched, earlier) in enumerate(captured):
        captures[row] = (page, number, (0, number), (0, text), fetched, earlier)
    found = older_captures(captures)
    assert dict(zip(found["id"][:, 1].tolist(), found["keeper"][:, 1].tolist(), strict=True)) == dropped
    assert found["key"].tolist() == found["id"][:, 1].tolist()

"""Contract of tasks.formats.dedup.exchange: a range has all records of its keys, read in place or after a merge."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactId
from tasks.core.engine import Engine
from tasks.core.merges import range_merge
from tasks.core.merges.range_merge import Source
from tasks.core.stage import Output
from tasks.core.store import Store
from tasks.formats.dedup import exchange as module
from tasks.formats.dedup import sorted_runs
from tasks.formats.dedup.document_ids import HALVES
from tasks.formats.dedup.exchange import Exchange, exchange, exchange_by_part, runs_of

RECORD = np.dtype([("key", "<u8"), ("id", HALVES), ("run", "<u2")])
RUNS, PARTS = 40, 70


def written(folder: Path | str, keys: list[NDArray[np.uint64]]) -> tuple[Output, list[Source], NDArray[np.void]]:
    """Writes a run of each array of keys; returns the runs, and all records."""
    output, tables = Output(Store(str(folder)), ArtifactId("test/runs", "dev"), "f" * 64), []
    for number, of_run in enumerate(keys):
        records = np.zeros(len(of_run), RECORD)
        records["key"], records["run"] = of_run, number
        records["id"] = np.arange(2 * len(of_run)).reshape(-1, 2)
        tables.append(sorted_runs.by_key(records))
        with output.part(f"run-{number:05d}", conserved=False) as part:
            sorted_runs.write(part, f"runs/{number:05d}.bin", [tables[-1]])
    return output, runs_of(output.committed.values(), "runs", RECORD), np.concatenate(tables, dtype=RECORD)


def of_range(made: Exchange, output: Output, number: int) -> list[bytes]:
    return sorted(record.tobytes() for record in made.records(output.folder, number))


def hashes(count: int) -> list[NDArray[np.uint64]]:
    drawn = np.random.default_rng(3)
    return [drawn.integers(0, 2**64, size, np.uint64) for size in drawn.integers(0, 2 * count, RUNS)]


def row_ids(count: int) -> list[NDArray[np.uint64]]:
    """Half of them are in one part."""
    drawn = np.random.default_rng(4)
    parts = [np.where(drawn.random(count) < 0.5, 7, drawn.integers(0, PARTS, count)) for _ in range(RUNS)]
    return [of_run.astype(np.uint64) * np.uint64(2**32) + np.uint64(run) for run, of_run in enumerate(parts)]


@pytest.mark.parametrize("few", [0, RUNS], ids=["merged", "in place"])
@pytest.mark.parametrize("by_part", [False, True], ids=["buckets", "parts"])
def test_every_record_is_in_its_range_and_only_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int, by_part: bool
) -> None:
    monkeypatch.setattr(range_merge, "_FAN", 3)
    monkeypatch.setattr(module, "_FEW", few)
    output, runs, records = written(tmp_path, row_ids(20) if by_part else hashes(10))
    if by_part:
        made, count = exchange_by_part("parts", RECORD, output, Engine(), runs, 50, PARTS - 30, 30), PARTS
        numbers = (records["key"] >> np.uint64(32)).astype(int)
    else:
        made, count = exchange("buckets", RECORD, output, Engine(), runs, 50, 9), 9
        numbers = np.array([key * 9 >> 64 for key in records["key"].tolist()])
    assert bool(made.merged) == (few == 0)
    assert set(output.committed) == {f"run-{number:05d}" for number in range(RUNS)}
    for number in range(count):
        assert of_range(made, output, number) == sorted(record.tobytes() for record in records[numbers == number])


@pytest.mark.parametrize(("earlier", "new"), [(2_000, 20), (20, 2_000)])
def test_no_run_has_the_records_of_many_parts_if_the_fewer_parts_have_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: int, new: int
) -> None:
    monkeypatch.setattr(range_merge, "_FAN", 3)
    monkeypatch.setattr(module, "_FEW", 0)
    first = earlier if new < earlier else 0
    keys = np.arange(2_000, dtype=np.uint64)
    keys = (keys % np.uint64(20) + np.uint64(first) << np.uint64(32)) + keys
    output, runs, _ = written(tmp_path, np.split(np.random.default_rng(6).permutation(keys), 40))
    made = exchange_by_part("parts", RECORD, output, Engine(), runs, 150, earlier, new)
    assert [len(made.records(output.folder, number)) for number in (first, first + 19)] == [100, 100]
    sizes = output.store.sizes(output.folder.path)
    later = [size for path, size in sizes.items() if "to-parts" in path and path.endswith(".bin") and "-0-" not in path]
    assert len(later) > 20
    assert max(later) < 2 * 150 * RECORD.itemsize


def test_what_a_task_gets_of_merged_runs_does_not_grow_with_them(tmp_path: Path) -> None:
    sizes = []
    for count in (40, 80):
        output, runs, _ = written(tmp_path / str(count), [np.arange(3, dtype=np.uint64)] * count)
        sizes.append(len(pickle.dumps(exchange("buckets", RECORD, output, Engine(), runs, 50, 9))))
    assert sizes[1] <= sizes[0] + 8  # of the folder's name and the number of groups

"""Any division into buckets returns each record of each run once, and no other."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.core.artifact import ArtifactFolder, ArtifactId
from tasks.core.part import Part
from tasks.core.store import Store
from tasks.formats.dedup.sorted_runs import bucket_count, by_key, read_bucket, read_range, write

RECORD = np.dtype([("key", "<u8"), ("value", "u1")])
ADDRESS = ArtifactId("test/runs", "dev")
KEYS = st.integers(0, 2**64 - 1) | st.sampled_from([0, 2**63, 2**64 - 1])


def written(folder: Path, runs: list[list[list[int]]]) -> tuple[ArtifactFolder, list[str]]:
    """Writes runs of blocks of keys; the value of a record is the number of its run."""
    store = Store(str(folder))
    part = Part(store, ADDRESS.path, "part", "attempt")
    for number, blocks in enumerate(runs):
        filled = [by_key(np.array([(key, number) for key in block], RECORD)) for block in blocks]
        assert write(part, f"run/{number}.bin", filled) == sum(map(len, blocks))
    return ArtifactFolder(store, ADDRESS, ADDRESS.path), [f"run/{number}.bin" for number in range(len(runs))]


@given(st.lists(st.lists(st.lists(KEYS, max_size=9), max_size=3), max_size=3), st.integers(1, 7))
def test_every_record_is_in_the_bucket_of_its_key(
    tmp_path_factory: pytest.TempPathFactory, runs: list[list[list[int]]], count: int
) -> None:
    folder, paths = written(tmp_path_factory.mktemp("runs"), runs)
    found = [read_bucket(folder, paths, RECORD, number, count).tolist() for number in range(count)]
    for number, bucket in enumerate(found):
        assert all(key * count >> 64 == number for key, _ in bucket)
    whole = [(key, run) for run, blocks in enumerate(runs) for block in blocks for key in block]
    assert sorted(record for bucket in found for record in bucket) == sorted(whole)


def test_a_range_includes_its_first_key_and_excludes_its_end(tmp_path: Path) -> None:
    folder, paths = written(tmp_path, [[[3, 1, 2, 2], [2]], [[9, 2]]])
    assert read_range(folder, paths, RECORD, 2, 3).tolist() == [(2, 0), (2, 0), (2, 0), (2, 1)]
    assert read_range(folder, paths, RECORD, 4, 9).tolist() == []
    assert read_range(folder, [], RECORD, 0, 1 << 64).tolist() == []


def test_the_number_of_buckets_follows_the_number_of_records() -> None:
    assert [bucket_count(records, 10) for records in (0, 1, 10, 11, 100)] == [1, 1, 1, 2, 10]

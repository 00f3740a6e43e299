"""Contract of tasks.core.merges.range_merge: ranges equal those of one sort after any kill; reads are linear."""

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tasks.core.artifact import Artifact, ArtifactFolder, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.engine import Engine
from tasks.core.merges import range_merge
from tasks.core.merges.range_merge import RangeMerge, Source, merge_ranges, plan_levels, range_begin
from tasks.core.part import PARTS, Part
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tests.s3_server import S3Server

RECORD = np.dtype([("key", "<u8"), ("source", "<u4"), ("row", "<u4")])
Reads = list[int]
"""Bytes of each read of a merge."""


def read(folder: ArtifactFolder, source: Source) -> NDArray[np.void]:
    return np.frombuffer(folder.read(source.path), RECORD)


def write(part: Part, records: NDArray[np.void]) -> None:
    part.write(f"ranges/{part.name}.bin", records.tobytes())


MERGE = RangeMerge("runs", RECORD, read)


def drawn(sizes: Sequence[int]) -> list[NDArray[np.void]]:
    """Sources of these sizes, with keys of which a tenth is one key, in all sources."""
    draw, sources = np.random.default_rng(7), []
    for number, size in enumerate(sizes):
        records = np.empty(size, RECORD)
        records["key"] = np.where(draw.random(size) < 0.1, 2**64 - 1, draw.integers(0, 2**64, size, np.uint64))
        records["source"], records["row"] = number, np.arange(size)
        sources.append(records)
    return sources


def merged(
    root: Path | str, tables: Sequence[NDArray[np.void]], ranges: int, per_range: int, engine: Engine | None = None
) -> Artifact:
    output = Output(Store(str(root)), ArtifactId("test/merged", "dev"), "by-hand")
    for number, table in enumerate(tables):
        if (name := f"source-{number:05d}") not in output.committed:
            with output.part(name, conserved=False) as part:
                part.write(f"{name}.bin", table.tobytes())
    sources = [Source(f"source-{number:05d}.bin", number, len(table)) for number, table in enumerate(tables)]
    names = [f"range-{number:05d}" for number in range(ranges)]
    made = merge_ranges(MERGE, write, output, engine or Engine(), sources, names, per_range)
    assert [record.name for record in made] == names
    return commit(output, "by hand", 1, Config(), [], Report())


def files_below(root: Path) -> set[str]:
    folder = root / "test/merged/dev"
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    counted: Reads = []
    for name in ("read", "read_range"):
        real = getattr(Store, name)

        def count(store: Store, *args: Any, real: Callable[..., bytes] = real) -> bytes:
            data = real(store, *args)
            counted.append(len(data))
            return data

        monkeypatch.setattr(Store, name, count)
    return counted


class Sized(Engine):
    """Measures the pickled bytes of what is sent for each item."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def map(self, fn: Callable[[Any], Any], items: Sequence[Any]) -> Any:
        self.sizes += [len(pickle.dumps((fn, item))) for item in items]
        return super().map(fn, items)


@pytest.mark.parametrize(
    ("sizes", "ranges", "per_range", "fan"),
    [
        ([5, 0, 7], 1, 100, 32),
        ([], 1, 100, 32),
        ([30] * 40, 12, 100, 32),
        ([30] * 40, 12, 100, 2),
        ([1, 0, 900, *[17] * 100, 0, 400], 29, 100, 3),
        ([2_000], 20, 100, 3),
        ([1_000, 1_000], 20, 100, 2),
    ],
)
def test_ranges_are_those_of_one_stable_sort_and_no_run_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int], ranges: int, per_range: int, fan: int
) -> None:
    monkeypatch.setattr(range_merge, "_FAN", fan)
    tables = drawn(sizes)
    artifact = merged(tmp_path, tables, ranges, per_range)
    records = np.concatenate([*tables, np.empty(0, RECORD)])
    records = records[np.argsort(records["key"], kind="stable")]
    keys = records["key"].tolist()
    for number in range(ranges):
        first, end = (sum(key < range_begin(edge, ranges) for key in keys) for edge in (number, number + 1))
        assert artifact.read(f"ranges/range-{number:05d}.bin") == records[first:end].tobytes()
    assert files_below(tmp_path) == {*artifact.files(), *artifact.record_paths}
    assert {path.partition("-")[0] for path in artifact.files()} <= {"ranges/range", "source"}


def test_a_merge_killed_at_any_commit_ends_with_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_merge, "_FAN", 3)
    tables = drawn([30] * 40)
    wanted = merged(tmp_path / "whole", tables, 12, 100)
    real, kills, left = Store.publish, 0, 0

    def publish_or_die(store: Store, path: str, data: bytes) -> None:
        nonlocal left
        left -= f"/{PARTS}/" in path
        if left < 0:  # the files of the part are written, its record is not
            raise KeyboardInterrupt
        real(store, path, data)

    monkeypatch.setattr(Store, "publish", publish_or_die)
    made = None
    while made is None and kills < 100:
        left = 2
        try:
            made = merged(tmp_path / "killed", tables, 12, 100)
        except KeyboardInterrupt:
            kills += 1
    assert made
    assert kills > 20
    assert made.record.content == wanted.record.content
    assert files_below(tmp_path / "killed") == files_below(tmp_path / "whole")


def test_a_run_of_another_plan_has_another_name() -> None:
    plans = [(40, 100, 1 << 64, 1), (40, 100, 1 << 64, 2), (40, 100, 100, 1), (40, 101, 1 << 64, 1), (41, 100, 100, 1)]
    assert len({plan_levels("runs", *plan).name(0, 0, 0) for plan in plans}) == len(plans)


def test_ranges_on_an_object_store_have_the_same_bytes(s3: S3Server, tmp_path: Path) -> None:
    tables = drawn([30] * 12)
    remote, local = (merged(root, tables, 4, 100) for root in (f"s3://sluice/{tmp_path.name}", tmp_path))
    assert remote.record.content == local.record.content


def test_bytes_and_reads_are_linear_in_the_parts_and_tasks_are_of_one_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: Reads
) -> None:
    monkeypatch.setattr(range_merge, "_FAN", 8)
    found = []
    for parts in (32, 256):
        tables, engine = drawn([25] * parts), Sized()
        reads.clear()
        merged(tmp_path / str(parts), tables, parts // 4, 100, engine)
        found.append((sum(reads), len(reads), max(engine.sizes)))
    few, many = found
    assert (
        many[0] < 8 * few[0] * 1.6
    )  # eight times the parts take one level more: records are read three times, not twice
    assert many[1] < 8 * few[1] * 2
    assert many[2] < few[2] + 100

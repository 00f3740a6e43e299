"""Contract of the sums of a corpus: the same for any number of parts, and no process reads the tables of all parts."""

from pathlib import Path

import pytest

from tasks.core.artifact import Artifact, ArtifactFolder
from tasks.stages.consolidate import sums
from tests.tasks.stages.consolidate.test_stage import consolidate, funnel_corpus

SUMS = ("funnel.parquet", "hosts.parquet", "language_pairs.parquet", "audit.html", "duplicates.json", "duplicates.html")


def made(folder: Path, parts: int) -> Artifact:
    rows, refused = funnel_corpus()
    rows = [{**row, "host": f"h{number % 5}.example.org"} for number, row in enumerate(rows)]
    return consolidate(folder, rows, rejected=refused, parts=parts)


def test_sums_in_levels_have_the_bytes_of_a_single_sum_and_read_the_tables_of_a_group_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = made(tmp_path / "whole", 6)
    opened: list[int] = []
    read = sums._local

    def counted(folder: ArtifactFolder, paths: list[str]) -> list[str]:
        opened.append(len(paths))
        return read(folder, paths)

    monkeypatch.setattr(sums, "_local", counted)
    monkeypatch.setattr(sums, "FAN", 2)
    in_levels = made(tmp_path / "levels", 6)
    assert max(opened) <= 2 * len(sums.Tables._fields)
    assert {path: in_levels.read(path) for path in SUMS} == {path: whole.read(path) for path in SUMS}
    assert in_levels.record.content == whole.record.content
    assert not [path for path in in_levels.files() if "sums-" in path]

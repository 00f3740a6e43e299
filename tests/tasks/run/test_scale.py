"""The plan of a corpus: units are those of benchmarks, needs grow with pages, the first stage that fails is named."""

import functools
import hashlib
import json
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tasks.stages.extract.identity import IDENTITY, excluded_rows

from tasks.core.artifact import ArtifactRecord, FileEntry, PartRecord
from tasks.formats.documents.document import document_id
from tasks.run import shell
from tasks.run.scale.plan import NOT_MEASURED, Row, plan_corpus
from tasks.run.scale.units import COUNTED, COUNTED_ON_S3, LISTED, UNITS, Unit, unit

ROOT = Path(__file__).parents[3]
PARTS = 1000


def found(result: Any, path: tuple[str | int, ...]) -> float:
    return float(functools.reduce(lambda value, key: value[key], path, result))


@pytest.mark.parametrize("one", [one for one in UNITS.values() if one.path], ids=lambda one: one.what)
def test_a_unit_is_that_of_the_last_result_of_its_benchmark(one: Unit) -> None:
    result = json.loads((ROOT / f"benchmarks/results/{one.source}.json").read_text())
    figure = found(result, one.path) * one.factor / (found(result, one.per) if one.per else 1)
    assert one.value == pytest.approx(figure, rel=0.005)


def test_every_other_unit_names_the_file_that_measures_it() -> None:
    assert {one.source for one in UNITS.values() if not one.path} == {COUNTED, COUNTED_ON_S3, LISTED}
    assert all((ROOT / source).is_file() for source in (COUNTED, COUNTED_ON_S3))
    assert f"({unit('listed_memory') / 1e3:g} kB of memory per listed URL)" in (ROOT / LISTED).read_text()


def peak(made: Callable[[], object]) -> tuple[int, int]:
    """Returns the most bytes that Python allocates during a call, and those that its result keeps."""
    tracemalloc.start()
    try:
        kept = made()
        now, most = tracemalloc.get_traced_memory()
        del kept
        return most, now
    finally:
        tracemalloc.stop()


def record(files: int) -> ArtifactRecord:
    def entry(part: str, number: int) -> FileEntry:
        sha = hashlib.sha256(f"{part} {number}".encode()).hexdigest()
        return FileEntry(path=f"folder{number}/{part}.parquet", bytes=1_234_567, sha256=sha, rows=290)

    names = [f"part-{number:05d}-of-{PARTS:05d}" for number in range(PARTS)]
    parts = tuple(
        PartRecord(
            name=name,
            rows_in=300,
            rows_out=290,
            rejected={"too_short": 10},
            files=tuple(entry(name, number) for number in range(files)),
            metrics={"texts": 290.0},
        )
        for name in names
    )
    now = datetime.now(UTC)
    known = dict.fromkeys(("artifact", "stage", "member", "fingerprint", "content", "note"), "")
    sums = dict.fromkeys(("stage_version", "rows_in", "rows_out", "bytes"), 0)
    empty: dict[str, Any] = {name: {} for name in ("config", "code", "rejected", "metrics", "host")}
    return ArtifactRecord(**known, **sums, **empty, inputs=(), parts=parts, members=(), started=now, finished=now)


@pytest.mark.parametrize("files", [1, 8])
def test_records_of_parts_take_the_planned_memory_and_bytes(files: int) -> None:
    committed, _ = peak(lambda: record(files).model_dump_json(indent=1).encode())
    data = record(files).model_dump_json(indent=1).encode()
    _, held = peak(lambda: ArtifactRecord.model_validate_json(data))
    for name, measured in (("committed", committed), ("read", held), ("record", len(data))):
        planned = unit(f"{name}_part") + files * unit(f"{name}_file")
        assert measured / PARTS == pytest.approx(planned, rel=0.1), name


def test_identities_and_candidates_take_the_planned_memory() -> None:
    rows, per_part = 100_000, 1000
    ids = [document_id(f"https://a.example/{number}", "sha1:").encode() for number in range(rows)]
    parts = [
        np.array([(ids[row], row + 1, False) for row in range(first, first + per_part)], IDENTITY)
        for first in range(0, rows, per_part)
    ]
    most, _ = peak(lambda: excluded_rows([*parts]))
    held = IDENTITY.itemsize  # the arrays of the parts, which were there before
    assert most / rows + held == pytest.approx(unit("identity_memory"), rel=0.1)
    _, candidates = peak(lambda: [((1 << 62) + row, ids[row].decode(), "", 3000 + row) for row in range(rows)])
    assert candidates / rows == pytest.approx(unit("candidate_memory"), rel=0.1)


def stages(pages: float, **options: float) -> dict[str, Row]:
    return {row.need.stage: row for row in plan_corpus(pages, **options).rows}


def test_twice_the_pages_cost_twice_the_work_except_where_parts_meet_buckets() -> None:
    once, twice = stages(4e7, part_mb=64), stages(8e7, part_mb=64)
    for name, row in once.items():
        more = twice[name]
        if row.need.cpu_s is not None:
            assert more.need.cpu_s == pytest.approx(2 * row.need.cpu_s, rel=0.01), name
        if name not in ("dedup", "consolidate", "update"):
            for figure in ("put", "get", "head", "read", "written"):
                before, after = (getattr(one.need.work, figure) for one in (row, more))
                assert (before is None) == (after is None), (name, figure)
                # The merge of keys has as many levels at both sizes.
                assert before is None or after == pytest.approx(2 * before, rel=0.03, abs=2), (name, figure)
        # With twice the partitions, the process of one has as much as before.
        for cause, memory in row.need.own.items() if name not in ("fetch", "update") else ():
            assert more.need.own[cause] == pytest.approx(2 * memory, rel=0.02), (name, cause)
    for name in ("dedup", "consolidate"):
        before, after = (rows[name].need.work.head for rows in (once, twice))
        assert before
        assert after
        assert after > 3 * before, name


def test_a_corpus_that_does_not_fit_names_the_stage_the_cause_and_the_limit() -> None:
    fits, fails = plan_corpus(1e8), plan_corpus(1e10)
    assert fits.first is None
    assert "every stage fits into 64 GB a process" in fits.text()
    assert fails.first
    assert fails.first.need.stage == "extract"
    for words in ("extract does not fit", "the limit is 64 GB", "2.4 TB are identities of all pages"):
        assert words in fails.text()
    most = 1e8 * 64e9 / stages(1e8)["extract"].own
    assert most < 64e9 / unit("identity_memory")
    assert plan_corpus(0.99 * most).first is None
    failed = plan_corpus(1.01 * most).first
    assert failed
    assert failed.need.stage == "extract"


def test_parts_grow_until_their_records_fit_and_a_given_size_is_used() -> None:
    chosen = plan_corpus(1e10).chosen
    assert chosen
    small, large = (stages(1e10, part_mb=size / 1e6) for size in (chosen / 2, chosen))
    records = "records of parts"
    assert max(row.need.own.get(records, 0) for row in large.values()) <= 64e9
    assert max(row.need.own.get(records, 0) for row in small.values()) > 64e9
    assert plan_corpus(1e6, part_mb=640).corpus.part_bytes == 640e6
    assert plan_corpus(1e6).corpus.part_bytes == 64e6


def test_the_command_prints_text_and_json_and_says_what_is_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.main(["plan", "--pages", "1e6", "--workers", "8"]) == 0
    text = capsys.readouterr().out
    assert "1 M pages of 147 kB of HTML" in text
    assert NOT_MEASURED in next(line for line in text.splitlines() if line.startswith("pack "))
    assert shell.main(["plan", "--pages", "1e6", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert next(one for one in answer["stages"] if one["stage"] == "pack")["worker_hours"] is None
    assert answer["units"]["dedup_cpu"]["source"] == "dedup_scale"


@pytest.mark.parametrize("pages", ["1e6", "1e8", "1e10"])
def test_the_documentation_shows_what_the_command_prints(pages: str) -> None:
    shown = f"```\n$ sluice plan --pages {pages}\n{plan_corpus(float(pages)).text()}\n```"
    assert shown in (ROOT / "docs/scale.md").read_text(), "copy the output of the command into docs/scale.md"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "nothing to plan"),
        (["--pages", "0"], "--pages is 0"),
        (["--pages", "1e6", "--tuned"], "--tuned is not an option of this plan"),
        (["--recipe", "smoke", "--part-mb", "3"], "--part-mb is not an option of this plan"),
    ],
)
def test_options_of_the_other_plan_are_refused(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell.main(["plan", *options]) == 2
    assert words in capsys.readouterr().err

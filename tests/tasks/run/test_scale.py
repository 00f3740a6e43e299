"""The plan of a corpus: units are those of benchmarks, needs grow with pages, the first stage that fails is named."""

import functools
import gc
import hashlib
import json
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tasks.core import manifest as manifests
from tasks.core.artifact import Artifact, ArtifactId, FileEntry, PartRecord
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.engine import Engine
from tasks.core.manifest import Parts
from tasks.core.merges import range_merge
from tasks.core.merges.row_marks import MARK
from tasks.core.part import PartSpec, part_names
from tasks.core.stage import Inputs, Output, Report
from tasks.core.store import Store
from tasks.formats.dedup import sorted_runs
from tasks.formats.dedup.dedup_index import TEXT
from tasks.formats.dedup.exchange import exchange, runs_of
from tasks.formats.warc.archive import MANIFEST, MANIFEST_SCHEMA
from tasks.run import shell
from tasks.run.scale import stages as scale_stages
from tasks.run.scale.plan import NOT_MEASURED, Row, plan_corpus
from tasks.run.scale.stages import Corpus, first_pass
from tasks.run.scale.units import COUNTED, COUNTED_ON_S3, LISTED, UNITS, Unit, unit
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.first_pass import exclusions
from tasks.stages.extract.first_pass.exclusions import PartInput, exclude_rows
from tasks.stages.extract.first_pass.identity import Identity
from tasks.stages.extract.partitioning import arrange
from tasks.stages.extract.sources import InputUnit, input_units
from tasks.stages.tokens import TokenizerConfig
from tasks.stages.tokens.sample import _CANDIDATE, _Candidates

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
    """Returns the most bytes that Python allocates during a call, and those that its result keeps.

    Cycles are collected before and not during the call, so that the peak does not depend on when they would be.
    """
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        kept = made()
        now, most = tracemalloc.get_traced_memory()
        del kept
        return most, now
    finally:
        tracemalloc.stop()
        gc.enable()


def records(files: int) -> list[PartRecord]:
    def entry(part: str, number: int) -> FileEntry:
        sha = hashlib.sha256(f"{part} {number}".encode()).hexdigest()
        return FileEntry(path=f"folder{number}/{part}.parquet", bytes=1_234_567, sha256=sha, rows=290)

    return [
        PartRecord(
            name=name,
            rows_in=300,
            rows_out=290,
            rejected={"too_short": 10},
            files=tuple(entry(name, number) for number in range(files)),
            metrics={"texts": 290.0},
        )
        for name in part_names(PARTS)
    ]


@pytest.mark.parametrize("files", [1, 8])
def test_records_of_parts_take_the_planned_memory_and_bytes(tmp_path: Path, files: int) -> None:
    store = Store(str(tmp_path))
    _, committed = peak(lambda: records(files))
    listed = manifests.write(store, "demo/words/a", records(files))
    parts = Parts(store, "demo/words/a", (listed,))
    _, paths = peak(lambda: sorted(parts.paths(("folder0/",))))
    (group,) = parts.groups()
    assert paths / PARTS == pytest.approx(unit("listed_file"), rel=0.1)
    measured = {"committed": committed, "group": group.table.nbytes, "record": len(listed.model_dump_json(indent=1))}
    for name, size in measured.items():
        below = unit("record_folder" if name == "record" else f"{name}_file")
        assert size / PARTS == pytest.approx(unit(f"{name}_part") + files * below, rel=0.1), name


def manifest(store: Store, files: int, records: int) -> Artifact:
    """Commits the `warc` artifact of some WARC files, which are not there; each is as large as a part."""
    output = Output(store, ArtifactId("crawl/web/warc", "2026-11"), "1" * 64)
    rows = []
    for number in range(files):
        segment, name = "crawl/web/segment/p017", f"part-{number:05d}-of-{files:05d}"
        paths = {"path": f"{segment}/2026-11/warc/{name}.warc.gz", "index": f"{segment}/2026-11/index/{name}.cdxj"}
        sha = hashlib.sha256(name.encode()).hexdigest()
        rows.append({"segment": f"{segment}@2026-11", "sha256": sha, "bytes": 16_000_000, "records": records, **paths})
    with output.part("warc", conserved=False) as part:
        part.write_table(MANIFEST, pa.Table.from_pylist(rows, MANIFEST_SCHEMA))
    return commit(output, "tasks.stages.crawl.publish", 1, Config(), (), Report())


class FirstPass:
    """The first pass of extract over WARC files whose indexes are drawn: each page is captured `copies` times.

    Args:
        store: an empty store.
        files: WARC files, each a part and a group.
        rows: captures of a file.
        copies: captures of each page, over all files.
    """

    def __init__(self, store: Store, files: int, rows: int, copies: int, monkeypatch: pytest.MonkeyPatch) -> None:
        pages = files * rows // copies

        def drawn(unit: InputUnit, *_: object) -> Iterator[Identity]:
            number = int(unit.file.path.rpartition("/part-")[2].partition("-")[0])
            for row in range(number * rows, (number + 1) * rows):
                page = row % pages
                yield ((page << 64) // pages, page.to_bytes(16, "big"), page + 1, False)

        monkeypatch.setattr(exclusions, "unit_identities", drawn)
        monkeypatch.setattr(exclusions, "_GROUP_WEIGHT", 1)
        self.warc = manifest(store, files, rows)
        self.output = Output(store, ArtifactId("crawl/web/extracted", "2026-11"), "2" * 64)
        self.units: list[InputUnit] = []
        self.tasks = 0

    def list_units(self) -> list[InputUnit]:
        self.units = input_units(ExtractConfig(), Inputs({"warc": self.warc}), self.output.address)
        return self.units

    def find(self) -> tuple[object, ...]:
        """Returns what the process of the stage holds after the pass."""
        parts = arrange(self.units, ExtractConfig())
        inputs = [PartInput(ExtractConfig(), tuple(units)) for units in parts]
        specs = list(map(PartSpec, part_names(len(parts)), inputs))
        engine = CountingEngine()
        found = exclude_rows(specs, self.units, self.output, engine)
        self.tasks = engine.tasks
        return parts, specs, found, self.output.committed


class CountingEngine(Engine):
    """Runs tasks in this process, and counts them."""

    tasks = 0

    def map(self, fn: Callable[[Any], Any], items: Any) -> Iterator[tuple[int, Any]]:
        self.tasks += len(items)
        yield from super().map(fn, items)


def test_extract_takes_the_planned_memory_for_its_files_and_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peaks = {}
    for files in (8, 200, 600):  # the first run imports modules
        run = FirstPass(Store(str(tmp_path / f"{files}")), files, 2, 2, monkeypatch)
        listed, _ = peak(run.list_units)
        peaks[files], _ = peak(run.find)
    assert listed / files == pytest.approx(unit("manifest_file"), rel=0.1)
    assert len(arrange(run.units, ExtractConfig())) == files
    records = unit("committed_part") + unit("committed_file")
    # The difference leaves out the buffers of threads, which do not grow with the parts.
    assert (peaks[600] - peaks[200]) / 400 == pytest.approx(unit("first_pass_part") + records, rel=0.1)


def test_a_range_of_identities_takes_the_planned_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = FirstPass(Store(str(tmp_path)), 8, 5000, 1, monkeypatch)
    run.list_units()
    most, _ = peak(run.find)
    assert run.tasks == 8 + 1
    assert most / (8 * 5000) == pytest.approx(unit("identity_memory"), rel=0.1)


def test_the_first_pass_of_extract_costs_the_planned_tasks_requests_and_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, rows = 9, 1000
    for module, prefix in ((exclusions, "_RANGE_ROWS"), (scale_stages, "_RANGE")):
        assert getattr(module, prefix) == 1 << 22
        monkeypatch.setattr(module, prefix, rows)
    for module in (range_merge, scale_stages):
        assert module._FAN == 32
        monkeypatch.setattr(module, "_FAN", 3)
    for name in ("_GROUP_WEIGHT", "_FILE_WEIGHT", "_INDEXED_WEIGHT"):
        assert getattr(exclusions, name) == getattr(scale_stages, name)
    monkeypatch.setattr(scale_stages, "_GROUP_WEIGHT", 1)
    assert MARK.itemsize == scale_stages._EXCLUSION_BYTES

    run = FirstPass(store := Store(str(tmp_path)), files, rows, 100, monkeypatch)
    run.list_units()
    got: list[int] = []
    for name in ("read", "read_range"):
        count_reads(name, got, monkeypatch)
    found = run.find()[2]
    assert [len(spec.payload.excluded.read()) for spec in found] == [rows] * files  # type: ignore[attr-defined]
    written = store.sizes("crawl/web/extracted/2026-11")
    planned = first_pass(Corpus(files * rows, 1, 1, 1, 1, 1))
    assert run.tasks == planned.parts
    assert len(written) == planned.put
    assert len(got) == pytest.approx(planned.get, rel=0.05)
    assert sum(got) == pytest.approx(planned.read, rel=0.05)
    in_files = sum(size for path, size in written.items() if path.endswith(".bin"))
    assert in_files == pytest.approx(planned.written, rel=0.05)


@pytest.mark.parametrize(("runs", "ranges"), [(60, 40), (60, 400), (60, 3), (1, 6)])
def test_an_exchange_of_runs_costs_the_planned_tasks_requests_and_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: int, ranges: int
) -> None:
    monkeypatch.setattr(range_merge, "_FAN", 4)
    output = Output(Store(f"memory://{tmp_path.name}"), ArtifactId("test/runs", "dev"), "f" * 64)
    drawn, of_run, per_range = np.random.default_rng(1), 300, 500
    for number in range(runs):
        records = np.zeros(of_run, TEXT)
        records["key"] = drawn.integers(0, 2**64, of_run, np.uint64)
        with output.part(f"run-{number:05d}", conserved=False) as part:
            sorted_runs.write(part, f"runs/{number:05d}.bin", [sorted_runs.by_key(records)])
    got: list[int] = []
    for name in ("read", "read_range"):
        count_reads(name, got, monkeypatch)
    tables = runs_of(output.committed.values(), "runs", TEXT)
    made = exchange("buckets", TEXT, output, Engine(), tables, per_range, ranges)
    assert sum(len(made.records(output.folder, number)) for number in range(ranges)) == runs * of_run
    sizes = output.store.sizes(output.address.path)
    merged = {path: size for path, size in sizes.items() if "to-buckets" in path}
    planned = scale_stages._exchange(scale_stages._Records(runs * of_run, TEXT.itemsize, per_range), runs, ranges)
    assert len(merged) == 2 * planned.parts == planned.put
    assert len(got) == pytest.approx(planned.get, rel=0.1)
    in_files = sum(size for path, size in merged.items() if path.endswith(".bin"))
    assert in_files == pytest.approx(planned.written, rel=0.1)
    assert sum(got) == pytest.approx(planned.read, rel=0.15)


def count_reads(name: str, got: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the store note the bytes of each read."""
    read = getattr(Store, name)

    def noted(*args: Any) -> bytes:
        data: bytes = read(*args)
        got.append(len(data))
        return data

    monkeypatch.setattr(Store, name, noted)


def test_the_sample_takes_the_planned_memory_however_many_documents_there_are() -> None:
    in_sample, in_part = 10_000, 2_500
    config = TokenizerConfig(sample_bytes=100 * in_sample)

    def drawn(parts: int) -> _Candidates:
        found = _Candidates(config)
        for part in range(parts):
            rows = np.zeros(in_part, _CANDIDATE)
            rows["rank"], rows["bytes"] = np.random.default_rng(part).integers(0, 2**64, in_part, np.uint64), 100
            found.add(part, {"": rows}, {"": 100 * in_part})
        assert len(found.of("")) == in_sample
        return found

    np.random.default_rng(0)  # the first one imports modules
    peaks = [peak(functools.partial(drawn, parts))[0] / in_sample for parts in (16, 32, 64, 128)]
    assert max(peaks) == pytest.approx(unit("sampled_memory"), rel=0.1), peaks


def test_of_equal_ids_those_of_the_first_part_are_in_the_sample_whatever_arrives_first() -> None:
    rows = np.zeros(3, _CANDIDATE)
    rows["bytes"] = 100

    def drawn(parts: list[int]) -> list[int]:
        found = _Candidates(TokenizerConfig(sample_bytes=400))
        for part in parts:
            found.add(part, {"": rows.copy()}, {"": 300})
        return [int(part) for part in found.of("")["part"]]

    assert drawn([0, 1]) == drawn([1, 0]) == [0, 0, 0, 1]


def stages(pages: float, **options: float) -> dict[str, Row]:
    return {row.need.stage: row for row in plan_corpus(pages, **options).rows}


def test_twice_the_pages_cost_twice_the_work() -> None:
    once, twice = stages(4e7, part_mb=64), stages(8e7, part_mb=64)
    for name, row in once.items():
        more = twice[name]
        if row.need.cpu_s is not None:
            assert more.need.cpu_s == pytest.approx(2 * row.need.cpu_s, rel=0.01), name
        # The parts that the sample of the tokenizer is read from do not grow.
        exchanges = name in ("dedup", "consolidate")  # which may have a level more, and other numbers of runs
        if name not in ("update", "tokenizer"):
            tolerance = 0.25 if exchanges else 0.03
            for figure in ("put", "get", "head", "read", "written"):
                before, after = (getattr(one.need.work, figure) for one in (row, more))
                assert (before is None) == (after is None), (name, figure)
                # The merge of keys has as many levels at both sizes.
                assert before is None or after == pytest.approx(2 * before, rel=tolerance, abs=2), (name, figure)
        # With twice the partitions, the process of one has as much as before.
        for cause, memory in row.need.own.items() if name not in ("fetch", "update", "tokenizer") else ():
            assert more.need.own[cause] == pytest.approx(2 * memory, rel=0.06 if exchanges else 0.02), (name, cause)
    sample = "documents of the sample"
    assert once["tokenizer"].need.own[sample] == twice["tokenizer"].need.own[sample]


def test_a_corpus_that_does_not_fit_names_the_stage_the_cause_and_the_limit() -> None:
    fits = plan_corpus(1e10)
    assert fits.first is None
    assert "every stage fits into 64 GB a process" in fits.text()
    largest = max(fits.rows, key=lambda row: row.own)
    cause = max(largest.need.own, key=lambda name: largest.need.own[name])
    limit = 0.99 * largest.own / 1e9
    fails = plan_corpus(1e10, part_mb=fits.corpus.part_bytes / 1e6, memory_gb=limit)
    assert fails.first
    assert fails.first.need.stage == largest.need.stage
    for words in (f"{largest.need.stage} does not fit", f"the limit is {limit:.3g} GB", f"GB are {cause}"):
        assert words in fails.text()
    assert "9.9 G pages would fit" in fails.text()


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

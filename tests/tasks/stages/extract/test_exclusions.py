"""Contract of extract.first_pass.exclusions: any division into groups and ranges, and any kill, gives the same rows."""

import contextlib
import gzip
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tasks.core.artifact import ArtifactId
from tasks.core.engine import Engine
from tasks.core.merges import range_merge
from tasks.core.part import PARTS, Part, PartSpec, part_names
from tasks.core.stage import Inputs, Output
from tasks.core.store import Store
from tasks.stages.extract import stage
from tasks.stages.extract.config import ExtractConfig, FileSource
from tasks.stages.extract.files import read_unit
from tasks.stages.extract.first_pass import exclusions
from tasks.stages.extract.first_pass.exclusions import EXCLUDED, PartInput, exclude_rows
from tasks.stages.extract.row import InputRow
from tasks.stages.extract.sources import InputUnit, find_files
from tests.conftest import run_stage_in
from tests.tasks.stages.extract.conftest import conversion, page, record

MODULE = "tasks.stages.extract.stage"
CONFIG = ExtractConfig(min_chars=1)


def captures(draw: random.Random, count: int) -> Iterator[bytes]:
    """Captures of few pages with few contents; some are refused, and some pages rendered by a browser."""
    for _ in range(count):
        url, body = f"http://{draw.randrange(30)}.example/", page(f"Content {draw.randrange(3)}. " * 20)
        if draw.random() < 0.1:
            yield conversion(body, url=url)
        else:
            yield record(url, body, status="404 Gone" if draw.random() < 0.2 else "200 OK")


@pytest.fixture
def source(tmp_path: Path) -> FileSource:
    """WARC files of very different lengths, one without a capture that counts, one with a copy of another file."""
    draw = random.Random(5)
    files = [b"".join(captures(draw, size)) for size in (9, 1, 0, 40, 3, 3, 120, 5, 9, 20)]
    files += [record(status="404 Gone"), files[6]]
    (tmp_path / "in").mkdir()
    for number, data in enumerate(files):
        (tmp_path / "in" / f"{number:02}.warc.gz").write_bytes(data or gzip.compress(b""))
    return FileSource(name="web-archive", kind="warc", path=f"{tmp_path}/in/*.warc.gz")


def specs_of(source: FileSource) -> list[PartSpec]:
    units = [InputUnit(file, source) for file in find_files(source)]
    return [
        PartSpec(name, PartInput(CONFIG, (unit,))) for name, unit in zip(part_names(len(units)), units, strict=True)
    ]


def output_in(folder: Path, name: str = "extracted") -> Output:
    return Output(Store(str(folder)), ArtifactId(f"test/{name}", "dev"), "by-hand")


def expected(parts: Sequence[Sequence[InputRow]]) -> list[list[str]]:
    """The reasons of all rows, from all rows at once."""
    rendered = {(row.source, row.url) for rows in parts for row in rows if row.rendered and not row.refused}
    seen, reasons = set(), []
    for rows in parts:
        reasons.append([])
        for row in rows:
            reason, key = "", (row.url, row.payload_digest)
            if not row.refused:
                if not row.rendered and (row.source, row.url) in rendered:
                    reason = "rendered"
                elif key in seen:
                    reason = "duplicate_capture"
                else:
                    seen.add(key)
            reasons[-1].append(reason)
    return reasons


class Counted(Engine):
    """Counts the tasks, and the pickled bytes of what goes to them and comes back."""

    tasks = sent = received = 0

    def map(self, fn: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        for index, result in super().map(fn, items):
            self.tasks += 1
            self.sent += len(pickle.dumps((fn, items[index])))
            self.received += len(pickle.dumps(result))
            yield index, result


@pytest.mark.parametrize(
    ("group_weight", "range_rows", "fan", "tasks"),
    [
        (1 << 40, 1 << 20, 32, 1),  # one task reads and compares
        (3_500_000, 1 << 20, 32, None),  # one range
        (1, 40, 32, None),
        (3_500_000, 13, 3, None),
        (1, 7, 2, None),
    ],
)
def test_any_groups_and_ranges_exclude_the_same_rows(
    tmp_path: Path,
    source: FileSource,
    monkeypatch: pytest.MonkeyPatch,
    group_weight: int,
    range_rows: int,
    fan: int,
    tasks: int | None,
) -> None:
    monkeypatch.setattr(exclusions, "_GROUP_WEIGHT", group_weight)
    monkeypatch.setattr(exclusions, "_RANGE_ROWS", range_rows)
    monkeypatch.setattr(range_merge, "_FAN", fan)
    specs = specs_of(source)
    units = [unit for spec in specs for unit in spec.payload.units]
    found = exclude_rows(specs, units, output_in(tmp_path), engine := Counted())
    reasons = [[EXCLUDED[reason] for reason in spec.payload.excluded.read()] for spec in found]
    assert reasons == expected([list(read_unit(unit, CONFIG, quick=True)) for unit in units])
    assert sum(map(len, reasons)) > 200
    assert {reason for of_part in reasons for reason in of_part} == set(EXCLUDED)
    assert tasks in (None, engine.tasks)
    assert exclude_rows(specs, units, output_in(tmp_path), done := Counted())
    assert done.tasks == 0, "what is committed is not made again"


def test_what_the_stage_sends_and_gets_does_not_grow_with_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exclusions, "_GROUP_WEIGHT", 1)
    engines = []
    for rows in (2, 200):
        (tmp_path / f"{rows:03}").mkdir()
        for number in range(4):
            data = b"".join(captures(random.Random(number), rows))
            (tmp_path / f"{rows:03}" / f"{number}.warc.gz").write_bytes(data)
        found = FileSource(name="web-archive", kind="warc", path=f"{tmp_path}/{rows:03}/*.warc.gz")
        specs = specs_of(found)
        output = output_in(tmp_path, f"{rows:03}")
        exclude_rows(specs, [unit for spec in specs for unit in spec.payload.units], output, engine := Counted())
        engines.append(engine)
    few, many = engines
    assert few.tasks == many.tasks == 4 + 1
    assert many.sent < few.sent + 40, "numbers have more bytes"
    assert many.received < few.received + 40


def test_a_few_rows_take_one_more_task_and_files_of_one_row_none(tmp_path: Path, source: FileSource) -> None:
    for number in range(8):
        (tmp_path / "in" / f"{number}.txt").write_text(f"Text number {number}.")
    texts = FileSource(name="notes", kind="text", path=f"{tmp_path}/in/*.txt")
    for one, more in ((source, 1), (texts, 0)):
        config, output = CONFIG.model_copy(update={"files": (one,), "parts": 4}), output_in(tmp_path, one.name)
        stage.run(config, Inputs({}), output, engine := Counted())
        assert engine.tasks == len(output.committed) + more


def test_a_run_killed_at_any_commit_ends_with_the_same_bytes(
    tmp_path: Path, source: FileSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CONFIG.model_copy(update={"files": (source,), "parts": 4})
    wanted = run_stage_in(tmp_path / "whole", MODULE, config)
    assert not [path for path in wanted.files() if path.startswith(("identities", "exclusions", "excluded"))]
    monkeypatch.setattr(exclusions, "_GROUP_WEIGHT", 1)
    monkeypatch.setattr(exclusions, "_RANGE_ROWS", 60)
    publish, read, left, killed, opened = Store.publish, exclusions._identities, 0, set[str](), list[str]()

    def publish_or_die(store: Store, path: str, data: bytes) -> None:
        nonlocal left
        left -= f"/{PARTS}/" in path
        if left < 0:  # the files of the part are written, its record is not
            killed.add(path.rpartition("/")[2].partition("-0")[0])
            raise KeyboardInterrupt
        publish(store, path, data)

    def counted(quick: bool, part: Part, group: Any) -> Iterator[Any]:
        opened.append(part.name)
        return read(quick, part, group)

    monkeypatch.setattr(Store, "publish", publish_or_die)
    monkeypatch.setattr(exclusions, "_identities", counted)
    made = None
    for _ in range(50):
        left = 3
        with contextlib.suppress(KeyboardInterrupt):
            made = run_stage_in(tmp_path / "killed", MODULE, config)
            break
    assert made
    assert made.record.content == wanted.record.content
    assert made.record.rejected == wanted.record.rejected
    assert {"identities", "exclusions", "excluded", "part"} <= {name.rpartition("-")[0] or name for name in killed}
    assert len(opened) <= 4 + 2, "only what was not committed is read again"
    folders = [tmp_path / name / wanted.address.path for name in ("whole", "killed")]
    left_files = [{str(path.relative_to(one)) for path in one.rglob("*") if path.is_file()} for one in folders]
    assert left_files[0] == left_files[1]

"""Contract of tasks.stages.extract.partitioning: parts depend on input and settings; pieces of a file give its rows."""

import gzip
import json
import random
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.core.artifact import Artifact
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.formats.documents.external_files import SourceFile
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.extract import partitioning
from tasks.stages.extract.config import ExtractConfig, FileSource
from tasks.stages.extract.files import read_unit
from tasks.stages.extract.partitioning import RUNS, arrange, cut, divide, run_names
from tasks.stages.extract.row import InputRow
from tasks.stages.extract.sources import FilePiece, InputUnit, find_files
from tests.conftest import SCATTERED, run_stage_in
from tests.soak import soak_but
from tests.tasks.stages.extract.test_files import compressed

CONFIG = ExtractConfig(max_payload_bytes=2_000)
MODULE = "tasks.stages.extract.stage"
ENDINGS = ["", ".gz", ".zst", ".bz2"]


def lines(count: int = 400) -> bytes:
    """JSON lines of all lengths, including blank, broken and too long ones."""
    draw = random.Random(count)
    found = []
    for number in range(count):
        row = {"text": f"row {number} " + "word " * draw.randrange(300), "stars": number}
        if number % 3:
            row["url"] = f"https://a.example/{number}"
        found.append(["", "{broken", "x" * 3_000][number % 3] if number % 20 == 9 else json.dumps(row))
    return "\n".join(found).encode()


def source(folder: Path, kind: str, **options: Any) -> FileSource:
    return FileSource(name="src", kind=kind, path=f"{folder}/*", **options)


def whole(found: FileSource) -> list[InputRow]:
    return [row for file in find_files(found) for row in read_unit(InputUnit(file, found), CONFIG)]


def told(rows: list[InputRow]) -> list[tuple[str, str, str, str]]:
    return [(row.url, row.refused, row.payload_digest, row.metadata) for row in rows]


@pytest.fixture(params=ENDINGS)
def packed(request: pytest.FixtureRequest, tmp_path: Path) -> FileSource:
    (tmp_path / f"d.jsonl{request.param}").write_bytes(compressed(lines(), request.param))
    return source(tmp_path, "jsonl")


@pytest.mark.parametrize("size", [1, 500, 7_000, 1 << 18, 1 << 30])
def test_slices_of_json_lines_have_the_rows_of_the_file(packed: FileSource, size: int) -> None:
    (file,) = find_files(packed)
    expected = told(whole(packed))
    pieces = cut(file, "jsonl", size)
    assert pieces[0].start == pieces[0].first == 0
    assert [one.end for one in pieces[:-1]] == [one.start for one in pieces[1:]]
    assert sum(one.weight for one in pieces) == len(lines())
    assert all(one.weight >= size for one in pieces[:-1])
    in_order = [row for one in pieces for row in read_unit(InputUnit(file, packed, one), CONFIG)]
    assert told(in_order) == expected
    some = pieces[:: max(1, len(pieces) // 7)]
    backwards = {one.first: told(list(read_unit(InputUnit(file, packed, one), CONFIG))) for one in reversed(some)}
    assert [row for first in sorted(backwards) for row in backwards[first]] == [
        row for one in some for row in told(list(read_unit(InputUnit(file, packed, one), CONFIG)))
    ]


def test_consecutive_slices_decompress_a_file_once(packed: FileSource, monkeypatch: pytest.MonkeyPatch) -> None:
    (file,) = find_files(packed)
    pieces = cut(file, "jsonl", 20_000)
    opened = []
    open_text = partitioning.open_text
    monkeypatch.setattr(partitioning, "open_text", lambda *how: opened.append(how) or open_text(*how))
    for one in pieces:
        list(read_unit(InputUnit(file, packed, one), CONFIG))
    assert len(opened) == (1 if file.is_packed else len(pieces))
    # Another file replaces it, and an unfinished piece is not continued.
    rows = read_unit(InputUnit(file, packed, pieces[1]), CONFIG)
    next(rows)
    rows.close()
    assert told(list(read_unit(InputUnit(file, packed, pieces[2]), CONFIG)))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("size", [1, 700, 1 << 30])
def test_slices_of_a_json_array_have_the_rows_of_the_file(
    tmp_path: Path, encoding: str, indent: int, size: int
) -> None:
    values = [{"text": f"row {number} [" + "{x}" * (number % 90), "more": [[number], {}]} for number in range(60)]
    (tmp_path / "d.json").write_bytes(json.dumps(values, indent=indent).encode(encoding))
    found = source(tmp_path, "jsonl")
    (file,) = find_files(found)
    pieces = cut(file, "jsonl", size)
    assert len(pieces) in {1: [60], 700: range(5, 40), 1 << 30: [1]}[size]
    assert {one.streamed for one in pieces} == {encoding != "utf-8"}
    rows = [row for one in pieces for row in read_unit(InputUnit(file, found, one), CONFIG)]
    assert told(rows) == told(whole(found))
    assert [row.url for row in rows] == [f"file://src/d.json#{number}" for number in range(60)]
    last = list(read_unit(InputUnit(file, found, pieces[-1]), CONFIG))
    first = list(read_unit(InputUnit(file, found, pieces[0]), CONFIG))
    assert (last[-1].url, first[0].url) == (rows[-1].url, rows[0].url)


@pytest.mark.parametrize("data", [b"", b"\n", b"\n\n\n", b'{"text": "one"}', b'{"text": "one"}\n{"text": "two"}\n'])
def test_files_without_lines_and_unterminated_lines_are_sliced(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "d.jsonl").write_bytes(data)
    found = source(tmp_path, "jsonl")
    (file,) = find_files(found)
    pieces = cut(file, "jsonl", 1)
    assert told([row for one in pieces for row in read_unit(InputUnit(file, found, one), CONFIG)]) == told(whole(found))
    assert sum(one.weight for one in pieces) == len(data)
    unit = InputUnit(file, found)
    assert divide([unit], ExtractConfig(parts=9), Engine()) or not data


@pytest.mark.parametrize("size", [1, 4_000, 1 << 30])
def test_slices_of_parquet_are_row_groups(tmp_path: Path, size: int) -> None:
    table = pa.table({"text": [f"row {number} " * 9 for number in range(100)], "n": list(range(100))})
    pq.write_table(table, tmp_path / "d.parquet", row_group_size=8, compression="none", use_dictionary=False)
    found = source(tmp_path, "parquet")
    (file,) = find_files(found)
    pieces = cut(file, "parquet", size)
    assert [(one.start, one.end) for one in cut(file, "parquet", 1)] == [(at, at + 1) for at in range(13)]
    rows = [row for one in pieces for row in read_unit(InputUnit(file, found, one), CONFIG)]
    assert told(rows) == told(whole(found))
    assert [row.url for row in rows] == [f"file://src/d.parquet#{number}" for number in range(100)]


def test_a_damaged_file_is_named_during_slicing(tmp_path: Path) -> None:
    data = gzip.compress(random.Random(1).randbytes(200_000))
    (tmp_path / "d.jsonl.gz").write_bytes(data[:-5_000])
    (tmp_path / "e.jsonl").write_bytes(b"{}\n")
    found = source(tmp_path, "jsonl")
    units = [InputUnit(file, found) for file in find_files(found)]
    with pytest.raises(InputError, match=r'd\.jsonl\.gz of the file source "src" cannot be read'):
        divide(units, ExtractConfig(parts=8), Engine())


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_file_that_became_shorter_is_reported(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"d.jsonl{ending}"
    path.write_bytes(compressed(lines(), ending))
    found = source(tmp_path, "jsonl")
    (file,) = find_files(found)
    *_, last = cut(file, "jsonl", 1_000)
    path.write_bytes(compressed(lines()[:5_000], ending))
    with pytest.raises(InputError, match="became shorter while it was read"):
        list(read_unit(InputUnit(file, found, last), CONFIG))


def test_parts_of_a_compressed_file_are_processed_in_few_runs() -> None:
    def unit(path: str, piece: FilePiece | None) -> InputUnit:
        from tasks.formats.documents.external_files import SourceFile

        return InputUnit(SourceFile(path, path, 10), FileSource(name="src", kind="jsonl", path="/x/*"), piece=piece)

    parts = [[unit("/x/a.jsonl", None)]]
    parts += [[unit("/x/b.jsonl.gz", FilePiece(at, at, at + 1, 1, streamed=True))] for at in range(50)]
    parts += [[unit("/x/c.jsonl", FilePiece(at, at, at + 1, 1))] for at in range(3)]
    named = run_names(parts)
    assert named[0] == ""
    assert named[51:] == [""] * 3
    in_b = named[1:51]
    assert sorted(in_b, key=in_b.index) == in_b, "a run is made of neighbours"
    assert len(set(in_b)) <= RUNS
    assert max(map(in_b.count, in_b)) == 3
    assert run_names([[unit("/x/b.jsonl.gz", FilePiece(0, 0, 1, 1, streamed=True)), unit("/x/d.jsonl", None)]]) == [
        "/x/b.jsonl.gz 0"
    ]


def test_adjacent_slices_of_a_part_are_read_as_one(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_bytes(lines())
    found = source(tmp_path, "jsonl")
    (file,) = find_files(found)
    config = ExtractConfig(parts=3)
    units = divide([InputUnit(file, found)], config, Engine())
    assert len(units) >= 9
    parts = arrange(units, config)
    assert [len(part) for part in parts] == [1, 1, 1]
    weights = [part[0].weight for part in parts]
    assert max(weights) < 1.4 * min(weights)


def documents(artifact: Artifact) -> Iterator[dict[str, Any]]:
    for path in artifact.files("documents/"):
        yield from artifact.table(path).to_pylist()


@pytest.mark.parametrize(
    ("ending", "several"), soak_but({0, 1}, [("", SCATTERED), (".gz", SCATTERED), ("", 2), (".gz", 3)])
)
def test_one_file_is_split_into_parts_with_the_same_bytes_on_any_number_of_workers(
    tmp_path: Path, ending: str, several: int
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / f"d.jsonl{ending}").write_bytes(compressed(lines(), ending))
    config = ExtractConfig(files=(source(tmp_path / "in", "jsonl"),), parts=6, min_chars=1, max_payload_bytes=2_000)
    made = [
        run_stage_in(tmp_path / str(workers), MODULE, config, workers=workers, max_bad_share=1)
        for workers in (0, several)
    ]
    assert made[0].record.content == made[1].record.content
    assert len(made[0].files("documents/")) == 6
    rows = {part.rows_in for part in made[0].parts}
    assert max(rows) < 2 * min(rows)
    alone = run_stage_in(tmp_path / "one", MODULE, config.model_copy(update={"parts": 1}), max_bad_share=1)
    assert sorted(row["id"] for row in documents(alone)) == sorted(row["id"] for row in documents(made[0]))
    assert alone.record.rejected == made[0].record.rejected


def test_a_killed_stage_resumes_in_the_middle_of_a_compressed_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "d.jsonl.gz").write_bytes(compressed(lines(), ".gz"))
    config = ExtractConfig(files=(source(tmp_path / "in", "jsonl"),), parts=6, min_chars=1, max_payload_bytes=2_000)
    undisturbed = run_stage_in(tmp_path / "undisturbed", MODULE, config)
    from tasks.stages.extract import stage

    make, made = stage.extract_part, []

    def dies(part: Any, slice_: Any) -> None:
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append(part.name)
        make(part, slice_)

    monkeypatch.setattr(stage, "extract_part", dies)
    with pytest.raises(KeyboardInterrupt):
        run_stage_in(tmp_path, MODULE, config)
    monkeypatch.setattr(stage, "extract_part", make)
    assert run_stage_in(tmp_path, MODULE, config).record.content == undisturbed.record.content


ROW = {
    "text": "A text of a dump. ",
    "url": "https://a.example/",
    "date": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "day": date(2026, 1, 2),
    "author": "Ann <ann@example.org>",
    "stars": 4.5,
    "tags": ["a", "b"],
    "nested": {"b": 1, "a": [None, float("nan")]},
    "image": b"\x00\xff",
    "nothing": None,
}
KEPT = (
    '{"author":"Ann <ann@example.org>","date":"2026-01-02T03:04:05+00:00","day":"2026-01-02","image":"AP8=",'
    '"nested":{"a":[null,null],"b":1},"stars":4.5,"tags":["a","b"]}'
)


def test_other_columns_of_parquet_are_metadata(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([ROW]), tmp_path / "d.parquet")
    (row,) = whole(source(tmp_path, "parquet"))
    assert row.metadata == KEPT
    (few,) = whole(source(tmp_path, "parquet", metadata_fields=["stars", "day"]))
    assert few.metadata == '{"day":"2026-01-02","stars":4.5}'
    (none,) = whole(source(tmp_path, "parquet", metadata_fields=[]))
    assert (none.metadata, none.left_out) == ("", ())
    (short,) = whole(source(tmp_path, "parquet", max_metadata_bytes=80))
    assert (short.metadata, short.left_out) == (
        '{"day":"2026-01-02","image":"AP8=","stars":4.5,"tags":["a","b"]}',
        ("metadata_cut",),
    )
    with pytest.raises(InputError, match=r'has no column "star" .*Set metadata_fields of the file source "src"'):
        whole(source(tmp_path, "parquet", metadata_fields=["star"]))


def test_other_fields_of_json_lines_are_metadata_and_odd_ones_stay_json(tmp_path: Path) -> None:
    held = [
        '{"text": "a", "date": "2026", "stars": 5, "id": null}',
        '{"text": "b", "big": 1e999, "bad": NaN, "half": "\\ud800x", "quote": "\\"\\u0000"}',
        '{"text": "c"}',
        '{"text": "d", "deep": ' + "[" * 600 + "]" * 600 + "}",
    ]
    (tmp_path / "d.jsonl").write_text("\n".join(held))
    first, odd, none, deep = whole(source(tmp_path, "jsonl"))
    assert first.metadata == '{"date":"2026","stars":5}'
    assert json.loads(odd.metadata) == {"big": None, "bad": None, "half": "?x", "quote": '"\0'}
    assert none.metadata == ""
    assert deep.refused or json.loads(deep.metadata)


def test_metadata_is_kept_through_all_stages_with_personal_data_masked(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    prose = "The ship went to sea with a crew of nine, and none of them had seen the ice before that winter. "
    rows = [
        {
            "text": prose * 4,
            "author": "Ann <ann@example.org>",
            "id": 8175551234,
            "more": [{"host": "mail bob@example.org now"}],
        },
        {"text": prose[::-1] * 4, "id": 2},
    ]
    (tmp_path / "in" / "d.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "in" / "e.jsonl").write_text(
        json.dumps({"text": "Another text, of the land and of its people, stands here. " * 6})
    )
    extracted = run_stage_in(
        tmp_path, MODULE, ExtractConfig(files=(source(tmp_path / "in", "jsonl"),), jsonl=True), kind="extracted"
    )
    from tasks.formats.documents.groups import group_of
    from tasks.stages.annotate import AnnotateConfig
    from tasks.stages.dedup import DedupConfig

    use = AnnotateConfig(use=("prose_score", "pii"))
    attributes = run_stage_in(tmp_path, "tasks.stages.annotate.stage", use, {"extracted": extracted}, kind="attributes")
    measured = {"extracted": extracted, "prose_score": group_of(attributes, "prose_score")}
    duplicates = run_stage_in(tmp_path, "tasks.stages.dedup.stage", DedupConfig(), measured, kind="duplicates")
    inputs = {"extracted": extracted, "attributes": attributes, "duplicates": duplicates}
    config = ConsolidateConfig(filters=())
    kept = run_stage_in(tmp_path, "tasks.stages.consolidate.stage", config, inputs, kind="documents")
    found = {row["metadata"] for path in kept.files("kept/") for row in kept.table(path).to_pylist()}
    assert found == {
        '{"author":"Ann <<email>>","id":8175551234,"more":[{"host":"mail <email> now"}]}',
        '{"id":2}',
        None,
    }
    plain = ConsolidateConfig(filters=(), mask_pii=False)
    unmasked = run_stage_in(tmp_path, "tasks.stages.consolidate.stage", plain, inputs, kind="plain")
    assert any(
        "ann@example.org" in (row["metadata"] or "")
        for path in unmasked.files("kept/")
        for row in unmasked.table(path).to_pylist()
    )
    written = [
        json.loads(line)["metadata"]
        for path in extracted.files("jsonl/")
        for line in gzip.decompress(extracted.read(path)).splitlines()
    ]
    assert {"id": 2} in written
    assert None in written


SOURCE = FileSource(name="src", kind="text", path="/x/*")


def units(*sizes: int) -> list[InputUnit]:
    return [InputUnit(SourceFile(f"/x/{i}", str(i), size), SOURCE) for i, size in enumerate(sizes)]


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=60), st.integers(0, 20))
def test_every_unit_is_in_one_part_in_order_and_no_part_is_empty(sizes: list[int], parts: int) -> None:
    given_units = units(*sizes)
    arranged = arrange(given_units, ExtractConfig(parts=parts))
    assert [unit for part in arranged for unit in part] == given_units
    assert all(arranged)
    assert not parts or len(arranged) <= parts


def test_parts_have_similar_weights() -> None:
    weights = [sum(unit.weight for unit in part) for part in arrange(units(*[10] * 100), ExtractConfig(parts=4))]
    assert weights == [250] * 4


def test_automatic_parts_follow_the_input_bytes() -> None:
    assert len(arrange(units(*[1_000_000] * 200), ExtractConfig(part_bytes=10_000_000))) == 20
    assert len(arrange(units(*[10] * 200), ExtractConfig())) == 8
    assert len(arrange(units(10, 10), ExtractConfig())) == 2


def test_compressed_captures_weigh_more_than_text() -> None:
    captures = FileSource(name="src", kind="warc", path="/x/*")
    assert InputUnit(SourceFile("a", "a", 10), captures).weight == 40
    assert InputUnit(SourceFile("a", "a", 10), SOURCE).weight == 10

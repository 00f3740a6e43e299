"""Tables of Delta Lake and Iceberg as file sources: a version reads one snapshot, without the rows that it deleted."""

import json
import logging
import os
import struct
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.run.recipe import Recipe
from tasks.run.runner import open_store, run_stage
from tasks.run.tracking import TrackingContext
from tasks.stages.extract import stage
from tasks.stages.extract.config import ExtractConfig, FileSource
from tasks.stages.extract.files import read_unit
from tasks.stages.extract.row import InputRow
from tasks.stages.extract.sources import InputUnit, find_files
from tests.conftest import run_stage_in
from tests.tasks.run.test_adopted import small_recipe

CONFIG = ExtractConfig()
WORDS = "the and of what a table holds in one of its rows " * 6
COLUMNS = pa.schema([("id", pa.int64()), ("text", pa.string()), ("lang", pa.string())])


class Delta:
    """A Delta table with rows by number, partitioned by `lang`."""

    kind = "delta"

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "table")

    def append(self, numbers: Sequence[int], lang: str = "en", more: str = "") -> None:
        from deltalake import write_deltalake

        rows = table_of_rows(numbers, lang, more)
        write_deltalake(self.path, rows, mode="append", partition_by=["lang"], schema_mode="merge")

    def delete(self, number: int) -> None:
        """Deletes a row by a deletion vector, as Spark does, in the only file that has it."""
        log = Path(self.path, "_delta_log")
        lines = [json.loads(line) for name in sorted(log.glob("*.json")) for line in name.read_text().splitlines()]
        for add in [line["add"] for line in lines if "add" in line]:
            numbers = pq.read_table(Path(self.path, add["path"])).column("id").to_pylist()
            if number in numbers:
                break
        bitmap = roaring(numbers.index(number))
        vector = {"storageType": "i", "pathOrInlineDv": z85(bitmap), "sizeInBytes": len(bitmap), "cardinality": 1}
        features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
        actions = [
            {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
            {"remove": {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}},
            {"add": {**add, "deletionVector": vector}},
        ]
        newest = len(list(log.glob("*.json")))
        (log / f"{newest:020}.json").write_text("\n".join(map(json.dumps, actions)))

    def pin(self, count: int) -> dict[str, Any]:
        """Setting that names the version after some appends."""
        return {"version": count - 1}

    def expire(self) -> None:
        """Rewrites the files, and removes those of older versions."""
        from deltalake import DeltaTable, write_deltalake

        write_deltalake(self.path, pa.table(DeltaTable(self.path).scan()), mode="overwrite", partition_by=["lang"])
        DeltaTable(self.path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


class Iceberg:
    """An Iceberg table with rows by number, in an SQLite catalog."""

    kind = "iceberg"

    def __init__(self, folder: Path) -> None:
        from pyiceberg.catalog.sql import SqlCatalog

        self.catalog = SqlCatalog("test", uri=f"sqlite:///{folder}/catalog.db", warehouse=str(folder))
        self.catalog.create_namespace("mine")
        self.path = str(folder / "table")
        self.catalog.create_table("mine.table", COLUMNS, location=self.path)

    def append(self, numbers: Sequence[int], lang: str = "en", more: str = "") -> None:
        table = self.catalog.load_table("mine.table")
        rows = table_of_rows(numbers, lang, more)
        with table.update_schema() as update:
            update.union_by_name(rows.schema)
        self.catalog.load_table("mine.table").append(rows)

    def delete(self, number: int) -> None:
        """Deletes a row by a file of positions, as Spark does."""
        table = self.catalog.load_table("mine.table")
        for task in table.scan().plan_files():
            numbers = pq.read_table(task.file.file_path).column("id").to_pylist()
            if number in numbers:
                break
        ids = {"file_path": b"2147483546", "pos": b"2147483545"}
        types = {"file_path": pa.string(), "pos": pa.int64()}
        schema = pa.schema([pa.field(name, types[name], False, {b"PARQUET:field_id": ids[name]}) for name in ids])
        rows = {"file_path": [task.file.file_path], "pos": [numbers.index(number)]}
        path = f"{self.path}/data/deleted-{number}.parquet"
        pq.write_table(pa.table(rows, schema=schema), path)
        self.commit_deletes(table, path)

    def commit_deletes(self, table: Any, path: str, equal: list[int] | None = None) -> None:
        from pyiceberg import manifest as files
        from pyiceberg.table.snapshots import Operation, Snapshot, Summary
        from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate
        from pyiceberg.typedef import Record

        class Deletes(files.ManifestWriterV2):
            def content(self) -> Any:
                return files.ManifestContent.DELETES

        before, now = table.current_snapshot(), int(time.time() * 1000)
        own, sequence = before.snapshot_id + 1, before.sequence_number + 1
        kind = files.DataFileContent.EQUALITY_DELETES if equal else files.DataFileContent.POSITION_DELETES
        size = Path(path).stat().st_size
        data = files.DataFile.from_args(
            content=kind, file_path=path, file_format="PARQUET", partition=Record(), record_count=1,
            file_size_in_bytes=size, equality_ids=equal,
        )  # fmt: skip
        data.spec_id = 0
        entry = files.ManifestEntry.from_args(
            status=files.ManifestEntryStatus.ADDED, snapshot_id=own, sequence_number=None, data_file=data
        )
        out = [table.io.new_output(f"{self.path}/metadata/{own}-{part}.avro") for part in ("deletes", "list")]
        with Deletes(table.spec(), table.schema(), out[0], own, "deflate") as writer:
            writer.add_entry(entry)
        with files.write_manifest_list(2, out[1], own, before.snapshot_id, sequence, "deflate") as manifests:
            manifests.add_manifests([*before.manifests(table.io), writer.to_manifest_file()])
        summary = Summary(Operation.DELETE, **{"total-equality-deletes": str(len(equal or ()))})
        snapshot = Snapshot(
            snapshot_id=own, parent_snapshot_id=before.snapshot_id, sequence_number=sequence, timestamp_ms=now,
            manifest_list=out[1].location, summary=summary, schema_id=table.schema().schema_id,
        )  # fmt: skip
        head = SetSnapshotRefUpdate(snapshot_id=own, ref_name="main", type="branch")
        with table.transaction() as transaction:
            transaction._apply((AddSnapshotUpdate(snapshot=snapshot), head), ())

    def pin(self, count: int) -> dict[str, Any]:
        """Setting that names the snapshot after some appends."""
        snapshots = self.catalog.load_table("mine.table").snapshots()
        return {"snapshot": sorted(snapshots, key=lambda one: one.sequence_number)[count - 1].snapshot_id}

    def expire(self) -> None:
        """Rewrites the rows, and removes what older snapshots have."""
        table = self.catalog.load_table("mine.table")
        old = [task.file.file_path for task in table.scan().plan_files()]
        table.overwrite(table.scan().to_arrow())
        for path in old:
            Path(path).unlink()


def table_of_rows(numbers: Sequence[int], lang: str, more: str) -> pa.Table:
    rows = [{"id": number, "text": f"{number} {WORDS}", "lang": lang} for number in numbers]
    schema = COLUMNS
    if more:
        rows = [{**row, more: "added"} for row in rows]
        schema = COLUMNS.append(pa.field(more, pa.string()))
    return pa.Table.from_pylist(rows, schema)


def roaring(position: int) -> bytes:
    """A deletion vector with one position, as Delta stores it."""
    bitmap = struct.pack("<IIHHIH", 12346, 1, 0, 0, 16, position)
    return struct.pack("<IQI", 1681511377, 1, 0) + bitmap


def z85(data: bytes) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    padded = data + bytes(-len(data) % 4)
    values = [int.from_bytes(padded[at : at + 4], "big") for at in range(0, len(padded), 4)]
    return "".join(digits[value // 85**power % 85] for value in values for power in (4, 3, 2, 1, 0))


@pytest.fixture(
    params=[
        pytest.param(Delta, marks=pytest.mark.oracle("deltalake")),
        pytest.param(Iceberg, marks=pytest.mark.oracle("pyiceberg")),
    ]
)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A table of each format, with the rows 0 to 5, and then 6 to 8 in French."""
    (tmp_path / "lake").mkdir()
    table = request.param(tmp_path / "lake")
    table.append(range(6))
    table.append(range(6, 9), "fr")
    return table


def source(table: Any, **settings: Any) -> FileSource:
    return FileSource(name="src", kind=table.kind, path=table.path, **settings)


def rows(found: FileSource) -> list[InputRow]:
    return [row for file in find_files(found) for row in read_unit(InputUnit(file, found), CONFIG)]


def numbers(found: FileSource) -> list[int]:
    return sorted(json.loads(row.metadata)["id"] for row in rows(found))


def test_a_row_of_a_table_is_a_row_of_a_parquet_file_with_its_partition(table: Any) -> None:
    found = {json.loads(row.metadata)["id"]: row for row in rows(source(table))}
    assert sorted(found) == list(range(9))
    assert found[7].content().text == f"7 {WORDS}".strip()
    assert {number: json.loads(row.metadata)["lang"] for number, row in found.items()} == {
        number: "fr" if number > 5 else "en" for number in range(9)
    }
    named = rows(source(table, url_field="lang", metadata_fields=("id",)))
    assert {(row.url, row.metadata) for row in named if row.url == "fr"} == {("fr", f'{{"id":{n}}}') for n in (6, 7, 8)}


def test_the_url_of_a_row_names_its_file_and_its_position_there(table: Any) -> None:
    first = {row.url for row in rows(source(table, **table.pin(1)))}
    assert first == {url for url in first if url.startswith("file://src/")}
    assert {url.rpartition("#")[2] for url in first} == set("012345")
    table.delete(2)
    left = {row.url for row in rows(source(table, **table.pin(3)))}
    assert {url for url in first if url in left} == {url for url in first if not url.endswith("#2")}


def test_rows_that_a_snapshot_has_deleted_are_not_read(table: Any) -> None:
    table.delete(4)
    assert numbers(source(table)) == [0, 1, 2, 3, 5, 6, 7, 8]
    assert numbers(source(table, **table.pin(2))) == list(range(9))


def test_a_version_or_a_time_selects_a_snapshot(table: Any) -> None:
    assert numbers(source(table, **table.pin(1))) == list(range(6))
    moment = datetime.now(UTC)
    assert numbers(source(table, timestamp=moment)) == list(range(9))
    with pytest.raises(InputError, match=r'table of the file source "src".*'):
        rows(source(table, timestamp=moment - timedelta(days=1)))


def test_a_column_that_was_added_later_is_null_in_older_rows(table: Any) -> None:
    table.append([9], more="note")
    metadata = {json.loads(row.metadata)["id"]: json.loads(row.metadata) for row in rows(source(table))}
    assert metadata[9]["note"] == "added"
    assert "note" not in metadata[0]
    assert [row.refused for row in rows(source(table, text_field="note"))].count("no_text") == 9


@pytest.mark.oracle("deltalake")
def test_dates_after_9999_in_rows_partitions_and_statistics_are_read(tmp_path: Path) -> None:
    from deltalake import write_deltalake

    table = Delta(tmp_path)
    days = pa.array([2932897, 3], pa.int32()).cast(pa.date32())
    columns = {"id": [0, 1], "text": [WORDS, WORDS], "day": days, "lang": days}
    write_deltalake(table.path, pa.table(columns), partition_by=["lang"])
    found = sorted((json.loads(row.metadata) for row in rows(source(table))), key=lambda one: str(one["id"]))
    assert [(one["day"], one["lang"]) for one in found] == [("+10000-01-01",) * 2, ("1970-01-04",) * 2]


def test_a_value_that_python_lacks_costs_one_field_and_no_row(table: Any) -> None:
    (path, *_) = (file.local() for file in find_files(source(table, **table.pin(1))))
    old = pq.read_table(path)
    odd = pa.array([b"\xff", *[b"a"] * 5]).view(pa.string())
    times = pa.array([1] * 6, pa.timestamp("ns"))
    lacking = old.set_column(0, old.schema.field("id").with_type(times.type), times)
    # No writer of the formats makes such a file: it stands for one of another engine.
    pq.write_table(lacking.set_column(1, lacking.schema.field("text"), odd), path)
    found = rows(source(table, **table.pin(1)))
    assert [row.refused for row in found] == ["text_not_utf8", *[""] * 5]
    assert json.loads(found[1].metadata)["id"] == "1970-01-01T00:00:00.000000001"


@pytest.mark.oracle("pyiceberg")
def test_a_renamed_column_is_read_from_older_files(tmp_path: Path) -> None:
    table = Iceberg(tmp_path)
    table.append(range(3))
    with table.catalog.load_table("mine.table").update_schema() as update:
        update.rename_column("text", "body")
    newer = table_of_rows([3], "en", "").rename_columns(["id", "body", "lang"])
    table.catalog.load_table("mine.table").append(newer)
    found = rows(source(table, text_field="body"))
    assert sorted(row.content().text[0] for row in found) == ["0", "1", "2", "3"]


@pytest.mark.oracle("pyiceberg")
def test_equality_deletes_are_refused(tmp_path: Path) -> None:
    table = Iceberg(tmp_path)
    table.append(range(3))
    path = f"{table.path}/data/equal.parquet"
    pq.write_table(pa.table({"id": [1]}), path)
    table.commit_deletes(table.catalog.load_table("mine.table"), path, [1])
    with pytest.raises(InputError, match=r"has equality deletes, which are not read\. Rewrite its data files"):
        rows(source(table))


@pytest.mark.oracle("deltalake")
def test_a_feature_that_is_not_read_is_refused_by_name(tmp_path: Path) -> None:
    table = Delta(tmp_path)
    table.append(range(3))
    feature = {"readerFeatures": ["variantType"], "writerFeatures": ["variantType"]}
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **feature}}
    Path(table.path, "_delta_log", f"{1:020}.json").write_text(json.dumps(protocol))
    with pytest.raises(InputError, match="variantType"):
        rows(source(table))


def test_errors_name_the_table_and_what_to_do(table: Any, tmp_path: Path) -> None:
    absent = FileSource(name="src", kind=table.kind, path=str(tmp_path / "nothing"))
    with pytest.raises(InputError, match=r'table .*/nothing of the file source "src" cannot be read.*Correct path and'):
        rows(absent)
    unknown = {"version": 77} if table.kind == "delta" else {"snapshot": 77}
    with pytest.raises(InputError, match=r'table of the file source "src" cannot be read.* 77.*Correct path and'):
        rows(source(table, **unknown))
    with pytest.raises(InputError, match=r'has no column "body" \(it has: id, lang, text\)\. Set text_field of'):
        rows(source(table, text_field="body"))
    old = source(table, **table.pin(1))
    table.expire()
    with pytest.raises(InputError, match=r'of the file source "src" is gone\. Name a version .* that was not vacuumed'):
        rows(old)
    assert numbers(source(table)) == list(range(9))


@pytest.mark.parametrize(("kind", "module"), [("delta", "deltalake"), ("iceberg", "pyiceberg")])
def test_without_its_library_the_extra_is_named(
    kind: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (module, f"{module}.exceptions"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=rf"{module} is not installed .*Pip install 'sluice\[{kind}\]'"):
        find_files(FileSource(name="src", kind=kind, path=str(tmp_path)))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"kind": "jsonl", "version": 3}, 'version is of kind = "delta", and this is jsonl'),
        ({"kind": "delta", "snapshot": 3}, 'snapshot is of kind = "iceberg", and this is delta'),
        ({"kind": "delta", "version": 3, "timestamp": "2026-11-21T00:00:00Z"}, "name two versions of the table"),
    ],
)
def test_settings_of_another_format_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        FileSource.model_validate({"name": "src", "path": "/data/table", **settings})


def test_a_table_in_a_bucket_is_read(table: Any, separate_s3: str, tmp_path: Path) -> None:
    if table.kind == "delta":
        remote = f"{separate_s3}/table"
        fsspec.filesystem("s3").put(table.path, remote, recursive=True)
    else:  # whose metadata has the paths of its files
        from pyiceberg.catalog.sql import SqlCatalog

        endpoint = {"s3.endpoint": os.environ["AWS_ENDPOINT_URL_S3"], "s3.region": "us-east-1"}
        catalog = SqlCatalog("far", uri=f"sqlite:///{tmp_path}/far.db", warehouse=separate_s3, **endpoint)
        catalog.create_namespace("mine")
        rows_of = table.catalog.load_table("mine.table").scan().to_arrow()
        far = catalog.create_table("mine.table", rows_of.schema)
        far.append(rows_of)
        remote = far.location()
    assert numbers(FileSource(name="src", kind=table.kind, path=remote)) == list(range(9))


def test_the_parts_are_the_same_on_any_workers(table: Any, tmp_path: Path) -> None:
    table.delete(4)
    config = ExtractConfig(files=(source(table),), parts=3)
    found = [
        run_stage_in(tmp_path / str(workers), "tasks.stages.extract.stage", config, workers=workers, kind="extracted")
        for workers in (0, -1)
    ]
    assert found[0].record.content == found[1].record.content
    assert len(found[0].files("documents/")) > 1
    assert found[0].record.rows_out == 8


def recipe_of(table: Any, folder: Path) -> Recipe:
    files = [{"name": "books", "kind": table.kind, "path": table.path}]
    return small_recipe(folder).override(
        {"extract.files": files, "consolidate.sources": ["books"], "canary.current": {"books": 1.0}}
    )


def extract(recipe: Recipe, version: str) -> Artifact:
    run_stage(recipe, "extract", version=version, tracking=TrackingContext("", recipe.name))
    return Artifact.open_at(open_store(recipe), ArtifactId("smoke/extracted", version))


def test_a_version_keeps_the_snapshot_that_it_was_begun_with(
    table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = recipe_of(table, tmp_path)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stage, "extract_part", killed)
        with pytest.raises(KeyboardInterrupt):
            extract(recipe, "1")
    table.append([9])
    first = extract(recipe, "1")
    assert first.record.rows_out == 9
    # A finished version needs the table no more, and another version reads what is new.
    second = extract(recipe, "2")
    assert second.record.rows_out == 10
    table.append([10])
    with caplog.at_level(logging.WARNING, "sluice"):
        assert extract(recipe, "1").record == first.record
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert first.record.fingerprint != second.record.fingerprint


def test_the_fingerprint_is_that_of_the_snapshot_and_equal_snapshots_are_adopted(table: Any, tmp_path: Path) -> None:
    recipe = recipe_of(table, tmp_path)
    first = extract(recipe, "1")
    (ref,) = (ref for ref in first.record.inputs if ref.role == "files:books")
    assert ref.content.startswith(f"{table.kind}:")
    assert ref.content.endswith(f":{next(iter(table.pin(2).values()))}")
    result = run_stage(recipe, "extract", version="2", source_version="1", tracking=TrackingContext("", recipe.name))
    assert result.adopted_from == "smoke/extracted@1"

"""The lake of a recipe: tables that are the corpus as of the newest version, read by the libraries and by DuckDB."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from copy import copy
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError, RecipeError, TransientError
from tasks.formats.lakes import open_table
from tasks.formats.lakes.delta import storage_options
from tasks.formats.lakes.files import NewPart, write_part
from tasks.formats.lakes.iceberg import IcebergLake
from tasks.formats.lakes.table import Head, LakeTable
from tasks.run import lake as lakes
from tasks.run.lake import TableReport, check_lake, take_down_in_lake, write_lake
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.runner import open_store
from tasks.run.shell import main
from tests.conftest import engine_of
from tests.install.stranger import uv
from tests.tasks.run.test_accumulated import CHANGED, GROWING, add, run
from tests.tasks.run.test_adopted import REFINE, small_recipe

STAGES = (*REFINE, "dedup_index", "tokenizer", "chunks")
VERSIONS = ("1", "2", "3")
FORMATS = [
    pytest.param("delta", marks=pytest.mark.oracle("deltalake")),
    pytest.param("iceberg", marks=pytest.mark.oracle("pyiceberg")),
]
TABLES_WITH_URLS = ("documents", "chunks", "scores")
TWO_TABLES = ["documents", "funnel"]
TAKEN_URL = "file://books/2-5.txt"
SOME = pa.schema([("id", pa.string()), ("score", pa.struct([("a", pa.int32())]))])


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """Three versions: the second has six new files, the third six more, and four that have changed."""
    folder = tmp_path_factory.mktemp("grown")
    more = {"makes": ["documents", "tokens"], "chunks.enabled": True, "place.mlflow": ""}
    recipe = small_recipe(folder).override({**GROWING, **more})
    run(recipe, "1", STAGES)
    add(folder, "2")
    run(recipe, "2", STAGES)
    add(folder, "3")
    for number in range(CHANGED):
        words = " ".join(f"edit{number}x{place}" for place in range(90))
        (folder / "books" / f"2-{number}.txt").write_text(f"the and of {words}.\n")
    run(recipe, "3", STAGES)
    return recipe


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, grown: Recipe, tmp_path: Path) -> Recipe:
    """The recipe with an empty lake of each format, with two tables."""
    place = {"format": request.param, "root": str(tmp_path / "lake"), "tables": TWO_TABLES}
    return grown.override({"place.lake": place})


@pytest.fixture
def whole(lake: Recipe) -> Recipe:
    """The recipe with all tables."""
    return lake.override({"place.lake.tables": ["documents", "chunks", "scores", "funnel"]})


@pytest.fixture
def asked(whole: Recipe, tmp_path: Path) -> Recipe:
    """The recipe with a lake of version 3, and a store of its own, for takedowns."""
    write(whole, "3")
    shutil.copytree(open_store(whole).root, tmp_path / "store", copy_function=os.link)
    return whole.override({"place.store": str(tmp_path / "store")})


def write(recipe: Recipe, version: str) -> dict[str, TableReport]:
    return {table.table: table for table in write_lake(recipe, open_store(recipe), version)}


def take_down(recipe: Recipe, document: str) -> None:
    """Takes down a document of version 1 by its id, and one of version 2 by its URL."""
    named = ["--document", document, "--url", TAKEN_URL, "--reason", "asked"]
    assert main(["takedown", "--recipe", recipe.text, *named]) == 0


def table_of(recipe: Recipe, name: str) -> LakeTable:
    place = lakes.lake_of(recipe)
    return open_table(place.format, place.root, f"{recipe.name}/{name}", place.catalog)


def read_version(table: LakeTable, number: int) -> pa.Table:
    """One version of a table, read by the library of its format."""
    if isinstance(table, IcebergLake):
        return table.catalog.load_table(table.identifier).scan(snapshot_id=number).to_arrow()
    from deltalake import DeltaTable

    root = table.folder.root
    return pa.table(DeltaTable(root, version=number, storage_options=storage_options(root)).scan())


def versions_of(recipe: Recipe, name: str) -> list[list[dict[str, Any]] | None]:
    """Rows of every version that a table still lists, without empty ones; None if it cannot be read."""
    found: list[list[dict[str, Any]] | None] = []
    for version in (table := table_of(recipe, name)).versions():
        try:
            found.append(read_version(table, version.number).to_pylist())
        except Exception:  # each library has its own errors
            found.append(None)
    return [rows for rows in found if rows != []]


def newest(recipe: Recipe, name: str) -> list[dict[str, Any]]:
    rows = versions_of(recipe, name)[-1]
    assert rows is not None
    return rows


def corpus(recipe: Recipe, version: str) -> dict[str, str]:
    """Text by id of the documents of all versions up to one; of a URL the newest."""
    by_url: dict[str, dict[str, str]] = {}
    for one in VERSIONS[: VERSIONS.index(version) + 1]:
        documents = Artifact.open_at(open_store(recipe), ArtifactId("smoke/documents", one))
        for path in documents.files("kept/"):
            for row in documents.table(path, ["id", "url", "text"]).to_pylist():
                by_url[row["url"]] = {row["id"]: row["text"]}
    return {id_: text for documents_of_url in by_url.values() for id_, text in documents_of_url.items()}


def urls_in(table: LakeTable, path: str) -> set[str]:
    return set(pq.read_table(table.folder.local(path)).column("url").to_pylist())


def test_each_version_is_one_commit_and_every_version_can_be_read(lake: Recipe) -> None:
    assert write(lake, "1")["documents"].versions == ["1"]
    # What was not written before is written first.
    report = write(lake, "3")
    assert {name: table.versions for name, table in report.items()} == {name: ["2", "3"] for name in report}
    assert report["documents"].added == 6 + 6 + CHANGED
    read = [{row["id"]: row["text"] for row in rows or ()} for rows in versions_of(lake, "documents")]
    assert read == [corpus(lake, version) for version in VERSIONS]
    written_by = {row["id"]: row["version"] for row in newest(lake, "documents")}
    assert {written_by[id_] for id_ in corpus(lake, "1")} == {"1"}


def test_chunks_and_scores_are_those_of_the_documents_and_the_funnel_has_all_versions(whole: Recipe) -> None:
    write(whole, "3")
    assert {row["document"] for row in newest(whole, "chunks")} == set(corpus(whole, "3"))
    scores = {row["id"]: row for row in newest(whole, "scores")}
    assert set(corpus(whole, "3")) < set(scores)
    assert all(row["gopher_quality"]["words"] > 0 for row in scores.values())
    funnel = newest(whole, "funnel")
    assert {row["version"] for row in funnel} == set(VERSIONS)
    assert sum(row["documents"] for row in funnel if (row["version"], row["step"]) == ("1", "kept")) == 18


def test_duckdb_reads_the_newest_version(lake: Recipe) -> None:
    write(lake, "3")
    table = table_of(lake, "documents")
    paths = [table.folder.local(path) for path in table.files()]
    query = f"select count(*), count(distinct id), min(length(text)) > 0 from read_parquet({paths})"
    assert duckdb.sql(query).fetchall() == [(len(corpus(lake, "3")), len(corpus(lake, "3")), True)]


def test_a_version_that_the_table_has_is_not_written_again(lake: Recipe) -> None:
    write(lake, "3")
    before = {name: table_of(lake, name).versions() for name in ("documents", "funnel")}
    again = [table for version in VERSIONS for table in write(lake, version).values()]
    assert {(table.added, tuple(table.versions)) for table in again} == {(0, ())}
    assert {table.note for table in again} == {"has 3 already", *(f"has a version newer than {one}" for one in "12")}
    assert {name: table_of(lake, name).versions() for name in before} == before


def test_the_command_writes_the_tables_and_says_what_it_wrote(lake: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lake", "--recipe", lake.text, "--version", "1"]) == 0
    documents, _ = capsys.readouterr().out.splitlines()
    assert documents.split(maxsplit=2) == ["documents", table_of(lake, "documents").folder.root, "1: 18 rows, 0.0 MB"]
    assert main(["lake", "--recipe", lake.text, "--version", "1", "--json"]) == 0
    tables = json.loads(capsys.readouterr().out)["tables"]
    assert {table["table"]: table["note"] for table in tables} == dict.fromkeys(TWO_TABLES, "has 1 already")
    assert main(["lake", "--recipe", lake.text, "--version", "9"]) == 2
    assert "no artifact smoke/documents@9" in capsys.readouterr().err


def test_a_version_copies_only_the_files_that_lose_rows(lake: Recipe) -> None:
    write(lake, "2")
    table = table_of(lake, "documents")
    before, changed = table.files(), {f"file://books/2-{number}.txt" for number in range(CHANGED)}
    lost = {path for path in before if urls_in(table, path) & changed}
    emptied = {path for path in lost if urls_in(table, path) <= changed}
    report = write(lake, "3")["documents"]
    assert set(before) - set(table_of(lake, "documents").files()) == lost
    assert report.rewritten == len(lost - emptied)
    assert {path for path in before if path.startswith("data/1/")}.isdisjoint(lost)


def test_without_a_dedup_index_a_version_replaces_all_and_equal_documents_are_not_written_again(
    lake: Recipe, tmp_path: Path
) -> None:
    (tmp_path / "alone").mkdir()
    alone = small_recipe(tmp_path / "alone").override({"place.lake": lake.place.lake.model_dump(), "place.mlflow": ""})
    run(alone, "1", REFINE)
    write(alone, "1")
    run(alone, "2", REFINE)  # the same
    report = write(alone, "2")["documents"]
    assert (report.versions, report.added) == (["2"], 0)
    for number in range(6):
        (tmp_path / "alone" / "notes" / f"{number}.txt").unlink()
    run(alone, "3", REFINE)
    write(alone, "3")
    kept = {row["url"] for row in newest(alone, "documents")}
    assert kept
    assert not {f"file://notes/{number}.txt" for number in range(6)} & kept
    assert {row["version"] for row in newest(alone, "funnel")} == {"1", "2", "3"}


def test_another_corpus_replaces_the_rows_of_the_versions_that_it_lacks(
    lake: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(lake, "2")
    # A second result of the same cycle does not have the first one among its versions.
    monkeypatch.setattr(lakes, "versions_in", lambda *_: ["1", "3"])
    write(lake, "3")
    versions = {row["version"] for row in newest(lake, "documents")}
    assert versions == {"1", "3"}
    assert len(newest(lake, "documents")) == len(corpus(lake, "3"))


def test_a_takedown_during_a_commit_reaches_the_version_that_it_adds(
    asked: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = asked.override({"place.lake.root": str(tmp_path / "other"), "place.lake.tables": ["documents"]})
    document, *_ = corpus(asked, "1")
    kind = type(table_of(other, "documents"))
    commit = kind.commit

    def interrupted(*arguments: Any) -> None:
        monkeypatch.setattr(kind, "commit", commit)
        take_down(other, document)
        commit(*arguments)

    monkeypatch.setattr(kind, "commit", interrupted)
    write(other, "1")
    assert check_lake(other, open_store(other))[0].present == 0


def test_a_writer_whose_files_a_takedown_has_deleted_cannot_commit_them(
    asked: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = asked.override({"place.lake.root": str(tmp_path / "other"), "place.lake.tables": ["documents"]})
    write(other, "1")
    kind = type(table_of(other, "documents"))
    commit = kind.commit

    def interrupted(*arguments: Any) -> None:
        monkeypatch.setattr(kind, "commit", commit)
        # A document of version 2, whose files have no commit yet.
        assert main(["takedown", "--recipe", other.text, "--url", TAKEN_URL, "--reason", "asked"]) == 0
        commit(*arguments)

    monkeypatch.setattr(kind, "commit", interrupted)
    with pytest.raises(TransientError, match="another writer has committed"):
        write(other, "2")
    write(other, "2")
    assert len(newest(other, "documents")) == len(corpus(other, "2")) - 1
    assert check_lake(other, open_store(other))[0].present == 0


def test_a_kill_before_the_commit_leaves_the_old_version_and_the_next_run_writes_the_same_files(
    lake: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(lake, "2")
    table = table_of(lake, "documents")
    held = {path: table.folder.size(path) for path in table.files()}

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(table), "commit", killed)
        with pytest.raises(KeyboardInterrupt):
            write(lake, "3")
    assert {path: table.folder.size(path) for path in table_of(lake, "documents").files()} == held
    left = set(table.folder.list("data"))
    assert left > set(held)
    write(lake, "3")
    assert set(table.folder.list("data")) == left
    assert {row["id"] for row in newest(lake, "documents")} == set(corpus(lake, "3"))


DYING = """
import os, signal, sys
from tasks.core.store import Store
from tasks.formats.lakes.delta import DeltaLake
from tasks.formats.lakes.iceberg import IcebergLake
from tasks.run.shell import main

left = int(sys.argv[1])

def counted(function):
    def call(*arguments, **named):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **named)
    return call

for kind, names in ((Store, ("write", "remove")), (DeltaLake, STEPS), (IcebergLake, STEPS)):
    for name in names:
        setattr(kind, name, counted(getattr(kind, name)))
sys.exit(main(sys.argv[2:]))
""".replace("STEPS", '("evolve", "commit", "forget", "head")')


@pytest.mark.soak
def test_killed_at_any_step_the_table_has_a_version_and_the_next_run_completes_it(
    asked: Recipe, tmp_path: Path
) -> None:
    document, *_ = corpus(asked, "1")
    before = asked.override({"place.store": str(tmp_path / "before"), "place.lake.tables": ["documents"]})
    shutil.copytree(open_store(asked).root, open_store(before).root, copy_function=os.link)
    take_down(asked, document)
    expected = {row["id"] for row in newest(asked, "documents")}
    for step in itertools.count(1):
        root = {"place.lake.root": str(tmp_path / f"lake-{step}"), "place.lake.tables": ["documents"]}
        write(before.override(root), "2")  # with what is taken down later
        killed = asked.override(root)
        command = ["lake", "--recipe", killed.text, "--version", "3"]
        died = subprocess.run([sys.executable, "-c", DYING, str(step), *command], capture_output=True, check=False)
        assert died.returncode in (0, -signal.SIGKILL), died.stderr
        assert newest(killed, "documents")
        assert main(command) == 0
        assert {row["id"] for row in newest(killed, "documents")} == expected
        assert check_lake(killed, open_store(killed))[0].present == 0
        if not died.returncode:
            break
    assert step > 8


def test_the_same_files_are_written_on_any_workers(
    whole: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(whole, "3")
    other = whole.override({"place.lake.root": str(tmp_path / "other")})
    monkeypatch.setattr(lakes, "open_engine", lambda *_: engine_of(-1))
    write(other, "3")
    for name in TABLES_WITH_URLS:
        one, two = table_of(whole, name), table_of(other, name)
        assert one.files() == two.files()
        assert [one.folder.read(path) for path in one.files()] == [two.folder.read(path) for path in two.files()]


def test_what_is_taken_down_is_in_no_version_that_can_be_read(asked: Recipe) -> None:
    document, *_ = corpus(asked, "1")
    before = {name: len(newest(asked, name)) for name in TABLES_WITH_URLS}
    take_down(asked, document)
    for name in TABLES_WITH_URLS:
        read = versions_of(asked, name)
        readable = [rows for rows in read if rows is not None]
        if isinstance(table_of(asked, name), IcebergLake):
            assert None not in read  # its snapshots have expired
        found = {(row.get("document", row["id"]), row["url"]) for rows in readable for row in rows}
        assert found
        assert not [one for one in found if one[0] == document or one[1] == TAKEN_URL]
        assert len(newest(asked, name)) < before[name]
    # It does not come back, and the next call changes nothing.
    assert [table.versions for table in write(asked, "3").values()] == [[]] * 4
    assert take_down_in_lake(asked, open_store(asked))[0].note == "nothing is taken down that it has"


def test_a_version_from_before_a_takedown_is_written_without_it(asked: Recipe, tmp_path: Path) -> None:
    other = asked.override({"place.lake.root": str(tmp_path / "other")})
    document, *_ = corpus(asked, "1")
    take_down(other, document)
    write(other, "3")
    for name in TABLES_WITH_URLS:
        rows = [row for version in versions_of(other, name) for row in version or ()]
        assert rows
        assert not [row for row in rows if row.get("document", row["id"]) == document or row["url"] == TAKEN_URL]
    assert {check.present for check in check_lake(other, open_store(other))} == {0}


def test_no_file_has_what_is_taken_down_as_duckdb_reads_them(asked: Recipe) -> None:
    document, *_ = corpus(asked, "1")
    take_down(asked, document)
    for name in TABLES_WITH_URLS:
        root = Path(table_of(asked, name).folder.root)
        column = "document" if name == "chunks" else "id"
        query = f"select {column}, url from read_parquet('{root}/data/*/*.parquet', union_by_name=true)"
        remaining = duckdb.sql(query).fetchall()
        assert remaining
        assert not [row for row in remaining if row[0] == document or row[1] == TAKEN_URL]
        others = [path.read_bytes() for path in root.rglob("*") if path.is_file() and path.suffix != ".parquet"]
        assert not [data for data in others if document.encode() in data or TAKEN_URL.encode() in data]


DUCKDB = [f"{name}==1.5.5" for name in ("duckdb", *(f"duckdb-extension-{one}" for one in ("avro", "delta", "iceberg")))]
"""The newest DuckDB of which PyPI has the extensions."""

IN_DUCKDB = """
import json, sys
import duckdb, duckdb_extensions
tables = duckdb.connect()
for name in ("avro", "delta", "iceberg"):
    duckdb_extensions.import_extension(name, con=tables)
    tables.execute(f"load {name}")
found = []
for scan in sys.argv[1:]:
    try:
        found.append(tables.sql(f"select id, url from {scan}").fetchall())
    except duckdb.IOException:
        found.append(None)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def other_duckdb(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Python of an environment with DuckDB's extensions for both formats."""
    folder = tmp_path_factory.mktemp("duckdb")
    uv("venv", "--quiet", folder)
    uv("pip", "install", "--quiet", "--python", folder / "bin/python", "duckdb-extensions==1.5.5", *DUCKDB)
    return str(folder / "bin/python")


def seen_by(python: str, table: LakeTable) -> list[set[tuple[str, str]] | None]:
    """Id and URL of the rows of every version, as DuckDB's extension for the format reads it; None: it cannot."""
    if isinstance(table, IcebergLake):
        place = table.catalog.load_table(table.identifier).metadata_location
        scans = [f"iceberg_scan('{place}', snapshot_from_id => {one.number})" for one in table.versions()]
    else:
        scans = [f"delta_scan('{table.folder.root}', version => {one.number})" for one in table.versions()]
    done = subprocess.run([python, "-c", IN_DUCKDB, *scans], capture_output=True, text=True, check=True)
    return [rows and {(id_, url) for id_, url in rows} for rows in json.loads(done.stdout.splitlines()[-1])]


@pytest.mark.soak
def test_duckdbs_extensions_read_every_version_and_none_with_what_is_taken_down(
    asked: Recipe, other_duckdb: str
) -> None:
    document, *_ = corpus(asked, "1")
    table = table_of(asked, "documents")
    before = [rows for rows in seen_by(other_duckdb, table) if rows]
    assert [{id_ for id_, _ in rows} for rows in before] == [set(corpus(asked, version)) for version in VERSIONS]
    take_down(asked, document)
    after = [rows for rows in seen_by(other_duckdb, table_of(asked, "documents")) if rows]
    assert after
    assert not [row for rows in after for row in rows if row[0] == document or row[1] == TAKEN_URL]
    assert len(after[-1]) == len(before[-1]) - 2


def test_the_audit_reads_every_file_of_the_lake_and_lists_its_tables(
    asked: Recipe, capsys: pytest.CaptureFixture[str]
) -> None:
    document, *_ = corpus(asked, "1")
    table = table_of(asked, "documents")
    (path,) = (one for one in table.files() if document in pq.read_table(table.folder.local(one))["id"].to_pylist())
    held = table.folder.read(path)
    take_down(asked, document)
    checks = check_lake(asked, open_store(asked))
    assert [(check.table, check.present) for check in checks] == [(name, 0) for name in TABLES_WITH_URLS]
    # A file of no version, as a writer leaves it that was killed.
    with table.folder.write("data/elsewhere.parquet") as file:
        file.write(held)
    main(["audit", "--recipe", asked.text])
    lines = {line.partition(" ")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "present: 1: run lake again" in lines[table.folder.root]
    assert "absent: " in lines[table_of(asked, "scores").folder.root]
    assert take_down_in_lake(asked, open_store(asked))[0].forgotten == 1
    assert check_lake(asked, open_store(asked))[0].present == 0


def test_a_lake_in_a_bucket_has_the_versions_and_forgets_what_is_taken_down(
    asked: Recipe, bucket: dict[str, str]
) -> None:
    format_ = lakes.lake_of(asked).format
    place = {**bucket, "format": format_, "tables": ["documents"]}
    if format_ == "delta":
        del place["catalog"]
    remote = asked.override({"place.lake": place})
    write(remote, "3")
    found = [{row["id"] for row in rows or ()} for rows in versions_of(remote, "documents")]
    assert found == [set(corpus(remote, version)) for version in VERSIONS]
    document, *_ = corpus(remote, "1")
    take_down(remote, document)
    readable = [rows for rows in versions_of(remote, "documents") if rows is not None]
    assert readable
    assert not [row for rows in readable for row in rows if row["id"] == document or row["url"] == TAKEN_URL]
    (check,) = check_lake(remote, open_store(remote))
    assert (check.present, check.files > 0) == (0, True)


def test_a_fault_of_the_bucket_is_one_line_and_the_next_run_completes_the_version(
    lake: Recipe, bucket: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {**lake.place.lake.model_dump(), **bucket}
    remote = lake.override({"place.lake": place if place["format"] == "iceberg" else {**place, "catalog": ""}})
    kind = type(table_of(remote, "documents"))

    def broken(*_: object) -> None:
        raise OSError("end of file\nbefore message length reached")

    with monkeypatch.context() as patch:
        patch.setattr(kind, "commit", broken)
        with pytest.raises(
            TransientError, match=r"^s3://.*/lake did not answer as it should \(end of file before .*\)\."
        ):
            write(remote, "1")
    assert write(remote, "1")["documents"].added == len(corpus(remote, "1"))


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ({"format": "delta", "root": "/lake", "catalog": "mine"}, "catalog: a Delta table has none: remove it"),
        ({"format": "parquet", "root": "/lake"}, "place.lake.format"),
        ({"format": "delta", "root": "/lake"}, "place.lake: this recipe makes no documents"),
    ],
)
def test_a_lake_that_cannot_be_written_is_refused_with_the_recipe(place: dict[str, str], problem: str) -> None:
    with pytest.raises(RecipeError, match=problem):
        find_recipe("smoke").override({"makes": ["tokens"], "place.lake": place})


def test_a_recipe_without_a_lake_is_told_so(tmp_path: Path) -> None:
    recipe = find_recipe("smoke").override({"place.store": str(tmp_path)})
    with pytest.raises(RecipeError, match=r"smoke has no \[place.lake\]\. Add the section"):
        write_lake(recipe, open_store(recipe), "1")


class Given:
    """Rows of a part, as they are."""

    def __init__(self, row: dict[str, Any], schema: pa.Schema) -> None:
        self.rows = pa.Table.from_pylist([row], schema)

    def read(self, part: str) -> pa.Table:
        return self.rows


@pytest.fixture
def bucket(separate_s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Root of a lake in a bucket, and name of an Iceberg catalog for it."""
    monkeypatch.setenv("PYICEBERG_CATALOG__MINE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__MINE__URI", f"sqlite:///{tmp_path}/catalog.db")
    if find_spec("pyiceberg"):  # which reads its environment when it is imported
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", import_module("pyiceberg.utils.config").Config())
    return {"root": f"{separate_s3}/lake", "catalog": "mine"}


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Root and catalog of a lake."""
    found: dict[str, str] = {"root": str(tmp_path), "catalog": ""}
    return request.getfixturevalue("bucket") if request.param == "bucket" else found


@pytest.fixture(params=FORMATS)
def table(request: pytest.FixtureRequest, place: dict[str, str]) -> LakeTable:
    """A table with one row, in a folder or a bucket."""
    table = open_table(request.param, place["root"], "mine/some", place["catalog"])
    put(table, 1, {"id": "a", "score": {"a": 1}}, SOME)
    return table


def put(table: LakeTable, number: int, row: dict[str, Any], schema: pa.Schema) -> None:
    """Commits a version with one more row."""
    part = NewPart(table.folder, f"data/{number}", str(number), Given(row, schema), "", table.evolve(schema), None)
    new = write_part(part)
    assert new
    table.commit([new], [], Head(number, number), {"sluice.version": str(number)})


def opened_again(table: LakeTable) -> LakeTable:
    """The table, as another writer looks at it."""
    other = copy(table)
    other._held = None
    return other


def rows_of(table: LakeTable) -> list[list[dict[str, Any]]]:
    """Rows of the versions of a table, without empty ones."""
    found = [read_version(table, version.number).to_pylist() for version in table.versions()]
    return [sorted(rows, key=lambda row: row["id"]) for rows in found if rows]


def test_columns_and_fields_of_columns_are_added_and_older_versions_stay_readable(table: LakeTable) -> None:
    score = pa.struct([("a", pa.int32()), ("b", pa.string())])
    wider = pa.schema([("id", pa.string()), ("score", score), ("new", pa.float64())])
    put(table, 2, {"id": "b", "score": {"a": 2, "b": "x"}, "new": 0.5}, wider)
    put(table, 3, {"id": "c", "score": {"a": 3}}, SOME)  # a version without the new columns
    first, *_, last = rows_of(table)
    assert [(row["id"], row["score"]["a"]) for row in first] == [("a", 1)]
    assert last == [
        {"id": "a", "score": {"a": 1, "b": None}, "new": None},
        {"id": "b", "score": {"a": 2, "b": "x"}, "new": 0.5},
        {"id": "c", "score": {"a": 3, "b": None}, "new": None},
    ]


@pytest.mark.parametrize(
    ("changed", "name"), [(("id", pa.int64()), "id"), (("score", pa.struct([("a", pa.string())])), r"score\.a")]
)
def test_a_column_with_another_type_is_refused_by_name(table: LakeTable, changed: Any, name: str) -> None:
    before = table.versions(), table.schema()
    with pytest.raises(InputError, match=rf"the column {name} of .*mine/some has the type .* its readers would break"):
        put(table, 2, {}, pa.schema([("more", pa.string()), changed]))
    assert (table.versions(), table.schema()) == before


def test_of_two_writers_one_is_refused(table: LakeTable) -> None:
    slow = opened_again(table)
    assert slow.head() == Head(1, 1)
    put(table, 2, {"id": "b", "score": {"a": 2}}, SOME)
    with pytest.raises(TransientError, match="another writer has committed"):
        put(slow, 2, {"id": "b", "score": {"a": 2}}, SOME)
    # A commit without files, as of a takedown, counts too.
    second = opened_again(table)
    assert second.head() == Head(2, 2)
    table.commit([], [], Head(2, 2), {})
    with pytest.raises(TransientError, match="another writer has committed"):
        put(second, 3, {"id": "c", "score": {"a": 2}}, SOME)
    assert {len(rows) for rows in rows_of(table)} == {1, 2}

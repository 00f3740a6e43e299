"""The lake of a recipe: tables that are the corpus as of the newest version, read by the libraries and by DuckDB."""

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError, TransientError
from tasks.formats.lakes.table import Head, LakeTable, open_table
from tasks.run import lake as lakes
from tasks.run.lake import TableReport, check_lake, take_down_in_lake, write_lake
from tasks.run.recipe import Recipe
from tasks.run.runner import open_store
from tasks.run.shell import main
from tests.conftest import engine_of
from tests.tasks.run.test_accumulated import CHANGED, GROWING, add, run
from tests.tasks.run.test_adopted import REFINE, small_recipe

STAGES = (*REFINE, "dedup_index", "tokenizer", "chunks")
VERSIONS = ("1", "2", "3")
FORMATS = [
    pytest.param("delta", marks=pytest.mark.oracle("deltalake")),
    pytest.param("iceberg", marks=pytest.mark.oracle("pyiceberg")),
]
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
    """The recipe with an empty lake of each format."""
    return grown.override({"place.lake": {"format": request.param, "root": str(tmp_path / "lake")}})


def write(recipe: Recipe, version: str) -> dict[str, TableReport]:
    return {table.table: table for table in write_lake(recipe, open_store(recipe), version)}


def table_of(recipe: Recipe, name: str) -> LakeTable:
    place = lakes.lake_of(recipe)
    return open_table(place.format, place.root, f"{recipe.name}/{name}", place.catalog)


def read_all(recipe: Recipe, name: str) -> list[list[dict[str, Any]] | None]:
    """Rows of every version that a table still lists, read by the library of its format; None if it cannot."""
    table, found = table_of(recipe, name), []
    for version in table.versions():
        try:
            found.append(read_version(recipe, table, version.number).to_pylist())
        except Exception:  # each library has its own errors
            found.append(None)
    return found


def read_version(recipe: Recipe, table: Any, number: int) -> pa.Table:
    if lakes.lake_of(recipe).format == "delta":
        from deltalake import DeltaTable

        return pa.table(DeltaTable(table.folder.root, version=number).scan())
    return table.catalog.load_table(table.identifier).scan(snapshot_id=number).to_arrow()


def corpus(recipe: Recipe, version: str) -> dict[str, str]:
    """Text by id of the documents of all versions up to one; of a URL the newest."""
    by_url: dict[str, dict[str, str]] = {}
    for one in VERSIONS[: VERSIONS.index(version) + 1]:
        documents = Artifact.open_at(open_store(recipe), ArtifactId("smoke/documents", one))
        for path in documents.files("kept/"):
            for row in documents.table(path, ["id", "url", "text"]).to_pylist():
                by_url[row["url"]] = {row["id"]: row["text"]}
    return {id_: text for documents_of_url in by_url.values() for id_, text in documents_of_url.items()}


def test_each_version_is_one_commit_and_every_version_can_be_read(lake: Recipe) -> None:
    assert write(lake, "1")["documents"].versions == ["1"]
    # What was not written before is written first.
    report = write(lake, "3")
    assert {name: table.versions for name, table in report.items()} == dict.fromkeys(report, ["2", "3"])
    assert report["documents"].added == 6 + 6 + CHANGED
    read = [{row["id"]: row["text"] for row in rows} for rows in read_all(lake, "documents") if rows]
    assert read == [corpus(lake, version) for version in VERSIONS]
    newest = read_all(lake, "documents")[-1]
    versions = {row["id"]: row["version"] for row in newest}
    assert {versions[id_] for id_ in corpus(lake, "1") if id_ in versions} == {"1"}
    chunks = {row["document"] for row in read_all(lake, "chunks")[-1]}
    assert chunks == set(corpus(lake, "3"))
    scores = {row["id"]: row for row in read_all(lake, "scores")[-1]}
    assert set(corpus(lake, "3")) < set(scores)
    assert all(row["gopher_quality"]["words"] > 0 for row in scores.values())
    funnel = read_all(lake, "funnel")[-1]
    assert {row["version"] for row in funnel} == set(VERSIONS)
    assert sum(row["documents"] for row in funnel if (row["version"], row["step"]) == ("1", "kept")) == 18


def test_duckdb_reads_the_newest_version(lake: Recipe) -> None:
    write(lake, "3")
    table = table_of(lake, "documents")
    paths = [table.folder.local(path) for path in table.files()]
    (found,) = duckdb.sql(
        f"select count(*), count(distinct id), min(length(text)) > 0 from read_parquet({paths})"
    ).fetchall()
    assert found == (len(corpus(lake, "3")), len(corpus(lake, "3")), True)


def test_a_version_that_the_table_has_is_not_written_again(lake: Recipe) -> None:
    write(lake, "3")
    before = {name: table_of(lake, name).versions() for name in ("documents", "scores", "funnel")}
    again = [table for version in VERSIONS for table in write(lake, version).values()]
    assert {(table.added, tuple(table.versions)) for table in again} == {(0, ())}
    assert {table.note for table in again} == {
        "has 3 already",
        "has a version newer than 1",
        "has a version newer than 2",
    }
    assert {name: table_of(lake, name).versions() for name in before} == before


def test_a_version_writes_its_new_rows_and_copies_only_files_that_lose_some(lake: Recipe) -> None:
    write(lake, "2")
    before = set(table_of(lake, "documents").files())
    report = write(lake, "3")["documents"]
    kept = before & set(table_of(lake, "documents").files())
    # The four changed documents are in files of version 2; none of version 1 is touched.
    assert {path for path in before if path.startswith("data/1/")} <= kept
    assert before - kept
    assert report.rewritten == len([path for path in before - kept]) - sum(
        all(row["url"] in {f"file://books/2-{n}.txt" for n in range(CHANGED)} for row in rows_in(lake, path))
        for path in before - kept
    )


def rows_in(recipe: Recipe, path: str) -> list[dict[str, Any]]:
    return pq.read_table(table_of(recipe, "documents").folder.local(path)).to_pylist()


def test_a_kill_before_the_commit_leaves_the_old_version_and_the_next_run_writes_the_same_files(
    lake: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(lake, "2")
    table = table_of(lake, "documents")
    held = {path: table.folder.size(path) for path in table.files()}

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(table), "commit", killed)
        write(lake, "3")
    assert {path: table.folder.size(path) for path in table.files()} == held
    left = set(table.folder.list("data"))
    write(lake, "3")
    assert set(table.folder.list("data")) == left
    assert {row["id"] for row in read_all(lake, "documents")[-1]} == set(corpus(lake, "3"))


def test_the_same_files_are_written_on_any_workers(
    lake: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(lake, "3")
    other = lake.override({"place.lake.root": str(tmp_path / "other")})
    monkeypatch.setattr(lakes, "open_engine", lambda *_: engine_of(-1))
    write(other, "3")
    for name in ("documents", "chunks", "scores"):
        one, two = table_of(lake, name), table_of(other, name)
        assert one.files() == two.files()
        assert [one.folder.read(path) for path in one.files()] == [two.folder.read(path) for path in two.files()]


def test_what_is_taken_down_is_in_no_version_that_can_be_read(lake: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    write(lake, "3")
    first, *_ = corpus(lake, "1")
    text = lake.override({"place.store": str(open_store(lake).root)}).text
    # Taken down in another store with the same artifacts, so that the other tests keep theirs.
    url = "file://books/2-5.txt"
    copy = Path(lakes.lake_of(lake).root).parent / "store"
    import shutil

    shutil.copytree(open_store(lake).root, copy)
    asked = lake.override({"place.store": str(copy)})
    text = asked.text
    named = ["--document", first, "--url", url, "--reason", "asked"]
    tables = ("documents", "chunks", "scores")
    before = {name: len(read_all(asked, name)[-1]) for name in tables}
    assert main(["takedown", "--recipe", text, *named]) == 0
    assert "files with taken-down rows removed" in capsys.readouterr().err

    def is_gone(row: dict[str, Any]) -> bool:
        return row.get("document", row["id"]) != first and row["url"] != url

    for name in tables:
        readable = [rows for rows in read_all(asked, name) if rows is not None]
        assert readable
        assert all(is_gone(row) for rows in readable for row in rows)
        assert len(readable[-1]) < before[name]
        files = str(Path(table_of(asked, name).folder.root, "data/*/*.parquet"))
        column = "document" if name == "chunks" else "id"
        remaining = duckdb.sql(f"select {column}, url from read_parquet('{files}', union_by_name=true)").fetchall()
        assert not [row for row in remaining if row[0] == first or row[1] == url]
        metadata = b"".join(
            path.read_bytes()
            for path in Path(table_of(asked, name).folder.root).rglob("*")
            if path.is_file() and "/data/" not in str(path)
        )
        assert url.encode() not in metadata
        assert first.encode() not in metadata
    checks = check_lake(asked, open_store(asked))
    assert {check.table: check.present for check in checks} == dict.fromkeys(tables, 0)
    assert all(0 < check.readable <= check.versions for check in checks)
    main(["audit", "--recipe", text])
    assert "absent: " in capsys.readouterr().out
    # It does not come back, and the next call changes nothing.
    again = write(asked, "3")
    assert [table.versions for table in again.values()] == [[]] * 4
    assert take_down_in_lake(asked, open_store(asked))[0].note == "nothing is taken down that it has"


def test_the_proof_finds_what_is_taken_down_in_a_file_of_no_version(lake: Recipe, tmp_path: Path) -> None:
    write(lake, "1")
    first, *_ = corpus(lake, "1")
    import shutil

    shutil.copytree(open_store(lake).root, tmp_path / "store")
    asked = lake.override({"place.store": str(tmp_path / "store")})
    table = table_of(asked, "documents")
    orphan = next(path for path in table.files() if first in {row["id"] for row in rows_in(asked, path)})
    held = table.folder.read(orphan)
    main(["takedown", "--recipe", asked.text, "--document", first, "--reason", "asked"])
    with table.folder.write("data/elsewhere.parquet") as file:
        file.write(held)
    (documents, *_) = check_lake(asked, open_store(asked))
    assert documents.present == 1
    assert first in documents.examples[0]
    (report, *_) = take_down_in_lake(asked, open_store(asked))
    assert report.forgotten == 1
    assert check_lake(asked, open_store(asked))[0].present == 0


@pytest.mark.parametrize("format_", FORMATS)
def test_columns_are_added_and_a_changed_type_is_refused_by_name(format_: str, tmp_path: Path) -> None:
    table = open_table(format_, str(tmp_path), "mine/some")
    rows = pa.table({"id": ["a"], "score": [{"a": 1}]}, schema=SOME)
    put(table, "one", rows, Head(1, 1))
    wider = pa.schema(
        [*SOME[:1], pa.field("score", pa.struct([("a", pa.int32()), ("b", pa.string())])), ("new", pa.float64())]
    )
    put(table, "two", pa.table({"id": ["b"], "score": [{"a": 2, "b": "x"}], "new": [0.5]}, schema=wider), Head(2, 2))
    recipe = small(format_, tmp_path)
    first, second = read_version(recipe, table, numbers(table)[0]), read_version(recipe, table, numbers(table)[-1])
    assert first.select(["id", "score"]).to_pylist()[0] == {
        "id": "a",
        "score": {"a": 1} | ({} if "b" not in str(first.schema) else {"b": None}),
    }
    assert sorted(second.to_pylist(), key=lambda row: row["id"]) == [
        {"id": "a", "score": {"a": 1, "b": None}, "new": None},
        {"id": "b", "score": {"a": 2, "b": "x"}, "new": 0.5},
    ]
    before = table.versions()
    for changed, name in (
        (pa.schema([("id", pa.int64())]), "id"),
        (pa.schema([("score", pa.struct([("a", pa.string())]))]), "score.a"),
    ):
        with pytest.raises(InputError, match=rf"the column {name} of .* has the type"):
            table.evolve(changed)
    assert table.versions() == before


def small(format_: str, root: Path) -> Any:
    return type("Recipe", (), {"place": type("Place", (), {"lake": lakes.LakePlace(format=format_, root=str(root))})})()


def numbers(table: LakeTable) -> list[int]:
    return [version.number for version in table.versions() if version.files]


def put(table: LakeTable, name: str, rows: pa.Table, head: Head) -> None:
    from tasks.formats.lakes.files import NewPart, write_part

    class Given:
        def read(self, part: str) -> pa.Table:
            return rows

    schema = table.evolve(rows.schema)
    new = write_part(NewPart(table.folder, f"data/{name}", name, Given(), name, schema, None))
    assert new
    table.commit([new], [], head, {"sluice.version": name})


@pytest.mark.parametrize("format_", FORMATS)
def test_of_two_writers_one_is_refused(format_: str, tmp_path: Path) -> None:
    table = open_table(format_, str(tmp_path), "mine/some")
    put(table, "one", pa.table({"id": ["a"], "score": [{"a": 1}]}, schema=SOME), Head(1, 1))
    slow = open_table(format_, str(tmp_path), "mine/some")
    loaded = slow._table()
    put(table, "two", pa.table({"id": ["b"], "score": [{"a": 1}]}, schema=SOME), Head(2, 2))
    slow._table = lambda: loaded  # type: ignore[method-assign]
    with pytest.raises(TransientError, match="another writer has committed"):
        slow.commit([], [], Head(2, 2), {})
    assert len(numbers(table)) == 2

"""Contract of tasks.extract.files: which files a source takes, and their rows."""

import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.errors import InputError
from tasks.extract.config import ExtractConfig, FileSource
from tasks.extract.files import read_file
from tasks.extract.row import Rejected, Row
from tasks.extract.sources import find_files

CONFIG = ExtractConfig()


def source(folder: Path, pattern: str = "**/*", kind: str = "text", **options: object) -> FileSource:
    return FileSource(name="src", kind=kind, path=f"{folder}/{pattern}", **options)


def rows(found: FileSource) -> list[Row]:
    return [row for file in find_files(found) for row in read_file(file, found, CONFIG)]


def put(folder: Path, **files: int) -> None:
    for name, size in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)


def test_files_are_found_in_name_order_without_the_excluded(tmp_path: Path) -> None:
    put(tmp_path, b__z=1, a=1, b__test__t=1, b__a_pb2=1)
    found = find_files(source(tmp_path, exclude=("**/test/*", "*_pb2")))
    assert [file.name for file in found] == ["a", "b/z"]


def test_placeholders_stand_for_the_running_python() -> None:
    library = FileSource(name="code", kind="text", path="{stdlib}/json/*.py")
    assert "json/decoder.py".removeprefix("json/") in [file.name for file in find_files(library)]
    packages = FileSource(name="packages", kind="metadata", path="{site_packages}/pydantic-*.dist-info/METADATA")
    assert len(find_files(packages)) == 1


def test_a_sample_is_spread_over_the_tree_and_the_same_everywhere(tmp_path: Path) -> None:
    left, right = tmp_path / "one", tmp_path / "two" / "deeper"
    for folder in (left, right):
        put(folder, **{f"{letter}__{number}": 10 for letter in "abcd" for number in range(25)})
    names = [file.name for file in find_files(source(left, max_files=20))]
    assert names == [file.name for file in find_files(source(right, max_files=20))]
    assert len(names) == 20
    assert {name[0] for name in names} == set("abcd")
    assert len(find_files(source(left, max_bytes=105))) == 10


def test_a_pattern_without_files_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r'source "src" matches no file'):
        find_files(source(tmp_path, "*.txt"))
    with pytest.raises(InputError, match="not absolute"):
        find_files(FileSource(name="src", kind="text", path="some/*.txt"))


def test_texts_have_urls_that_do_not_name_the_machine(tmp_path: Path) -> None:
    put(tmp_path, **{"a b__c": 5})
    (row,) = rows(source(tmp_path))
    assert row.url == "file://src/a%20b/c"
    assert row.content().title == "a b/c"
    assert str(tmp_path) not in repr((row.url, row.warc_file, row.content()))


def test_text_keeps_indentation_and_old_encodings(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes("def f():\r\n    return 'é'\r\n".encode("latin-1"))
    assert rows(source(tmp_path))[0].content().text == "def f():\n    return 'é'"


def test_large_and_binary_files_have_reasons(tmp_path: Path) -> None:
    put(tmp_path, big=101)
    (tmp_path / "bin").write_bytes(b"a\0b")
    big, binary = rows(source(tmp_path, max_file_bytes=100))
    assert big.refused == "too_large"
    with pytest.raises(Rejected, match="binary"):
        binary.content()


def test_package_descriptions_hold_summary_and_body(tmp_path: Path) -> None:
    (tmp_path / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: toy\nSummary: Builds boats – small ones\nLicense: MIT\n\n# Toy\n\n    code\n",
        "utf-8",
    )
    content = rows(source(tmp_path, "METADATA", "metadata"))[0].content()
    assert content.title == "toy"
    assert content.text == "toy: Builds boats – small ones\n\n# Toy\n\n    code"


def test_a_description_in_the_header_is_unfolded(tmp_path: Path) -> None:
    (tmp_path / "METADATA").write_text("Name: toy\nDescription: First\n        \n            code\n        last\n\n")
    assert rows(source(tmp_path, "METADATA", "metadata"))[0].content().text == "First\n\n    code\nlast"


def test_a_package_without_description_has_a_reason(tmp_path: Path) -> None:
    (tmp_path / "METADATA").write_text("Name: toy\nSummary: Builds boats\n\n")
    with pytest.raises(Rejected, match="no_description"):
        rows(source(tmp_path, "METADATA", "metadata"))[0].content()


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_json_lines_are_rows_with_reasons_for_the_broken(tmp_path: Path, ending: str) -> None:
    lines = [{"text": "one", "url": "http://a.example/"}, {"text": "two"}, {"no": 1}, {"text": 5}, [1]]
    data = "\n".join([*map(json.dumps, lines), "{broken", "", json.dumps({"text": "last \ud83d\ude00"})]).encode()
    path = tmp_path / f"d.jsonl{ending}"
    if ending == ".zst":
        with pa.CompressedOutputStream(str(path), "zstd") as out:
            out.write(data)
    else:
        path.write_bytes(gzip.compress(data) if ending else data)
    found = rows(source(tmp_path, "d.jsonl*", "jsonl"))
    assert [row.refused for row in found] == ["", "", "no_text", "no_text", "json_malformed", "json_malformed", ""]
    assert [row.url for row in found][:2] == ["http://a.example/", f"file://src/d.jsonl{ending}#1"]
    assert found[-1].content().text == "last \U0001f600"


def test_parquet_rows_are_read_by_the_named_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["a", None], "link": ["http://a.example/", None]}), tmp_path / "d.parquet")
    found = rows(source(tmp_path, "*.parquet", "parquet", text_field="body", url_field="link"))
    assert [(row.url, row.refused) for row in found] == [
        ("http://a.example/", ""),
        ("file://src/d.parquet#1", "no_text"),
    ]
    with pytest.raises(InputError, match='no column "text"'):
        rows(source(tmp_path, "*.parquet", "parquet"))


def test_foreign_warc_files_keep_the_place_of_each_record(tmp_path: Path, warc) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "cc.warc.gz").write_bytes(warc("http://a.example/1") + warc("http://a.example/2"))
    found = rows(source(tmp_path, "*.warc.gz", "warc"))
    assert [row.url for row in found] == ["http://a.example/1", "http://a.example/2"]
    assert {row.source for row in found} == {"src"}
    assert found[1].warc_file == "src/cc.warc.gz"
    assert found[1].warc_offset


def test_folders_and_dangling_links_are_no_files(tmp_path: Path) -> None:
    put(tmp_path, a=1, d__b=1)
    os.symlink(tmp_path / "gone", tmp_path / "link")
    assert [file.name for file in find_files(source(tmp_path))] == ["a", "d/b"]

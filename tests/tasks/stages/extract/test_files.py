"""Contract of tasks.stages.extract.files: the files of a source and their rows."""

import bz2
import gzip
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError, StoreError
from tasks.core.store import Store
from tasks.stages.extract.config import ExtractConfig, FileSource
from tasks.stages.extract.files import read_unit
from tasks.stages.extract.row import InputRow, Rejected
from tasks.stages.extract.sources import InputUnit, find_files, select_files
from tests.conftest import run_stage_in
from tests.s3_server import S3Server
from tests.tasks.stages.extract.conftest import record
from tests.tasks.stages.extract.test_stage import documents

CONFIG = ExtractConfig()


def source(folder: Path, pattern: str = "**/*", kind: str = "text", **options: object) -> FileSource:
    return FileSource(name="src", kind=kind, path=f"{folder}/{pattern}", **options)


def rows(found: FileSource) -> list[InputRow]:
    return [row for file in find_files(found) for row in read_unit(InputUnit(file, found), CONFIG)]


def extracted(folder: Path, given: FileSource) -> Artifact:
    return run_stage_in(
        folder / "store", "tasks.stages.extract.stage", ExtractConfig(files=(given,)), kind="extracted", version="dev"
    )


def put(folder: Path, **files: int) -> None:
    for name, size in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)


def test_files_are_found_in_name_order_without_the_excluded(tmp_path: Path) -> None:
    put(tmp_path, b__z=1, a=1, b__test__t=1, b__a_pb2=1)
    found = find_files(source(tmp_path, exclude=("**/test/*", "*_pb2")))
    assert [file.name for file in found] == ["a", "b/z"]


def test_saved_pages_are_read_as_captures_are(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    text = "The ship went to sea with a crew of nine, and none of them had seen the ice before that winter. " * 4
    page = f"<html lang=en><title>Ice</title>{{}}<body><nav><a href=/>Home</a></nav><article><p>{text}</p></article>"
    (tmp_path / "in" / "a.html").write_text(page.format("<link rel=license href=https://l.example/>"))
    (tmp_path / "in" / "b.htm").write_text(page.format("<meta name=robots content=noindex>"))
    xhtml = f'<html xmlns="http://www.w3.org/1999/xhtml"><head><title/></head><body><p>{text}</p></body></html>'
    (tmp_path / "in" / "c.xhtml").write_text(xhtml)
    (tmp_path / "in" / "d.xhtml.gz").write_bytes(gzip.compress(xhtml.encode()))
    made = extracted(tmp_path, source(tmp_path / "in", kind="html"))
    found = {row["url"]: row for row in documents(made)}
    assert {url: row["text"] for url, row in found.items()} == {
        "file://src/a.html": text.strip(),
        "file://src/c.xhtml": text.strip(),
        "file://src/d.xhtml.gz": text.strip(),
    }
    first = found["file://src/a.html"]
    assert (first["title"], first["language_hint"], first["licence"]) == ("Ice", "en", "https://l.example/")
    assert made.record.rejected == {"noindex": 1}


def test_a_glob_that_excludes_no_file_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(tmp_path / "in", a=300, test__t=300)
    given = source(tmp_path / "in", exclude=("test/**", "tset/**", "[!a-z]*", "x[]y]", "[[]z"))
    files, unmatched = select_files(given)
    assert [file.name for file in files] == ["a"]
    assert unmatched == ["tset/**", "[!a-z]*", "x[]y]", "[[]z"]
    run_stage_in(tmp_path / "store", "tasks.stages.extract.stage", ExtractConfig(files=(given,)), kind="extracted")
    assert 'exclude of "src": the glob "tset/**" matches no file' in caplog.text


@pytest.mark.parametrize(
    ("glob", "problem"),
    [
        ("/data/test/*", "below the fixed folder"),
        ("./test/*", "below the fixed folder"),
        ("{stdlib}/test/*", "below the fixed folder"),
        ("s3://bucket/test/*", "below the fixed folder"),
        ("test/", r"add \*\* for all files"),
        ("", r"add \*\* for all files"),
        ("[a-z*.py", r"has a \[ without \]"),
        ("a[]b", r"has a \[ without \]"),
    ],
)
def test_a_glob_that_cannot_match_is_refused(tmp_path: Path, glob: str, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        source(tmp_path, exclude=("*.md", glob))


def test_placeholders_refer_to_the_running_python() -> None:
    library = FileSource(name="code", kind="text", path="{stdlib}/json/*.py")
    assert "json/decoder.py".removeprefix("json/") in [file.name for file in find_files(library)]
    packages = FileSource(name="packages", kind="metadata", path="{site_packages}/pydantic-*.dist-info/METADATA")
    assert len(find_files(packages)) == 1


def test_a_sample_is_spread_over_the_tree_and_reproducible(tmp_path: Path) -> None:
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


def test_urls_of_texts_do_not_contain_local_paths(tmp_path: Path) -> None:
    put(tmp_path, **{"a b__c": 5})
    (row,) = rows(source(tmp_path))
    assert row.url == "file://src/a%20b/c"
    assert row.content().title == "a b/c"
    assert str(tmp_path) not in repr((row.url, row.warc_file, row.content()))


def test_text_keeps_indentation_and_old_encodings(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes("def f():\r\n    return 'é'\r\n".encode("latin-1"))
    assert rows(source(tmp_path))[0].content().text == "def f():\n    return 'é'"


def test_a_text_in_utf_16_is_a_text(tmp_path: Path) -> None:
    (tmp_path / "wide.txt").write_bytes("Mäßig, aber schön.".encode("utf-16"))
    (row,) = rows(source(tmp_path))
    assert row.content().text == "Mäßig, aber schön."


def test_large_and_binary_files_have_reasons(tmp_path: Path) -> None:
    put(tmp_path, big=101)
    (tmp_path / "bin").write_bytes(b"a\0b")
    big, binary = rows(source(tmp_path, max_file_bytes=100))
    assert big.refused == "too_large"
    with pytest.raises(Rejected, match="binary"):
        binary.content()


def test_package_descriptions_have_summary_and_body(tmp_path: Path) -> None:
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


def compressed(data: bytes, ending: str) -> bytes:
    if ending == ".zst":
        return bytes(pa.compress(data, "zstd", asbytes=True))
    return {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}[ending](data)


@pytest.mark.parametrize("ending", ["", ".gz", ".zst", ".bz2"])
def test_compressed_texts_and_descriptions_are_unpacked(tmp_path: Path, ending: str) -> None:
    (tmp_path / f"a.txt{ending}").write_bytes(compressed(b"plain words", ending))
    (tmp_path / f"METADATA{ending}").write_bytes(compressed(b"Name: toy\n\nBuilds boats", ending))
    assert rows(source(tmp_path, "a*"))[0].content().text == "plain words"
    assert rows(source(tmp_path, "METADATA*", "metadata"))[0].content().text == "Builds boats"


def test_a_text_too_large_after_decompression_or_damaged_has_a_reason(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"a" * 5000))
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"some text")[:-9])
    (tmp_path / "c.bz2").write_bytes(b"no such compression")
    (tmp_path / "d.zst").write_bytes(compressed(b"some text", ".zst")[:-2])
    found = rows(source(tmp_path, max_file_bytes=4000))
    assert [row.refused for row in found] == ["too_large", "content_coding", "content_coding", "content_coding"]


@pytest.mark.parametrize("ending", ["", ".gz", ".zst", ".bz2"])
def test_json_lines_become_rows_and_broken_ones_have_reasons(tmp_path: Path, ending: str) -> None:
    lines = [{"text": "one", "url": "http://a.example/"}, {"text": "two"}, {"no": 1}, {"text": 5}, [1]]
    data = "\n".join([*map(json.dumps, lines), "{broken", "", json.dumps({"text": "last \ud83d\ude00"})]).encode()
    path = tmp_path / f"d.jsonl{ending}"
    path.write_bytes(compressed(data, ending))
    found = rows(source(tmp_path, "d.jsonl*", "jsonl"))
    assert [row.refused for row in found] == ["", "", "no_text", "no_text", "json_malformed", "json_malformed", ""]
    assert [row.url for row in found][:2] == ["http://a.example/", f"file://src/d.jsonl{ending}#1"]
    assert found[-1].content().text == "last \U0001f600"


def test_a_warc_file_with_a_non_utf8_name_is_read(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.warc.gz")).write_bytes(record())
    (row,) = rows(source(tmp_path, "*.gz", "warc"))
    assert row.warc_file == "src/caf%E9.warc.gz"


def test_an_overlong_url_is_refused_before_processing(tmp_path: Path) -> None:
    endless = "http://a.example/" + "a\u0301\u0316" * 500_000
    held = [{"text": "a", "url": endless}, {"text": "b", "url": "http://b.example/"}]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held))
    found = rows(source(tmp_path, "*.jsonl", "jsonl"))
    assert [(row.url, row.refused) for row in found] == [
        ("file://src/d.jsonl#0", "url_invalid"),
        ("http://b.example/", ""),
    ]


def test_parquet_rows_that_decompress_to_gigabytes_are_read_one_at_a_time(tmp_path: Path) -> None:
    texts = pa.array(["x" * 4_000_000, "y" * 4_000_001]).take(pa.array([0] * 200 + [1, 0]))
    pq.write_table(pa.table({"text": texts}), tmp_path / "d.parquet", dictionary_pagesize_limit=1 << 26)
    assert (tmp_path / "d.parquet").stat().st_size < 1_000_000
    program = (
        "import sys; from tasks.stages.extract.config import ExtractConfig, FileSource;"
        "from tasks.stages.extract.files import read_unit; from tasks.stages.extract.sources import *;"
        "source = FileSource(name='src', kind='parquet', path=sys.argv[1]); (file,) = find_files(source);"
        "rows = read_unit(InputUnit(file, source), ExtractConfig(max_payload_bytes=4_000_000), quick=True);"
        "refused = [number for number, row in enumerate(rows) if row.refused == 'too_large'];"
        "(peak,) = [line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')];"
        "print(refused, peak)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "d.parquet")]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    refused, peak = done.stdout.rsplit(maxsplit=1)
    assert refused == "[200]"
    assert int(peak) < 300_000


def test_parquet_rows_are_read_by_the_named_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["a", None], "link": ["http://a.example/", None]}), tmp_path / "d.parquet")
    found = rows(source(tmp_path, "*.parquet", "parquet", text_field="body", url_field="link"))
    assert [(row.url, row.refused) for row in found] == [
        ("http://a.example/", ""),
        ("file://src/d.parquet#1", "no_text"),
    ]
    with pytest.raises(InputError, match='no column "text"'):
        rows(source(tmp_path, "*.parquet", "parquet"))


PROSE = "A row that holds a text like any other, long enough to be a document of the corpus. " * 4
NOT_UTF8 = pa.array([PROSE.encode(), b"M\xfcller " * 40]).view(pa.string())


@pytest.mark.parametrize(
    ("column", "kept", "left_out"),
    [
        (pa.array([1, None], pa.timestamp("ns")), '{"m":"1970-01-01T00:00:00.000000001"}', 0),
        (pa.array([1, None], pa.timestamp("us", "Mars/Olympus")), '{"m":"1970-01-01T00:00:00.000001+00:00"}', 0),
        (pa.array([253402300800, None], pa.timestamp("s")), '{"m":"+10000-01-01T00:00:00"}', 0),
        (pa.array([1, None], pa.duration("ns")), '{"m":1e-09}', 0),
        (NOT_UTF8.take(pa.array([1, None])), None, 1),
        (pa.StructArray.from_arrays([pa.array([1, 2])] * 2, names=["a", "a"]), None, 2),
    ],
)
def test_a_metadata_value_that_python_lacks_costs_no_document(
    tmp_path: Path, column: pa.Array, kept: str | None, left_out: int
) -> None:
    pq.write_table(pa.table({"text": [f"{n} {PROSE}" for n in "ab"], "m": column}), tmp_path / "d.parquet")
    made = extracted(tmp_path, source(tmp_path, "*.parquet", "parquet"))
    (part,) = made.files("documents/")
    assert made.table(part).sort_by("url").column("metadata").to_pylist() == [kept, None]
    assert next(iter(made.parts)).metrics.get("metadata_unreadable", 0) == left_out


def test_of_two_columns_of_one_name_metadata_has_neither_and_a_text_is_refused(tmp_path: Path) -> None:
    columns = [pa.array([f"{n} {PROSE}" for n in "ab"]), pa.array([1, 2]), pa.array([3, 4]), pa.array([5, 6])]
    pq.write_table(pa.table(columns, names=["text", "m", "m", "n"]), tmp_path / "d.parquet")
    made = extracted(tmp_path, source(tmp_path, "*.parquet", "parquet"))
    (part,) = made.files("documents/")
    assert made.table(part).sort_by("url").column("metadata").to_pylist() == ['{"n":5}', '{"n":6}']
    assert next(iter(made.parts)).metrics["metadata_unreadable"] == 2
    with pytest.raises(InputError, match='has several columns "m"'):
        rows(source(tmp_path, "*.parquet", "parquet", text_field="m"))


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary()),
        pa.dictionary(pa.int32(), pa.string()),
    ],
)
def test_a_text_of_any_type_that_is_utf8_is_read_and_another_is_rejected_alone(
    tmp_path: Path, kind: pa.DataType
) -> None:
    texts = (
        NOT_UTF8.dictionary_encode()
        if pa.types.is_dictionary(kind)
        else NOT_UTF8.cast(options=pc.CastOptions(kind, allow_invalid_utf8=True))
    )
    pq.write_table(pa.table({"text": texts, "url": pa.array([b"http://a.example/", b"\xff"])}), tmp_path / "d.parquet")
    made = extracted(tmp_path, source(tmp_path, "*.parquet", "parquet"))
    (part,) = made.files("documents/")
    assert made.table(part, columns=["url", "text"]).to_pylist() == [
        {"url": "http://a.example/", "text": PROSE.strip()}
    ]
    assert made.record.rejected == {"text_not_utf8": 1}


def test_a_url_that_is_not_utf8_is_a_reason(tmp_path: Path) -> None:
    urls = pa.array([b"http://a.example/\xff"]).view(pa.string())
    pq.write_table(pa.table({"text": [PROSE], "url": urls}), tmp_path / "d.parquet")
    assert [row.refused for row in rows(source(tmp_path, "*.parquet", "parquet"))] == ["url_invalid"]


def test_foreign_warc_files_keep_the_offset_of_each_record(tmp_path: Path, warc) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "cc.warc.gz").write_bytes(warc("http://a.example/1") + warc("http://a.example/2"))
    found = rows(source(tmp_path, "*.warc.gz", "warc"))
    assert [row.url for row in found] == ["http://a.example/1", "http://a.example/2"]
    assert {row.source for row in found} == {"src"}
    assert found[1].warc_file == "src/cc.warc.gz"
    assert found[1].warc_offset


def test_foreign_warc_files_can_be_bzip2_or_uncompressed(tmp_path: Path, warc) -> None:  # type: ignore[no-untyped-def]
    data = warc("http://a.example/1", compressed=False) + warc("http://a.example/2", compressed=False)
    (tmp_path / "a.warc").write_bytes(data)
    (tmp_path / "b.warc.bz2").write_bytes(bz2.compress(data))
    (tmp_path / "c.warc.bz2").write_bytes(bz2.compress(data)[:-30])
    for name in ("a.warc", "b.warc.bz2"):
        assert [row.url for row in rows(source(tmp_path, name, "warc"))] == ["http://a.example/1", "http://a.example/2"]
    with pytest.raises(InputError, match=r"c\.warc\.bz2 of the file source"):
        rows(source(tmp_path, "c*", "warc"))


def test_captures_of_a_wacz_file_name_its_member_and_their_offset_in_it(s3: S3Server, tmp_path: Path, warc) -> None:  # type: ignore[no-untyped-def]
    first = warc("http://a.example/1")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("datapackage.json", "{}")
        archive.writestr("archive/one.warc.gz", first + warc("http://a.example/2"))
        archive.writestr("archive/../\x1btwo.warc", warc("http://a.example/3", compressed=False), zipfile.ZIP_DEFLATED)
    (tmp_path / "site.wacz").write_bytes(packed.getvalue())
    with Store("s3://sluice/test_files/wacz").write("site.wacz") as file:
        file.write(packed.getvalue())
    expected = [
        ("http://a.example/1", "src/site.wacz/archive/one.warc.gz", 0),
        ("http://a.example/2", "src/site.wacz/archive/one.warc.gz", len(first)),
        ("http://a.example/3", "src/site.wacz/archive/../two.warc", 0),
    ]
    remote = FileSource(name="src", kind="warc", path="s3://sluice/test_files/wacz/*.wacz")
    for one in (source(tmp_path, "*.wacz", "warc"), remote):
        assert [(row.url, row.warc_file, row.warc_offset) for row in rows(one)] == expected
    (tmp_path / "cut.wacz").write_bytes(packed.getvalue()[:-9])
    with pytest.raises(InputError, match=r"cut\.wacz of the file source"):
        rows(source(tmp_path, "cut.wacz", "warc"))


def test_the_same_patterns_select_files_on_an_object_store(s3: S3Server, warc) -> None:  # type: ignore[no-untyped-def]
    url = "s3://sluice/test_files/dumps"
    store = Store(url)
    texts = {"a.jsonl.gz": gzip.compress(b'{"text": "one"}\n{"text": "two"}'), "deep/er/b.jsonl": b'{"text": "three"}'}
    for name, data in {**texts, "c.txt": b"plain words", "cc/x.warc.gz": warc("http://a.example/1")}.items():
        with store.write(name) as file:
            file.write(data)
    lines = FileSource(name="src", kind="jsonl", path=f"{url}/**/*.jsonl*")
    assert [file.name for file in find_files(lines)] == ["a.jsonl.gz", "deep/er/b.jsonl"]
    assert [row.content().text for row in rows(lines)] == ["one", "two", "three"]
    assert rows(lines)[0].url == "file://src/a.jsonl.gz#0"
    flat = FileSource(name="src", kind="text", path=f"{url}/[a-d].?xt")
    assert [(file.name, file.bytes) for file in find_files(flat)] == [("c.txt", 11)]
    assert rows(flat)[0].content().text == "plain words"
    crawl = FileSource(name="src", kind="warc", path=f"{url}/cc/x.warc.gz")
    assert [(row.url, row.warc_file) for row in rows(crawl)] == [("http://a.example/1", "src/x.warc.gz")]
    with pytest.raises(InputError, match="matches no file below"):
        find_files(FileSource(name="src", kind="text", path=f"{url}/*.md"))


def test_an_object_is_pinned_as_a_local_path(s3: S3Server) -> None:
    url = "s3://sluice/test_files/one"
    with Store(url).write("a.txt") as file:
        file.write(b"plain words")
    (found,) = find_files(FileSource(name="src", kind="text", path=f"{url}/a.txt"))
    assert Path(found.local()).read_bytes() == b"plain words"
    assert found.local() == found.local()


def test_a_url_with_an_unsupported_scheme_is_an_error() -> None:
    with pytest.raises(StoreError, match="https://"):
        find_files(FileSource(name="src", kind="text", path="https://a.example/*.txt"))


def test_folders_and_dangling_links_are_not_files(tmp_path: Path) -> None:
    put(tmp_path, a=1, d__b=1)
    os.symlink(tmp_path / "gone", tmp_path / "link")
    assert [file.name for file in find_files(source(tmp_path))] == ["a", "d/b"]

"""Rows of JSON files: format detection, equal rows in every layout, and the cost of damage."""

import bz2
import gzip
import io
import json
import random
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.core.errors import InputError
from tasks.formats.documents.external_files import find, packing_by_head
from tasks.formats.documents.json_rows import detect_form, open_text, parsed_rows, rows, value_ends

ROWS = [
    {"text": 'a "b" \\ {c} [d], e', "n": 1},
    {"text": "line\nbreak ü – 中文", "more": {"x": [1, {"y": []}]}},
    {"text": "", "none": None},
]


def zipped(**members: bytes) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return held.getvalue()


def in_lines(values: list[object]) -> str:
    return "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)


SHAPES: dict[str, Callable[[list[object]], str]] = {
    "lines": in_lines,
    "lines with blank ones": lambda values: "\n\n" + in_lines(values).replace("\n", "\r\n\r\n"),
    "lines with commas": lambda values: in_lines(values).replace("}\n", "},\n"),
    "an array in one line": lambda values: json.dumps(values, ensure_ascii=False),
    "an array in lines": lambda values: "[" + ",\n".join(json.dumps(value) for value in values) + "]\n",
    "an array, indented": lambda values: json.dumps(values, indent=2, ensure_ascii=False),
    "objects, indented": lambda values: "\n".join(json.dumps(value, indent=4) for value in values),
    "objects side by side": lambda values: "".join(json.dumps(value) for value in values),
    "arrays, one per line": lambda values: "".join(json.dumps([value]) + "\n" for value in values),
}


def read(path: Path, limit: int | None = None) -> list[object]:
    form = detect_form(str(path), path.name)
    with open_text(str(path), form) as text:
        return [row and json.loads(row) for row in rows(text, form, limit) if row is None or row.strip()]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_every_layout_and_encoding_of_json_gives_the_same_rows(tmp_path: Path, shape: str, encoding: str) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(SHAPES[shape](list(ROWS)).encode(encoding))
    assert read(path) == ROWS


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "zstd": lambda data: bytes(pa.compress(data, "zstd", asbytes=True)),
    "zip": lambda data: zipped(**{"deep/d.json": data, "README.txt": b"of the rows", "__MACOSX/d.json": b"x"}),
    "zip of gzip": lambda data: zipped(d=gzip.compress(data)),
}


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("name", ["d.jsonl", "d.jsonl.gz", "d.zst"])
def test_compression_is_detected_from_the_bytes_and_not_from_the_name(tmp_path: Path, packed: str, name: str) -> None:
    for encoding in ("utf-8", "utf-16"):
        (tmp_path / name).write_bytes(PACKED[packed](in_lines(list(ROWS)).encode(encoding)))
        assert read(tmp_path / name) == ROWS


def test_a_plain_file_with_a_compressed_suffix_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl.gz").write_text(in_lines(list(ROWS)))
    (file,) = find(f"{tmp_path}/*", "us")
    with pytest.raises(InputError, match=r"d\.jsonl\.gz cannot be read"):
        list(parsed_rows(file))


def test_the_members_of_a_zip_file_are_read_in_order(tmp_path: Path) -> None:
    members = {"b.jsonl": b'{"n": 1}\n{"n": 2}', "a.json": b'[{"n": 3}, {"n": 4}]'}
    (tmp_path / "d.zip").write_bytes(zipped(**members, **{"c.ndjson": '{"n": 5}'.encode("utf-16")}))
    assert read(tmp_path / "d.zip") == [{"n": number} for number in (1, 2, 3, 4, 5)]


def overlapping() -> bytes:
    """A zip file whose directory names one member a hundred times."""
    held = bytearray(zipped(a=b"0" * 100_000))
    at = held.index(b"PK\x01\x02")
    entry, end = held[at : held.index(b"PK\x05\x06")], held[held.index(b"PK\x05\x06") :]
    end[8:10] = end[10:12] = (100).to_bytes(2, "little")
    end[12:16] = (100 * len(entry)).to_bytes(4, "little")
    return bytes(held[:at] + entry * 100 + end)


def encrypted() -> bytes:
    held = bytearray(zipped(a=b"{}"))
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        held[held.index(mark) + flags] |= 1
    return bytes(held)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (zipped(**{"a.txt": b"{}", "b.csv": b"{}"}), "none of the 2 files in the zip file has an expected suffix"),
        (zipped(a=zipped(b=b"{}")), "is a zip file itself"),
        (zipped(), "holds no file"),
        (zipped(a=b"{}" * 99)[:-30], "cannot be unpacked"),
        (overlapping(), "members of the zip file overlap"),
        (encrypted(), "encrypted"),
        (b'{"text": "a",\n "more": {"b": 1}\n', "ends inside the object that begins at byte 0"),
        (b'[{"text": "a"}, {"text": "b', "ends inside the object that begins at byte 16"),
    ],
)
def test_an_unreadable_file_is_an_error_with_its_cause(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "d.jsonl").write_bytes(data)
    (file,) = find(f"{tmp_path}/d.jsonl", "us")
    with pytest.raises(InputError, match=said):
        list(parsed_rows(file))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"PAR1" + b"\0" * 99, r'a Parquet file\. Set kind = "parquet"'),
        (b"SQLite format 3\0" + b"\0" * 99, "an SQLite database"),
        (b"\xfd7zXZ\0" + b"\0" * 99, "an xz file"),
        (gzip.compress(b"a" + b"\0" * 256 + b"ustar" + b"\0" * 99), r"a tar archive\. Unpack it"),
        (b"<!DOCTYPE html><html>", "HTML or XML"),
        (b"WARC/1.0\r\n", r'Set kind = "warc"'),
    ],
)
def test_a_file_of_another_format_is_named(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "d.jsonl").write_bytes(data)
    with pytest.raises(InputError, match=rf"d\.jsonl holds no JSON: it is .*{said}|{said}"):
        detect_form(str(tmp_path / "d.jsonl"), "d.jsonl")


def test_a_damaged_line_costs_only_itself(tmp_path: Path) -> None:
    lines = [b'{"a": {"b": 1}', b'{"text": "x"}', b'rest"}', b'{"text": "y"}', b'{"half']
    (tmp_path / "d.jsonl").write_bytes(b"\n".join(lines))
    form = detect_form(str(tmp_path / "d.jsonl"), "d.jsonl")
    with open_text(str(tmp_path / "d.jsonl"), form) as text:
        assert list(rows(text, form, None)) == lines


def test_damage_between_values_is_one_row_and_the_others_are_read(tmp_path: Path) -> None:
    broken = b'[{"text": "a"}, oops {"text": "b"}, {"text": "c\n"}, {"text": "d"}]'
    found = [row for _, row in value_ends(io.BytesIO(broken), None)]
    assert found[:3] == [b'{"text": "a"}', b"oops", b'{"text": "b"}']
    assert found[-1] == b'{"text": "d"}'
    assert b'{"text": "c' in found


def test_a_value_of_any_length_is_skipped_in_little_memory(tmp_path: Path) -> None:
    import tracemalloc

    with gzip.open(tmp_path / "d.json", "wb", compresslevel=1) as file:
        file.write(b'[{"text": "')
        for _ in range(60):
            file.write(b"x" * (1 << 20))
        file.write(b'"}, {"text": "b"}]')
    tracemalloc.start()
    assert read(tmp_path / "d.json", limit=1000) == [None, {"text": "b"}]
    assert tracemalloc.get_traced_memory()[1] < 12 << 20
    tracemalloc.stop()


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=8),
    lambda held: st.lists(held, max_size=3) | st.dictionaries(st.text(max_size=4), held, max_size=3),
    max_leaves=8,
)


@given(values=st.lists(st.dictionaries(st.text(max_size=4), JSON, max_size=3), max_size=5), seed=st.integers(0, 99))
def test_values_are_found_at_any_block_boundary(values: list[object], seed: int) -> None:
    draw = random.Random(seed)
    data = json.dumps(values, indent=draw.choice([None, 1]), ensure_ascii=draw.random() < 0.5).encode()

    class Pieces(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(draw.randrange(1, 9))

    found = list(value_ends(Pieces(data), None))
    assert [json.loads(row or b"null") for _, row in found] == values
    assert [data[:end] for end, _ in found] == [data[:end] for end, _ in value_ends(io.BytesIO(data), 0)]


@given(data=st.binary(max_size=200), seed=st.integers(0, 99))
def test_no_byte_of_damaged_values_is_lost(data: bytes, seed: int) -> None:
    data = b'{"a": 1}' + data.replace(b"{", b"(")
    found = [row for _, row in value_ends(io.BytesIO(data), None)]
    outside = bytes(data).translate(None, b" \t\r\n\x0b\x0c,[]")
    assert b"".join(row or b"" for row in found).translate(None, b" \t\r\n\x0b\x0c,[]") == outside


def test_magic_bytes_are_those_of_the_formats() -> None:
    assert packing_by_head(gzip.compress(b"")) == "gzip"
    assert packing_by_head(zlib.compress(b"")) is None
    assert packing_by_head(bz2.compress(b"")) == packing_by_head(bz2.compress(b"a")) == "bz2"
    assert packing_by_head(b"BZh9 is a word") is None

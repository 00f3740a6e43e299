"""Files outside the store: patterns and suffixes mean the same locally and on an object store."""

import bz2
import codecs
import gzip
from pathlib import Path

import pyarrow as pa
import pytest

from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.documents.external_files import find
from tasks.formats.documents.json_rows import parsed_rows
from tests.s3_server import S3Server

TEXT = b'{"n": 1}\n\n{"n": "\xc3\xa9"}\n'


def written(folder: Path, files: dict[str, bytes]) -> str:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return str(folder)


def test_a_star_matches_in_its_folder_and_two_match_recursively(tmp_path: Path, s3: S3Server) -> None:
    files = {name: name.encode() for name in ("a.txt", "b.md", "deep/c.txt", "deep/er/d.txt")}
    url = "s3://sluice/test_sources"
    for name, data in files.items():
        with Store(url).write(name) as file:
            file.write(data)
    for place in (written(tmp_path, files), url):
        names = {pattern: [file.name for file in find(f"{place}/{pattern}", "us")] for pattern in ("*.txt", "**/*.txt")}
        assert names == {"*.txt": ["a.txt"], "**/*.txt": ["a.txt", "deep/c.txt", "deep/er/d.txt"]}
        (found,) = find(f"{place}/deep/c.txt", "us")
        assert (found.path, found.name, found.bytes) == (f"{place}/deep/c.txt", "c.txt", 10)
        assert Path(found.local()).read_bytes() == b"deep/c.txt"


def test_the_suffix_determines_the_compression(tmp_path: Path) -> None:
    packed = {"": TEXT, ".gz": gzip.compress(TEXT), ".bz2": bz2.compress(TEXT), ".zst": pa.compress(TEXT, "zstd")}
    written(tmp_path, {f"rows.jsonl{ending}": bytes(data) for ending, data in packed.items()})
    found = find(f"{tmp_path}/rows*", "us")
    assert len(found) == 4
    for file in found:
        assert list(parsed_rows(file)) == [(1, {"n": 1}), (3, {"n": "é"})]


def test_a_byte_order_mark_is_not_part_of_the_first_line(tmp_path: Path) -> None:
    (file,) = find(f"{written(tmp_path, {'marked.jsonl': codecs.BOM_UTF8 + TEXT})}/marked.jsonl", "us")
    assert list(parsed_rows(file)) == [(1, {"n": 1}), (3, {"n": "é"})]


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("cut.gz", gzip.compress(bytes(range(256)) * 100)[:-20], r"cut\.gz cannot be read"),
        ("not.zst", b"plain text", r"not\.zst cannot be read"),
        ("half.jsonl", b'{"a": 1}\n{"a":', r"half\.jsonl, line 2: not JSON"),
        ("latin.jsonl", '{"a": "caf\u00e9"}'.encode("latin-1"), r"latin\.jsonl, line 1: not JSON .*utf-8"),
        ("deep.jsonl", b"[" * 100_000, r"deep\.jsonl, line 1: not JSON"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    (file,) = find(f"{written(tmp_path, {name: data})}/{name}", "us")
    with pytest.raises(InputError, match=said):
        list(parsed_rows(file))


def test_a_pattern_without_matches_is_named_with_its_source(tmp_path: Path, s3: S3Server) -> None:
    with pytest.raises(InputError, match=f'"{tmp_path}/none.\\*" of the reference "wiki" matches no file'):
        find(f"{tmp_path}/none.*", 'the reference "wiki"')
    with pytest.raises(InputError, match="matches no file below s3://sluice/none"):
        find("s3://sluice/none/*.txt", "us")
    with pytest.raises(InputError, match="is not absolute"):
        find("here/*.txt", "us")

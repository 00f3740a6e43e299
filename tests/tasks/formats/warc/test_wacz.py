"""The WARC files of a WACZ file are read at their places, whatever the zip file says."""

import gzip
import io
import struct
import zipfile

import pytest

from tasks.formats.warc.reader import read_records
from tasks.formats.warc.record import Record
from tasks.formats.warc.wacz import warc_members
from tests.tasks.stages.extract.conftest import record

LIMIT = 1 << 20


def wacz(members, compression=zipfile.ZIP_STORED):
    """Returns a zip file with the given names and contents."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


def urls(data):
    """Returns (member, URL, offset) of the records of a WACZ file."""
    return [
        (name, one.url, one.offset)
        for name, content in warc_members(io.BytesIO(data))
        for one in read_records(content, LIMIT)
        if isinstance(one, Record)
    ]


FIRST, SECOND = record("http://a.example/1"), record("http://a.example/2")
OTHERS = [("datapackage.json", "{}"), ("indexes/index.cdx.gz", gzip.compress(b"x")), ("pages/pages.jsonl", "{}")]


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_records_are_read_from_each_member_at_their_offsets(compression):
    plain = record("http://a.example/3", compressed=False)
    members = [*OTHERS, ("archive/b.warc.gz", FIRST + SECOND), ("archive/a.warc", plain), ("archive/", "")]
    assert urls(wacz(members, compression)) == [
        ("archive/b.warc.gz", "http://a.example/1", 0),
        ("archive/b.warc.gz", "http://a.example/2", len(FIRST)),
        ("archive/a.warc", "http://a.example/3", 0),
    ]


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_collection_of_wacz_files_is_read_through_both(compression):
    inner = wacz([*OTHERS, ("archive/a.warc.gz", FIRST)])
    outer = wacz([("one.wacz", inner), ("two.wacz", inner), ("archive/b.warc.gz", SECOND)], compression)
    assert [(name, url) for name, url, _ in urls(outer)] == [
        ("one.wacz/archive/a.warc.gz", "http://a.example/1"),
        ("two.wacz/archive/a.warc.gz", "http://a.example/1"),
        ("archive/b.warc.gz", "http://a.example/2"),
    ]


def nested(depth):
    data = wacz([("archive/a.warc.gz", FIRST)])
    for _ in range(depth):
        data = wacz([("inner.wacz", data)])
    return data


def overlapping():
    """Two entries of the directory for the same bytes."""
    data = wacz([("archive/a.warc.gz", FIRST * 50), ("archive/b.warc.gz", FIRST * 50)])
    begin = data.index(b"PK\x01\x02")
    last = data.rindex(b"PK\x01\x02")
    return data[: begin - 25 * len(FIRST)] + data[begin:last] + data[last:]


def stated(data, size):
    """Changes the unpacked size of the first member in the directory."""
    at = data.index(b"PK\x01\x02") + 24
    return data[:at] + struct.pack("<L", size) + data[at + 4 :]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (wacz(OTHERS), "no WARC file"),
        (wacz([("archive/a.warc.gz", FIRST)])[:-30], "cannot be unpacked"),
        (b"PK\x03\x04", "cannot be unpacked"),
        (nested(5), "more than 3 zip files"),
        (overlapping(), "bomb|not where"),
        (wacz([("archive/a.warc", b"\0" * 100_000_000)], zipfile.ZIP_DEFLATED), "zip bomb"),
        (wacz([("archive/a.warc.gz", FIRST)]).replace(b"PK\x03\x04", b"PK\x03\x05"), "not where"),
    ],
)
def test_a_zip_file_that_cannot_be_read_is_an_error(data, reason):
    with pytest.raises(OSError, match=reason):
        urls(data)


def test_no_more_is_unpacked_than_the_directory_states():
    data = stated(wacz([("archive/a.warc", b"\0" * 100_000_000)], zipfile.ZIP_DEFLATED), 1000)
    with pytest.raises(OSError, match="cannot be unpacked"):
        urls(data)


def test_a_member_with_a_hostile_name_is_written_nowhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["../../a.warc.gz", "/etc/b.warc.gz", "archive/c\x1b[2J.warc.gz"]
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        found = urls(wacz([(name, FIRST) for name in names], compression))
        assert [url for _, url, _ in found] == ["http://a.example/1"] * 3
    assert list(tmp_path.rglob("*")) == []

"""ARC files are read like WARC files: every intact record, all damage reported, equal to warcio."""

import gzip
import io
import random
import re
from pathlib import Path

import pytest
from fastwarc import WarcRecordType
from warcio.archiveiterator import ArchiveIterator

from tasks.formats.warc.archive import capture_at
from tasks.formats.warc.reader import read_records
from tasks.formats.warc.record import Damage, Record

LIMIT = 1 << 24
V1 = "URL IP-address Archive-date Content-type Archive-length"
V2 = "URL IP-address Archive-date Content-type Result-code Checksum Location Offset Filename Archive-length"


def gzipped(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def description(version: int = 1) -> bytes:
    text = (
        f"{version} {version % 2} InternetArchive\n{V1 if version == 1 else V2}\n<arcmetadata>Heritrix</arcmetadata>\n"
    )
    more = "" if version == 1 else "200 - - 0 IA-001.arc "
    return f"filedesc://IA-001.arc 0.0.0.0 20061115092114 text/plain {more}{len(text)}\n{text}\n".encode()


def record(
    number: int, *, version: int = 1, url: str = "", mime: str = "text/html", length: int | None = None
) -> bytes:
    body = f"<html><p>Page {number}</p>{'abc ' * (number * 37 % 400)}</html>".encode()
    block = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    more = "" if version == 1 else f"200 deadbeef{number} - {number * 1000} IA-001.arc "
    line = (
        f"{url or f'http://host{number}.example/{number}'} 207.241.229.{number} 200611150921{number:02d} {mime} {more}"
    )
    return f"{line}{len(block) if length is None else length}\n".encode() + block + b"\n"


PACKED = {
    "plain": b"".join,
    "gzip": lambda records: b"".join(map(gzipped, records)),
    "one gzip member": lambda records: gzipped(b"".join(records)),
    "two gzip members": lambda records: gzipped(b"".join(records[:5])) + gzipped(b"".join(records[5:])),
}


def read(data: bytes, kinds: WarcRecordType = WarcRecordType.any_type, **options) -> list[Record | Damage]:
    return list(read_records(io.BytesIO(data), LIMIT, kinds, **options))


def urls(found: list[Record | Damage]) -> list[str]:
    return [one.url for one in found if isinstance(one, Record) and not one.short]


def said(found: list[Record | Damage]) -> list[str]:
    told = [one.reason if isinstance(one, Damage) else "short" if one.short else "" for one in found]
    return [reason for reason in told if reason]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("packed", PACKED)
def test_records_equal_those_of_warcio(packed: str, version: int) -> None:
    made = [description(version), *(record(number, version=version) for number in range(12))]
    found = read(PACKED[packed](made))
    assert said(found) == []
    # warcio reads the last fields as those of version 1, and cannot read a file that is one gzip member.
    expected = list(_by_warcio(b"".join([description(), *(record(number) for number in range(12))])))
    assert [(one.url, one.date.strftime("%Y%m%d%H%M%S"), one.payload) for one in found[1:]] == expected[1:]
    assert [one.status for one in found[1:]] == [200] * 12
    assert [str(one.kind).rpartition(".")[2] for one in found[:2]] == ["warcinfo", "response"]


def _by_warcio(data: bytes):
    for one in ArchiveIterator(io.BytesIO(data), arc2warc=False):
        headers = one.rec_headers
        yield headers.get_header("uri"), headers.get_header("archive-date"), one.content_stream().read()


@pytest.mark.parametrize("name", ["warcio__example.arc"])
def test_a_real_file_gives_the_records_of_warcio(shared_data: Path, name: str) -> None:
    data = (shared_data / "warc" / name).read_bytes()
    (found,) = read(data, WarcRecordType.response)
    *_, expected = _by_warcio(data)
    assert (found.url, found.date.strftime("%Y%m%d%H%M%S"), found.payload) == expected
    # Derived only from the header line: equal on every machine and for every compression.
    assert found.record_id == read(gzipped(data), WarcRecordType.response)[0].record_id
    assert found.record_id.startswith("urn:uuid:691ed4ef-")
    assert (found.headers.get("WARC-IP-Address"), found.headers.get("WARC-Type")) == ("93.184.216.119", "response")


@pytest.mark.parametrize("packed", PACKED)
def test_a_capture_is_read_at_its_offset(packed: str) -> None:
    made = [description(), *(record(number) for number in range(12))]
    data = PACKED[packed](made)
    found = read(data, WarcRecordType.response)
    assert {one.offset is None for one in found[1:4]} == {"member" in packed}
    for one in found:
        if one.offset is not None:
            capture = capture_at(io.BytesIO(data), one.offset)
            assert (capture.record_id, capture.payload, capture.url) == (one.record_id, one.payload, one.url)


@pytest.mark.parametrize("packed", PACKED)
def test_a_wrong_length_costs_only_its_own_record_with_a_reason(packed: str) -> None:
    made = [description(), *(record(number) for number in range(1, 12))]
    chance = random.Random(20261122)
    expected = urls(read(b"".join(made)))
    for number in (1, 5, 10):
        length, rest = int(re.search(rb" (\d+)\n", made[number])[1]), sum(map(len, made[number + 1 :]))
        for wrong in (length + 30, length + rest + 1, 10**9, length + chance.randrange(30, rest + 31), length - 20, 10):
            lies = [*made[:number], record(number, length=wrong), *made[number + 1 :]]
            found = read(PACKED[packed](lies))
            assert urls(found) == [url for url in expected if url != f"http://host{number}.example/{number}"], wrong
            assert len(said(found)) == 1, wrong


@pytest.mark.parametrize("packed", ["plain", "gzip"])
def test_one_damaged_spot_is_one_damage_report_and_costs_no_record(packed: str) -> None:
    made = [description(), *(record(number) for number in range(12))]
    for junk in (b"junk\n", b"\0" * 99 + b"\n", b"http://x/ 1.2.3.4 no-date text/html 5\nhello\n", b"WARC/1.0\r\n\r\n"):
        data = PACKED[packed](made[:6]) + junk + PACKED[packed](made[6:])
        found = read(data)
        assert urls(found) == urls(read(PACKED[packed](made)))
        assert said(found) in (["warc_damaged"], ["warc_truncated"])


def test_a_file_truncated_anywhere_is_reported() -> None:
    made = [description(), *(record(number) for number in range(1, 4))]
    for packed in ("plain", "gzip", "one gzip member"):
        whole = PACKED[packed](made)
        begin = len(PACKED[packed](made[:3])) if packed != "one gzip member" else len(whole) // 2
        for cut in range(begin + 20, len(whole) - 1):
            found = read(whole[:cut])
            assert len(said(found)) == 1, (packed, cut)
            assert len(urls(found)) <= 4


def test_malformed_header_lines_of_real_files_are_read() -> None:
    odd = [
        record(1, url="http://a.example/with a blank"),
        record(2, mime="text/html; charset=utf-8"),
        record(3, url="http://\xfcmlaut.example/"),
        record(4, url="dns:www.archive.org", mime="text/dns"),
        record(5, url="https://a.example/?a=b c 20061115092114"),
        record(6).replace(b"20061115092106", b"200611150921061234"),
        record(7).replace(b"20061115092107", b"20069915092107"),
        record(8, mime=""),
        b"\n\n" + record(9),
        b"http://old.example/ 1.2.3.4 19960101000000 text/html 16\n<p>No HTTP here.\n\n",
    ]
    found = read(b"".join([description(), *odd]))
    assert said(found) == []
    assert len(found) == 11
    one = {record.url: record for record in found}
    assert one["http://a.example/with a blank"].status == 200
    assert str(one["dns:www.archive.org"].kind).endswith("resource")
    assert one["http://host6.example/6"].date.isoformat() == "2006-11-15T09:21:06+00:00"
    assert one["http://host7.example/7"].date is None
    assert one["https://a.example/?a=b c 20061115092114"].payload.startswith(b"<html><p>Page 5")
    assert one["http://old.example/"].http is None or one["http://old.example/"].status is None


def test_reading_a_line_takes_linear_time() -> None:
    line = b"http://a.example/ " + b"1.2.3.4 20061115092114 " * 2500 + b"x\n"
    found = read(description() + line * 20 + record(1))
    assert said(found) == ["warc_damaged"]
    assert urls(found)[-1] == "http://host1.example/1"


def test_reading_any_corrupted_file_terminates_and_reports_the_damage() -> None:
    chance = random.Random(20261122)
    made = [description(), *(record(number) for number in range(1, 7))]
    known = urls(read(b"".join(made)))
    for _ in range(300):
        # Damage inside a member of many records may continue as a copy of earlier data.
        packed = chance.choice(["plain", "gzip"])
        data = bytearray(PACKED[packed](made))
        at, count = chance.randrange(len(data)), chance.randint(1, 60)
        data[at : at + chance.choice((0, count))] = chance.choice((b"", b"\n", chance.randbytes(count)))
        if data.startswith((b"filedesc", b"\x1f\x8b\x08")):
            found = urls(read(bytes(data)))
            assert [url for url in found if url in known] == [url for url in known if url in found]

"""Contract of tasks.formats.warc.reader: every intact record of a good or damaged file is read, and all damage is
reported."""

import base64
import gzip
import hashlib
import io
import itertools
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import fastwarc
import pytest
from fastwarc import WarcRecordType, ZstdWriter

from tasks.formats.warc.archive import capture_at, captures
from tasks.formats.warc.reader import read_records
from tasks.formats.warc.record import Damage, Record, dechunk, quick_digest
from tasks.formats.warc.seek import GzipContent
from tasks.formats.web.content_encoding import decode
from tests.tasks.stages.extract.conftest import record

LIMIT = 1 << 24
ALL = WarcRecordType.any_type
Pack = Callable[[bytes], bytes]


def zstd(data: bytes) -> bytes:
    file = io.BytesIO()
    writer = ZstdWriter(file)
    writer.write(data)
    writer.finish()
    writer.flush()
    return file.getvalue()


def gzipped(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


PACKS: list[Pack] = [bytes, gzipped, zstd]


def read(data: bytes, kinds: WarcRecordType = ALL) -> list[Record | Damage]:
    return list(read_records(io.BytesIO(data), LIMIT, kinds))


def told(found: list[Record | Damage]) -> tuple[int, list[str]]:
    """The number of intact records, and the reports on the others."""
    intact = sum(isinstance(one, Record) and not one.short for one in found)
    rest = [one.reason if isinstance(one, Damage) else "short" for one in found]
    return intact, [reason for reason, one in zip(rest, found, strict=True) if isinstance(one, Damage) or one.short]


def named(kind: WarcRecordType) -> str:
    return str(kind).rpartition(".")[2]


def with_block(
    block: bytes, mime: str | None = "application/http; msgtype=response", *, compressed: bool = False
) -> bytes:
    """A response record with any block."""
    kind = f"Content-Type: {mime}\r\n" if mime is not None else ""
    head = (
        "WARC/1.1\r\nWARC-Type: response\r\nWARC-Target-URI: http://a.example/\r\nWARC-Date: 2026-11-20T10:00:00Z\r\n"
        f"WARC-Record-ID: <urn:uuid:1>\r\n{kind}Content-Length: {len(block)}\r\n\r\n"
    )
    whole = head.encode() + block + b"\r\n\r\n"
    return gzipped(whole) if compressed else whole


# The manifest's counts of broken files ("how"), and the reader's reports on the rest.
BROKEN: dict[str, tuple[int, list[str]]] = {
    "derived-a-mal-bitflip.warc.gz": (32 + 15, ["warc_damaged"]),
    "derived-a-mal-garbage-between.warc.gz": (48, ["warc_damaged"]),
    "derived-a-mal-no-content-length.warc.gz": (47, ["warc_damaged"]),
    "derived-a-mal-short-content-length.warc.gz": (47, ["short"]),
    "derived-a-mal-truncated.warc.gz": (32, ["short"]),
    "derived-a-mal-empty.warc.gz": (0, []),
    # Declares a block two bytes too short, which its digest reveals.
    "warcio__example-trunc.warc": (3, ["short"]),
    # No length, a length of one, no length: ARC files, too.
    "warcio__bad.arc": (1, ["warc_damaged", "warc_damaged"]),
    "warcio__example.arc": (2, []),
    # An invalid date, and two records shorter than declared.
    "aut__badexample.arc.gz": (3, ["warc_damaged", "short", "short"]),
}


def test_every_file_of_the_manifest_returns_all_its_intact_records(shared_data: Path) -> None:
    manifest = json.loads((shared_data / "warc" / "manifest.json").read_text())
    assert len(manifest) > 20
    assert manifest.keys() >= BROKEN.keys()
    promised = {
        name: BROKEN.get(name, (entry["readers"]["fastwarc"]["records"], [])) for name, entry in manifest.items()
    }
    found = {name: told(read((shared_data / "warc" / name).read_bytes())) for name in manifest}
    assert found == promised


def test_record_types_match_the_manifest(shared_data: Path) -> None:
    manifest = json.loads((shared_data / "warc" / "manifest.json").read_text())
    for name in manifest.keys() - BROKEN.keys():
        found = read((shared_data / "warc" / name).read_bytes())
        kinds = Counter(named(one.kind) for one in found if isinstance(one, Record))
        assert kinds == manifest[name]["readers"]["fastwarc"]["types"], name


@pytest.mark.parametrize("name", ["dolma__sample-0000.warc.gz", "aut__issue-493.warc", "warcio__example.warc"])
def test_bodies_equal_those_of_an_independent_reader(shared_data: Path, name: str) -> None:
    lines = (shared_data / "warc" / "records" / f"{name}.records.jsonl").read_text().splitlines()
    expected = [held for held in map(json.loads, lines) if held["type"] in ("response", "revisit", "resource")]
    kinds = WarcRecordType.response | WarcRecordType.revisit | WarcRecordType.resource
    found = [one for one in read((shared_data / "warc" / name).read_bytes(), kinds) if isinstance(one, Record)]
    assert [one.url for one in found] == [held["uri"].strip("<>") for held in expected]
    for one, held in zip(found, expected, strict=True):
        coding = ",".join(value for key, value in one.http or () if key.lower() == "content-encoding")
        body = decode(one.payload, coding, LIMIT).data
        assert (len(body), hashlib.sha256(body).hexdigest()) == (held["payload_len"], held["payload_sha256"])


@pytest.mark.parametrize("last", ["response", "request"])
@pytest.mark.parametrize("pack", PACKS)
def test_a_file_truncated_anywhere_is_reported(pack: Pack, last: str) -> None:
    made = [record(f"http://a.example/{i}", b"abc" * 99, kind=last, compressed=False) for i in range(3)]
    packed = [pack(one) for one in made]
    data, begin = b"".join(packed), len(packed[0]) + len(packed[1])
    ending = 4 if pack is bytes else 0  # the two line breaks after a record are not part of it
    for cut in range(begin + 1, len(data) - ending):
        intact, said = told(read(data[:cut]))
        assert (intact >= 2, len(said)) == (True, 1), cut
        assert said[0] in ("short", "warc_truncated", "warc_damaged")
    assert told(read(data[:begin])) == (2, [])
    assert told(read(data)) == (3, [])


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize(
    "bad", [b"no record\r\n\r\n", b"\x1f\x8b\x08 not gzip\r\n", b"\x28\xb5\x2f\xfd not zstd", b"\0" * 99]
)
def test_one_damaged_spot_is_one_damage_report_and_the_record_before_it_is_kept(pack: Pack, bad: bytes) -> None:
    good = [pack(record(f"http://a.example/{i}", compressed=False)) for i in range(4)]
    found = read(b"".join([*good[:2], bad, *good[2:]]))
    assert [one.url for one in found if isinstance(one, Record)] == [f"http://a.example/{i}" for i in range(4)]
    (damage,) = [one for one in found if isinstance(one, Damage)]
    assert (damage.reason, damage.offset) == ("warc_damaged", len(good[0]))
    assert damage.detail


def test_reading_continues_after_damage_in_a_file_with_a_dictionary(shared_data: Path) -> None:
    data = (shared_data / "warc" / "derived-a-dict.warc.zst").read_bytes()
    whole = [one for one in read(data) if isinstance(one, Record)]
    at = whole[20].offset + 12
    found = read(data[:at] + bytes(byte ^ 0xFF for byte in data[at : at + 24]) + data[at + 24 :])
    assert told(found) == (47, ["warc_damaged"])
    assert [one.offset for one in found if isinstance(one, Record)][20:] == [one.offset for one in whole[21:]]


@pytest.mark.parametrize(
    "name", ["derived-a-dict.warc.zst", "derived-a.warc.zst", "derived-a-plain.warc", "derived-a-v1.1.warc.gz"]
)
def test_a_capture_is_read_at_its_offset(shared_data: Path, name: str) -> None:
    data = (shared_data / "warc" / name).read_bytes()
    found = [one for one in read(data, WarcRecordType.response) if isinstance(one, Record)]
    assert len(found) == 22
    for one in found[::5]:
        capture = capture_at(io.BytesIO(data), one.offset)
        assert (capture.record_id, capture.payload) == (one.record_id, one.payload)


@pytest.mark.parametrize(
    ("name", "sought"),
    [
        ("derived-a-mal-single-member.warc.gz", False),
        ("warcio__example-bad-non-chunked.warc.gz", False),
        ("dolma__sample-0000.warc.gz", True),
        ("warcio__example.warc", True),
    ],
)
def test_records_have_an_offset_if_reading_can_start_there(shared_data: Path, name: str, sought: bool) -> None:
    found = read((shared_data / "warc" / name).read_bytes())
    assert {isinstance(one, Record) and one.offset is not None for one in found} == {sought}


def test_a_file_that_is_one_gzip_member_is_read_up_to_the_damage() -> None:
    noise = random.Random(0)
    data = gzipped(b"".join(record(body=noise.randbytes(100_000), compressed=False) for _ in range(5)))
    assert told(read(data)) == (5, [])
    for broken in (data[:260_000] + b"no deflate" * 20 + data[260_200:], data[:480_000]):
        intact, said = told(read(broken))
        assert 0 < intact < 5
        assert len(said) == 1


def cut_up(data: bytes) -> list[bytes]:
    """The records of an uncompressed file."""
    begins = [found.start() for found in re.finditer(rb"(?m)^WARC/1\.\d\r\n", data)]
    return [data[begin:end] for begin, end in itertools.pairwise([*begins, len(data)])]


def lying(data: bytes, more: int, *, digests: bool) -> bytes:
    """A record with a declared length too large by `more`, with or without digests."""
    if not digests:
        data = re.sub(rb"WARC-(Block|Payload)-Digest: [^\r]+\r\n", b"", data)
    return re.sub(rb"Content-Length: (\d+)", lambda said: b"Content-Length: %d" % (int(said[1]) + more), data, count=1)


PACKED = {
    "plain": b"".join,
    "gzip": lambda records: b"".join(map(gzipped, records)),
    "one gzip member": lambda records: gzipped(b"".join(records)),
    "two gzip members": lambda records: gzipped(b"".join(records[:20])) + gzipped(b"".join(records[20:])),
    "zstd": lambda records: b"".join(map(zstd, records)),
}


@pytest.mark.parametrize("digests", [True, False], ids=["digests", "no digests"])
@pytest.mark.parametrize("packed", PACKED)
def test_a_wrong_length_costs_only_its_own_record_with_a_reason(shared_data: Path, packed: str, digests: bool) -> None:
    made = [one for one in cut_up((shared_data / "warc" / "derived-a-plain.warc").read_bytes()) if len(one) < 12_000]
    ids = [found.record_id for found in read(b"".join(made)) if isinstance(found, Record)]
    chance = random.Random(20261122)
    assert 20 < len(ids) == len(made)
    kinds = [re.search(rb"WARC-Type: (\w+)", one)[1] for one in made]
    for number in (0, kinds.index(b"request"), kinds.index(b"response"), 20):
        sizes = [len(one) for one in made[number + 1 :]]
        length = int(re.search(rb"Content-Length: (\d+)", made[number])[1])
        for more in (50, sizes[0], sum(sizes[:3]), sum(sizes), 10**9, chance.randrange(50, sum(sizes)), 10 - length):
            lies = [*(lying(one, 0, digests=digests) for one in made)]
            lies[number] = lying(made[number], more, digests=digests)
            found = read(PACKED[packed](lies))
            whole = [one.record_id for one in found if isinstance(one, Record) and not one.short]
            assert whole == [*ids[:number], *ids[number + 1 :]], (number, more)
            assert len(told(found)[1]) == 1, (number, more)


def holding(inner: bytes, *, digest: bool) -> bytes:
    """A record whose page is a WARC record, or text about one."""
    whole = record("http://page.example/", body=b"<p>" + inner, compressed=False)
    if not digest:
        return whole
    head, block = whole.split(b"\r\n\r\n", 1)
    said = base64.b32encode(hashlib.sha1(block[:-4]).digest())
    return head + b"\r\nWARC-Block-Digest: sha1:" + said + b"\r\n\r\n" + block


@pytest.mark.parametrize("digest", [True, False], ids=["digest", "no digest"])
@pytest.mark.parametrize("junk", [b"", b"junk\r\n\r\n"], ids=["whole", "damaged behind"])
@pytest.mark.parametrize("packed", PACKED)
def test_the_content_of_a_page_is_never_taken_for_a_record(packed: str, junk: bytes, digest: bool) -> None:
    forged = record("http://forged.example/", compressed=False)
    inners = [b"\r\n\r\n" + forged, b"\r\n" + forged * 3 + b"\r\n\r\nWARC/1.0\r\nX: y", b"\r\n\r\n" + gzipped(forged)]
    made = [record("http://first.example/", compressed=False), *(holding(one, digest=digest) for one in inners)]
    made.append(record("http://last.example/", compressed=False))
    if "member" in packed or packed == "plain":
        data = PACKED[packed]([*made[:2], made[2] + junk, *made[3:]])
    else:
        data = PACKED[packed](made[:3]) + junk + PACKED[packed](made[3:])
    found = read(data)
    urls = [one.url for one in found if isinstance(one, Record)]
    assert urls == ["http://first.example/", *["http://page.example/"] * 3, "http://last.example/"]
    assert told(found) == (5, ["warc_damaged"] if junk else [])


def test_a_file_with_only_wrong_lengths_is_read_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.formats.warc.reader._MAX_WASTED", 1_000_000)
    one = b"WARC/1.0\r\nWARC-Type: resource\r\nWARC-Block-Digest: sha1:X\r\nContent-Length: %05d\r\n\r\n\r\n\r\n"
    # Each ends where a later one does, and swallows fifty records.
    found = read(one % (50 * len(one % 0)) * 1000)
    assert isinstance(found[-1], Damage)
    assert 10 < len(found) < 500


class Counting(io.BytesIO):
    """A file that counts the bytes read from it."""

    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.count += len(data)
        return data


@pytest.mark.parametrize("length", [3000, 10**9, 10**18])
@pytest.mark.parametrize("packed", ["plain", "gzip", "one gzip member"])
def test_the_time_for_records_with_huge_lengths_is_linear_in_their_number(packed: str, length: int) -> None:
    fields = b"WARC-Type: resource\r\nWARC-Record-ID: <urn:uuid:%05d>\r\nContent-Length: %d"
    one = b"WARC/1.1\r\n" + fields + b"\r\n\r\nhello\r\n\r\n"
    for count in (200, 800):
        file = Counting(PACKED[packed]([one % (number, length) for number in range(count)]))
        found = list(read_records(file, LIMIT, ALL))
        assert len({record.record_id for record in found if isinstance(record, Record)}) == count
        # A few reads of 4 KiB for each record, regardless of the number of later ones.
        assert file.count < count * 32 << 10


def test_seeking_back_in_a_gzip_member_does_not_inflate_it_again() -> None:
    content = b"".join(b"%07d\n" % number for number in range(100_000))
    file = Counting(gzipped(content))
    inflated = GzipContent(file)
    for at in range(0, 600_000, 4000):
        inflated.seek(at)
        assert inflated.read(20_000) == content[at : at + 20_000]
    assert file.count <= len(file.getvalue())
    # Earlier data is inflated again.
    inflated.seek(len(content))
    inflated.seek(0)
    assert inflated.read(1000) == content[:1000]


def test_damage_in_skipped_records_is_reported_too() -> None:
    made = [gzipped(record(kind=kind, compressed=False)) for kind in ("response", "request", "request")]
    data = b"".join([*made[:2], made[2][:-20]])
    assert told(read(data, WarcRecordType.response)) == (1, ["warc_truncated"])


@pytest.mark.parametrize(
    "declared", ["", "Content-Length: x\r\n", "Content-Length: -4\r\n", f"Content-Length: {10**30}\r\n"]
)
def test_a_record_without_a_length_is_damage(declared: str) -> None:
    bad = f"WARC/1.1\r\nWARC-Type: response\r\nWARC-Target-URI: http://b/\r\n{declared}\r\nbody\r\n\r\n".encode()
    found = read(record() + gzipped(bad) + record())
    assert told(found) == (2, ["warc_damaged"])


def test_a_record_longer_than_declared_is_detected_by_its_digest() -> None:
    file = io.BytesIO()
    made = fastwarc.WarcRecord()
    made.init_headers(WarcRecordType.resource, b"x")
    made.set_bytes_content(b"0123456789")
    made.write(file, checksum_data=True)
    lying = file.getvalue().replace(b"Content-Length: 10", b"Content-Length: 04")
    assert told(read(record() + gzipped(lying) + record())) == (2, ["short"])


def test_an_error_of_the_file_system_is_not_damage() -> None:
    class Failing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() >= 1000:
                raise OSError(5, "Input/output error")
            return super().read(min(size or 1000, 1000))

    with pytest.raises(OSError, match="Input/output"):
        list(read_records(Failing(record(body=random.Random(0).randbytes(5000))), LIMIT))


def test_a_response_with_a_megabyte_of_headers_is_read() -> None:
    head = "".join(f"X-{i}: {'a' * 1000}\r\n" for i in range(900))
    (found,) = read(record(body=b"body", http=head))
    assert isinstance(found, Record)
    assert (len(found.http or ()), found.payload) == (900, b"body")


def test_a_header_folded_over_many_lines_is_read_in_linear_time() -> None:
    begun = time.process_time()
    (found,) = read(record(body=b"body", http="X: " + "a" * 500_000 + "\n" + " b\n" * 150_000))
    assert isinstance(found, Record)
    assert [(name, len(value)) for name, value in found.http or ()] == [("X", 800_000)]
    assert time.process_time() - begun < 1  # quadratic time takes over two seconds


def test_a_response_with_endless_headers_is_a_record_without_http() -> None:
    found = read(record(body=b"x" * 3_000_000, http="X: ") + record())
    assert [isinstance(one, Record) and one.http is None for one in found] == [True, False]
    assert told(found) == (2, [])


# Bodies under the header of chunked coding that are not in it as a whole.
STORED_DECODED = (
    b"<p>stored without its transfer coding",
    b"f" * 40 + b"\r\nx",
    b"1\nChapter one begins here, and it is long.\n2\nChapter two.\n",
    b"0\nis the first line, and much text follows.\n",
    b"0\r\n\r\nis the first line, and much text follows.\n",
    b"0\r\nTitle: a field, and text follows.\r\nText\r\n",
    b"Cafe\nMenu of the day: soup and bread.\n",
    b"Cafe\r\nMenu of the day: soup and bread.\r\n",
    b"bad",
    b"5\r\n<p>ab\r\nzz\r\ncd",
    b"4\r\n<p>ab\r\n0\r\n\r\n",
)


def test_the_only_chunk_of_a_body_may_be_truncated() -> None:
    assert dechunk(b"64\r\n<p>cut") == (b"64\r\n<p>cut", True)
    assert dechunk(b"64\r\n<p>cut", cut=True) == (b"<p>cut", True)
    sent = record(body=b"64\r\n<p>cut", http="Transfer-Encoding: chunked\r\n", compressed=False)
    for cut in (sent.replace(b"WARC-Date", b"WARC-Truncated: time\r\nWARC-Date"), sent[:-8]):
        (found,) = [one for one in read(cut) if isinstance(one, Record)]
        assert b"<p>cut".startswith(found.payload)
        assert found.payload


OTHER_HEADS = (
    b"HTTP/1.1 200 OK\nContent-Type: text/html\n\n",
    b"HTTP/1.1 200 OK\r\nContent-Type: text/html\n\r\n",
    b"HTTP/1.1 200 OK\nContent-Type: text/html\r\n\n",
    b"HTTP/1.1 200 OK\r\r\nContent-Type: text/html\r\r\n\r\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Type:\r\n\ttext/html\r\nno field\r\n\r\n",
    b"http/2 200\r\ncontent-type : text/html\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n",
    b"HTTP/1.1 100 Continue\n\nHTTP/1.1 103 Early Hints\n\nHTTP/1.1 200 OK\nContent-Type: text/html\n\n",
)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("head", OTHER_HEADS)
def test_the_head_of_any_writer_ends_before_the_body(head: bytes, compressed: bool) -> None:
    (found,) = read(with_block(head + b"<p>HTTP/1.1 103 is text\n\nbody", compressed=compressed))
    assert isinstance(found, Record)
    assert (found.status, found.payload, found.short) == (200, b"<p>HTTP/1.1 103 is text\n\nbody", False)
    assert [(name.lower(), value) for name, value in found.http or ()] == [("content-type", "text/html")]


@pytest.mark.parametrize("kind", ["Application/HTTP; MsgType=Response", "application/http", " APPLICATION/HTTP ", None])
def test_a_response_is_known_by_its_media_type_in_any_case_and_without_one_by_its_url(kind: str | None) -> None:
    (found,) = read(with_block(b"HTTP/1.1 200 OK\r\n\r\nbody", kind))
    assert isinstance(found, Record)
    assert (found.status, found.payload) == (200, b"body")


@pytest.mark.parametrize(
    ("block", "status", "payload"),
    [
        (b"HTTP/1.1 103 Early Hints\r\n\r\n", 103, b""),
        (b"HTTP/1.1 101 Switching\r\n\r\nHTTP/1.1 200 OK\r\n\r\nx", 101, b"HTTP/1.1 200 OK\r\n\r\nx"),
        (b"ICY 200 OK\r\n\r\nx", None, b"x"),
        (b"HTTP/1.1 2OO OK\r\n\r\nx", None, b"x"),
        (b"HTTP/1.1 -20 OK\r\n\r\nx", None, b"x"),
        (b"HTTP/1.1 200 OK\r\nServer: x", 200, b""),
        (b"", None, b""),
    ],
)
def test_a_head_without_a_final_status_is_kept_as_it_is(block: bytes, status: int | None, payload: bytes) -> None:
    (found,) = read(with_block(block))
    assert isinstance(found, Record)
    assert (found.status, found.payload) == (status, payload)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"5\r\n<p>ab\r\n3\r\ncde\r\n0\r\n\r\n", b"<p>abcde"),
        (b"5;ext=1\r\n<p>ab\r\n0\r\nTrailer: x\r\n\r\n", b"<p>ab"),
        (b"5 \n<p>ab\n0\n\n", b"<p>ab"),
        (b"5\r\n<p>ab\r\n3\r\ncd", b"<p>abcd"),
        *((b"5\r\n<p>ab\r\n3\r\ncde" + end, b"<p>abcde") for end in (b"", b"\r", b"\r\n", b"\r\n0", b"\r\n1f\r")),
        (b"5\r\n<p>ab\r\n0\r\n", b"<p>ab"),
        (b"5\r\n<p>ab\r\n0\r\n\r\nHTTP/1.1 400 Bad", b"<p>ab"),
        (b"", b""),
        (b"0\r\n\r\n", b""),
        *((stored, stored) for stored in STORED_DECODED),
    ],
)
def test_chunks_are_joined_if_the_body_has_nothing_else(body: bytes, expected: bytes) -> None:
    assert dechunk(body) == (expected, True)
    (found,) = read(record(body=body, http="Transfer-Encoding: chunked\r\n"))
    assert isinstance(found, Record)
    assert (found.payload, found.size, found.short) == (expected, len(expected), False)


def test_a_body_with_too_many_small_chunks_is_too_long() -> None:
    body = b"2\nab\n" * 4_000_000
    begun, ended = dechunk(body, 1 << 20)
    assert (begun, ended) == (b"ab" * (len(begun) // 2), False)
    assert len(begun) < 200_000
    (found,) = read_records(io.BytesIO(record(body=body, http="Transfer-Encoding: chunked\r\n")), 1 << 20)
    assert isinstance(found, Record)
    assert found.size > 1 << 20


@pytest.mark.parametrize(
    ("date", "read_as"),
    [
        ("2026-11-20T10:00:00Z", "2026-11-20T10:00:00+00:00"),
        ("2026-11-20T10:00:00+05:00", "2026-11-20T05:00:00+00:00"),
        ("1970-01-01T00:00:00Z", None),
        ("0001-01-01T00:00:00+05:00", None),
        ("9999-12-31T23:59:59Z", None),
        ("9999-12-31T23:59:59-05:00", None),
        ("yesterday", None),
    ],
)
def test_an_impossible_capture_date_is_none(date: str, read_as: str | None) -> None:
    data = record(compressed=False).replace(b"2026-11-20T10:00:00.250Z", date.encode())
    (found,) = read(data)
    assert isinstance(found, Record)
    assert (found.date.isoformat() if found.date else None) == read_as


@pytest.mark.parametrize("chunked", [True, False])
def test_a_body_is_kept_up_to_the_requested_length(chunked: bool) -> None:
    body = b"a" * 100_000
    sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body
    data = record(body=sent, http="Transfer-Encoding: chunked\r\n" if chunked else "")
    (found,) = read_records(io.BytesIO(data), 1000)
    assert isinstance(found, Record)
    assert len(found.payload) == 1000
    assert found.size > 1000


def test_reading_any_corrupted_file_terminates_and_reports_the_damage() -> None:
    noise = random.Random(20261121)
    made = [record(f"http://a.example/{i}", body=b"<p>%d" % i * 300, compressed=False) for i in range(5)]
    urls = [f"http://a.example/{i}" for i in range(5)]
    for _ in range(600):
        pack = noise.choice(PACKS)
        data = bytearray(b"".join(map(pack, made)))
        at, count = noise.randrange(len(data)), noise.randint(1, 60)
        data[at : at + noise.choice((0, count))] = noise.choice((b"", b"WARC/1.1\r\n", noise.randbytes(count)))
        found = [one.url for one in read(bytes(data)) if isinstance(one, Record) and not one.short]
        # One damaged spot affects at most two records; only in uncompressed files a wrong length can swallow more.
        assert len(set(urls).intersection(found)) >= (1 if pack is bytes else 3)
        assert [url for url in found if url in urls] == [url for url in urls if url in found]


def test_fast_digests_distinguish_bodies_like_sha1() -> None:
    bodies = [b"one", b"two", b"one"]
    file = io.BytesIO(b"".join(record(body=body) for body in bodies))
    slow = [found.payload_digest for found in read_records(file, LIMIT) if isinstance(found, Record)]
    quick = [found.payload_digest for found in read_records(file, LIMIT, digest="quick") if isinstance(found, Record)]
    assert slow[0] == slow[2] != slow[1]
    assert quick[0] == quick[2] != quick[1]
    assert quick == [quick_digest(body) for body in bodies]


def test_captures_of_a_real_file_are_readable_at_their_offsets(shared_data):
    data = (shared_data / "warc" / "derived-a-v1.1.warc.gz").read_bytes()
    found = list(captures(io.BytesIO(data)))
    assert len(found) > 5
    for capture in found:
        alone = capture_at(io.BytesIO(data), capture.offset)
        assert replace(alone, headers=None) == replace(capture, headers=None)
        assert list(alone.headers.items()) == list(capture.headers.items())

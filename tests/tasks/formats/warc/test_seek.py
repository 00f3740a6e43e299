"""The decompressed bytes of a gzip file: from any position on, and past damage."""

import gzip
import io
import random

import pytest

from tasks.formats.warc import seek
from tasks.formats.warc.seek import GzipContent


@pytest.fixture(scope="module")
def content() -> bytes:
    noise = random.Random(20261122)
    return b"".join(noise.randbytes(noise.randint(1, 3000)) + b"x" * noise.randint(1, 30_000) for _ in range(100))


def members(content: bytes) -> bytes:
    half = len(content) // 2
    return gzip.compress(content[:half], mtime=0) + gzip.compress(content[half:], mtime=0)


@pytest.mark.parametrize("packed", [gzip.compress, members], ids=["one member", "two members"])
def test_reading_can_start_at_any_position(content: bytes, packed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seek, "_STATES_APART", 100_000)
    chance = random.Random(1)
    file = GzipContent(io.BytesIO(packed(content)))
    for _ in range(200):
        at, size = chance.randrange(len(content) + 100), chance.randrange(5000)
        assert file.seek(at) == min(at, len(content))
        assert file.read(size) == content[at : at + size]
        assert file.tell() == min(at + size, len(content))
    file.seek(0)
    assert io.BufferedReader(file).read() == content
    assert file.whole
    assert len(file._offsets) > 3


def test_a_truncated_file_is_read_up_to_its_end(content: bytes) -> None:
    data = gzip.compress(content, mtime=0)
    for cut in (len(data) // 3, len(data) - 9, len(data) - 1):
        file = GzipContent(io.BytesIO(data[:cut]))
        found = file.read()
        assert content.startswith(found)
        assert len(found) > len(content) // 4
        assert not file.whole


def test_damage_costs_the_rest_of_its_member(content: bytes) -> None:
    data, half = bytearray(members(content)), len(content) // 2
    at = len(gzip.compress(content[:half], mtime=0)) // 2
    data[at : at + 20] = b"\xff" * 20
    file = GzipContent(io.BytesIO(bytes(data)))
    found = file.read()
    assert found.endswith(content[half:])
    assert content.startswith(found[: half // 4])
    assert not file.whole


def test_content_that_inflates_a_thousandfold_is_read_in_small_blocks() -> None:
    file = GzipContent(io.BytesIO(gzip.compress(b"\0" * (60 << 20), mtime=0)))
    assert file.seek(50 << 20) == 50 << 20
    assert file.read(10) == b"\0" * 10
    assert len(file._out) <= 1 << 16

"""Ranges of files: the written bytes or an error that names the file, from a folder and from S3."""

import os
import re
import resource
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import pytest

from tasks.core import ranges
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.errors import InputError
from tasks.core.ranges import BLOCK, ChecksumWriter, RangeFile, RangeReader, ReadRequest, entries_of
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tests.s3_server import S3Server

PATH = "data/numbers.bin"
DATA = np.random.default_rng(0).bytes(5 * BLOCK + 1000)
RANGES = ((0, 10), (BLOCK - 3, 6), (2 * BLOCK, BLOCK), (100, 3 * BLOCK), (len(DATA) - 5, 5), (7, 0))
KILLED = """
import sys, time
from pathlib import Path
from tasks.core.cache import claim_copy
with claim_copy(Path(sys.argv[1]), 1) as aside:
    aside.write_bytes(b"half of")
    print("here", flush=True)
    time.sleep(60)
"""


def made(root: str) -> Artifact:
    """Commits an artifact with one file of six blocks."""
    output = Output(Store(root), ArtifactId("test/data", "dev"), "by-hand")
    with output.part("only", conserved=False) as part:
        with part.file(PATH) as file:
            checked = ChecksumWriter(file)
            for first in range(0, len(DATA), 100_000):
                checked.write(DATA[first : first + 100_000])
        with part.file(ranges.checksums_path(PATH)) as file:
            file.write(checked.checksums())
    return commit(output, "by hand", 1, Config(), [], Report())


@pytest.fixture(params=["folder", "s3"])
def artifact(request: pytest.FixtureRequest, tmp_path: Path) -> Artifact:
    if request.param == "folder":
        return made(str(tmp_path / "store"))
    request.getfixturevalue("s3")
    return made(f"s3://sluice/{tmp_path.name}")


@pytest.fixture
def remote(s3: S3Server, tmp_path: Path) -> Artifact:
    return made(f"s3://sluice/{tmp_path.name}")


def read(reader: RangeReader, first: int, length: int) -> bytes:
    out = bytearray(length)
    reader.read([ReadRequest(0, first, memoryview(out))])
    return bytes(out)


def opened(artifact: Artifact) -> RangeReader:
    return RangeReader(entries_of(artifact, [PATH]))


def rewrite(artifact: Artifact, data: bytes) -> None:
    with artifact.store.write(f"{artifact.path}/{PATH}") as file:
        file.write(data)


def blocks_of(folder: Path) -> list[Path]:
    return sorted((folder / "cache" / "blocks").glob("*/*"))


def test_every_range_returns_the_written_bytes(artifact: Artifact) -> None:
    reader = opened(artifact)
    for _ in range(2):
        for first, length in RANGES:
            assert read(reader, first, length) == DATA[first : first + length]
    outs = [bytearray(length) for _, length in RANGES]
    opened(artifact).read(ReadRequest(0, first, memoryview(out)) for (first, _), out in zip(RANGES, outs, strict=True))
    assert outs == [DATA[first : first + length] for first, length in RANGES]


def test_a_range_file_is_read_like_any_other(artifact: Artifact) -> None:
    file = RangeFile(opened(artifact), 0)
    assert file.read() == DATA
    assert file.read() == b""
    file.seek(-7, os.SEEK_END)
    assert file.read(3) == DATA[-7:-4]
    assert file.tell() == len(DATA) - 4


def test_a_reader_of_many_files_keeps_the_checksums_of_the_newest(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Output(artifact.store, ArtifactId("test/many", "dev"), "by-hand")
    with output.part("only", conserved=False) as part:
        for number in range(40):
            with ranges.checksummed_file(part, f"data/{number:05d}.bin") as file:
                file.write(bytes([number]) * 10)
    made = commit(output, "by hand", 1, Config(), [], Report())
    monkeypatch.setattr(ranges, "MOST_FILES", 4)
    reader = RangeReader(entries_of(made, made.files("data/")))
    for numbers in (range(40), range(39, -1, -7), [3], range(0, 40, 2)):
        outs = [bytearray(2) for _ in numbers]
        reader.read(ReadRequest(number, 1, memoryview(out)) for number, out in zip(numbers, outs, strict=True))
        assert outs == [bytes([number]) * 2 for number in numbers]
        assert len(reader._open) == 4


def test_a_flipped_byte_is_never_returned(artifact: Artifact) -> None:
    flipped = bytearray(DATA)
    flipped[2 * BLOCK + 17] ^= 1
    rewrite(artifact, bytes(flipped))
    reader = opened(artifact)
    assert read(reader, 0, BLOCK) == DATA[:BLOCK]
    for _ in range(2):
        with pytest.raises(InputError, match=re.escape(f"{PATH} is damaged near byte {2 * BLOCK:,}")) as raised:
            read(reader, 2 * BLOCK + 1000, 3)
        assert "restore the file" in raised.value.remedy
    assert "\n" not in str(raised.value)


def test_a_truncated_or_missing_file_is_refused_by_name(artifact: Artifact) -> None:
    rewrite(artifact, DATA[: 4 * BLOCK + 9])
    with pytest.raises(InputError, match=re.escape(PATH)):
        read(opened(artifact), 4 * BLOCK, 10)
    with pytest.raises(InputError, match=re.escape(PATH)):
        read(opened(artifact), 5 * BLOCK, 10)
    artifact.store.remove(f"{artifact.path}/{PATH}")
    with pytest.raises(InputError, match=re.escape(f"{PATH} is missing. Restore the file")):
        read(opened(artifact), 0, 1)


def test_a_range_outside_the_file_is_refused(artifact: Artifact) -> None:
    with pytest.raises(InputError, match=r"numbers\.bin has no bytes"):
        read(opened(artifact), len(DATA) - 1, 2)


def test_damaged_or_missing_checksums_are_refused(artifact: Artifact) -> None:
    path = f"{artifact.path}/{ranges.checksums_path(PATH)}"
    with artifact.store.write(path) as file:
        file.write(b"\0" * 176)
    with pytest.raises(InputError, match=r"numbers\.npy is damaged"):
        read(opened(artifact), 0, 1)
    artifact.store.remove(path)
    with pytest.raises(InputError, match=r"numbers\.npy is missing"):
        read(opened(artifact), 0, 1)
    with pytest.raises(InputError, match="has no data/others"):
        RangeReader(entries_of(artifact, ["data/others.bin"]))


def test_only_needed_blocks_are_fetched_and_each_once(remote: Artifact, s3: S3Server, tmp_path: Path) -> None:
    readers, ready = [opened(remote) for _ in range(4)], threading.Barrier(4)
    before = s3.faults.requests

    def work(reader: RangeReader) -> bytes:
        ready.wait()
        return read(reader, BLOCK + 5, 2 * BLOCK)

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(work, readers)) == {DATA[BLOCK + 5 : 3 * BLOCK + 5]}
    assert len(blocks_of(tmp_path)) == 3
    assert s3.faults.requests - before == 3 + 4  # each reader reads the checksums


def test_a_damaged_cached_block_is_fetched_again(remote: Artifact, tmp_path: Path) -> None:
    assert read(opened(remote), 0, BLOCK) == DATA[:BLOCK]
    (block,) = blocks_of(tmp_path)
    for damaged in (b"\0" + DATA[1:BLOCK], DATA[: BLOCK - 1], b""):
        block.write_bytes(damaged)
        assert read(opened(remote), 0, BLOCK) == DATA[:BLOCK]
    assert block.read_bytes() == DATA[:BLOCK]


def test_a_process_killed_during_a_fetch_blocks_no_other(remote: Artifact, tmp_path: Path) -> None:
    assert read(opened(remote), 0, BLOCK) == DATA[:BLOCK]
    (block,) = blocks_of(tmp_path)
    block.unlink()
    maker = subprocess.Popen([sys.executable, "-c", KILLED, str(block)], stdout=subprocess.PIPE)
    assert cast(BinaryIO, maker.stdout).readline()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(read, opened(remote), 0, BLOCK)
        maker.send_signal(signal.SIGKILL)
        maker.wait()
        assert waiting.result(10) == DATA[:BLOCK]
    assert [path.read_bytes() for path in blocks_of(tmp_path)] == [DATA[:BLOCK]]


def test_reads_succeed_although_three_requests_in_ten_fail(remote: Artifact, s3: S3Server) -> None:
    s3.faults.share = 0.3
    assert read(opened(remote), 0, len(DATA)) == DATA
    assert s3.faults.told


@pytest.mark.parametrize("cache", ["full", "forbidden"])
def test_blocks_are_readable_without_space_or_rights_in_the_cache(
    remote: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    if cache == "forbidden":
        (tmp_path / "file").touch()
        monkeypatch.setenv("SLUICE_CACHE", str(tmp_path / "file" / "cache"))
        assert read(opened(remote), 0, len(DATA)) == DATA
        return
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (BLOCK // 2, before[1]))  # the disk has space for half a block
    try:
        reader = opened(remote)
        assert read(reader, 0, len(DATA)) == read(reader, 0, len(DATA)) == DATA
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert {path.stat().st_size for path in blocks_of(tmp_path)} <= {1000}  # the last block is that short


def test_the_cache_respects_its_limit_and_returns_correct_bytes(
    remote: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_CACHE_GB", str(2.5 * BLOCK / 1e9))
    reader = opened(remote)
    for first in [*range(0, 5 * BLOCK, BLOCK), 0]:
        assert read(reader, first, BLOCK) == DATA[first : first + BLOCK]
        assert sum(path.stat().st_size for path in blocks_of(tmp_path)) <= 2.5 * BLOCK
    assert read(reader, 10, len(DATA) - 10) == DATA[10:]

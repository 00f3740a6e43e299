"""Readers of more files than a process may have open, and the error of a process that has too many."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.errors import InputError
from tasks.core.open_files import exhausted, load_array, map_file, raise_limit
from tasks.core.ranges import RangeReader, ReadRequest, checksummed_file, entries_of
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.formats.tokens.plan import Plan
from tasks.formats.tokens.shard import ShardEntry, ShardSet
from tasks.stages.spans import SpansConfig
from tasks.stages.tokens import EncodeConfig, PackConfig, pack
from tests.conftest import run_stage_in
from tests.corpora import tokens_in

LIMIT = 64
FILES = 5_000


def limited() -> None:
    """Lowers the limit of this process, also the hard one, so that nothing raises it again."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))


def in_a_small_process(do: str, *arguments: object) -> str:
    """Output of a function of this module in a process that may have few files open."""
    program = f"from tests.tasks.core import test_open_files as t; t.limited(); t.{do}(*__import__('sys').argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def read_ranges(root: str) -> None:
    artifact = Artifact.open_at(Store(root), ArtifactId("test/data", "dev"))
    paths = artifact.files("data/")
    out = bytearray(len(paths))
    requests = [ReadRequest(n, 0, memoryview(out)[n : n + 1]) for n in range(len(paths))]
    RangeReader(entries_of(artifact, paths)).read(requests)
    print(list(out) == [n % 256 for n in range(len(paths))], len(paths))


def test_a_reader_of_ranges_reads_more_files_than_may_be_open(tmp_path: Path) -> None:
    output = Output(Store(str(tmp_path)), ArtifactId("test/data", "dev"), "by-hand")
    with output.part("only", conserved=False) as part:
        for number in range(FILES):
            with checksummed_file(part, f"data/{number:05d}.bin") as file:
                file.write(bytes([number % 256]) * 10)
    commit(output, "by hand", 1, Config(), [], Report())
    assert in_a_small_process("read_ranges", tmp_path) == f"True {FILES}\n"


def pack_and_spans(root: str) -> None:
    shards = Artifact.open_at(Store(root), ArtifactId("test/shards", "dev"))
    pack._PART_TOKENS = 100
    made = run_stage_in(root, pack.__name__, PackConfig(seq_len=16), {"shards": shards}, kind="many")
    config = SpansConfig(enabled=True)
    found = run_stage_in(root, "tasks.stages.spans.stage", config, {"shards": shards}, kind="found")
    plan = Plan.open(made)
    read = [plan.slices(source, n) for source in plan.sources for n in range(plan.sequences[source])]
    print(len(made.files("plan/")) // 3 > LIMIT, len(read) == sum(plan.sequences.values()), bool(found.files()))
    packed = sum(int(slices["length"].sum()) for slices in read)
    total = sum(ShardSet.open(shards).n_tokens(source) for source in plan.sources)
    assert packed + sum(plan.summary["dropped_tokens"].values()) == total


def test_pack_spans_and_a_plan_read_more_files_than_may_be_open(tmp_path: Path) -> None:
    shards = tokens_in(tmp_path, parts=5, encode=EncodeConfig(shard_tokens=60)).shards
    assert len(shards.files("shards/")) > LIMIT
    assert in_a_small_process("pack_and_spans", shards.store.root).split() == ["True"] * 3


def open_one_too_many(path: str) -> None:
    held = []
    try:
        while True:
            held.append(open(path, "rb"))  # noqa: SIM115
    except OSError:
        try:
            ShardSet({"a-train-00000-000": ShardEntry(path, 1, 1)}, None).shard("a-train-00000-000")
        except InputError as error:
            print(error)


def test_a_shard_is_not_called_damaged_for_lack_of_open_files(tmp_path: Path) -> None:
    path = tmp_path / "a-train-00000-000.arrow"
    path.write_bytes(b"")
    said = in_a_small_process("open_one_too_many", path)
    assert "this process may have 64 open, and its hard limit is 64" in said
    assert "ulimit -Hn" in said
    assert "encode" not in said


def print_limit() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, LIMIT))
    raise_limit()
    print(*resource.getrlimit(resource.RLIMIT_NOFILE))


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    assert in_a_small_process("print_limit") == f"{LIMIT} {LIMIT}\n"


@pytest.mark.parametrize(
    ("number", "said"),
    [(errno.EMFILE, "ulimit"), (errno.ENFILE, "ulimit"), (errno.ENOMEM, "max_map_count"), (errno.EACCES, None)],
)
def test_only_errors_of_a_full_process_are_explained_so(number: int, said: str | None) -> None:
    error = exhausted(OSError(number, os.strerror(number), "a.arrow"))
    assert (error is None) if said is None else said in str(error)


@pytest.mark.parametrize("array", [np.arange(6), np.arange(6).reshape(2, 3, order="F"), np.empty((0, 2)), np.empty(0)])
def test_a_mapped_array_is_that_of_the_file_read_only_and_its_file_is_closed(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "a.npy", array)
    before = len(os.listdir("/proc/self/fd"))
    found = load_array(tmp_path / "a.npy", mapped=True)
    assert len(os.listdir("/proc/self/fd")) == before
    assert found.dtype == array.dtype
    assert found.tolist() == array.tolist()
    assert not found.flags.writeable


@pytest.mark.parametrize("content", [b"", b"no array", b"\x93NUMPY\x01\x00v\x00{'descr': '<i8', 'for"])
def test_a_file_without_a_whole_array_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises((ValueError, EOFError)):
        load_array(tmp_path / "a.npy", mapped=True)
    np.save(tmp_path / "b.npy", np.arange(100))
    (tmp_path / "b.npy").write_bytes((tmp_path / "b.npy").read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"reshape|size"):
        load_array(tmp_path / "b.npy", mapped=True)


def test_a_map_lasts_when_its_file_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"still here")
    data = map_file(path)
    path.unlink()
    assert data.to_pybytes() == b"still here"

"""The token loader: from a warm local disk, from a cold S3 server on loopback, and beside two other loaders.

    python -m benchmarks.loader [--tokens 64] [--without-peers]

Random tokens (millions of them, 2 bytes each) in documents of usual lengths become shards and a plan of 2,048 tokens a
sequence, packed end to end. One process loads batches of 64 sequences in the order of training: tokens, labels and
document numbers as int64, `cu_seqlens`. Rates are by the clock and by CPU time of the process, best of three rounds on
a warm page cache: on a busy machine only the second says something.

The S3 server answers ranged GETs of a folder as S3 does, with a pause of 10 ms before each, about what an object store
takes; moto, which the tests use, copies the whole object for each range. It is a process of its own on the same cores.

The peers (mosaicml-streaming, litdata) load the same sequences from files of their own formats, shuffled, without
workers: tokens alone, without labels or documents. Each lives in an environment of its own below
`.sluice/benchmarks/loader` (1 GB each, made on the first run). One that cannot be installed is named with the reason.
Writes `benchmarks/results/loader.json`.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
import torch

from benchmarks.harness import keep
from benchmarks.loader_peers import peers
from tasks.core import ranges
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.ranges import IN_FLIGHT, ChecksumWriter
from tasks.core.stage import Inputs, Output, Report
from tasks.core.store import Store
from tasks.formats.tokens.shard import FOLDER, TRAIN, ShardBuffer, TokenFormat, shard_name, write_shard
from tasks.stages.tokens import PackConfig
from tasks.trainer.config import TrainConfig, TrainSpec
from tasks.trainer.data.batches import Batches, Loader
from tasks.trainer.spec import make_spec
from tests.conftest import run_stage_in

SEQ_LEN, BATCH, VOCAB, SHARD_TOKENS = 2048, 64, 50_000, 8_000_000
SIZES = (64 * 1024, 256 * 1024, 1024 * 1024)
CPU = torch.device("cpu")
PROCESS = """
import sys
from benchmarks.loader import rates, spec_at
print(*rates(spec_at(sys.argv[1]), int(sys.argv[2]), 0))
"""


def make(folder: Path, tokens: int) -> None:
    """Makes the artifacts test/shards and test/plan, and the sequences as one file for the peers."""
    random = np.random.default_rng(0)
    output = Output(Store(str(folder)), ArtifactId("test/shards", "dev"), "by-hand")
    fmt = TokenFormat(VOCAB, 0, "0" * 64)
    for number in range(max(1, tokens // SHARD_TOKENS)):
        lengths = np.maximum(8, random.lognormal(6, 1.1, SHARD_TOKENS // 740)).astype(int)
        documents = [np.append(random.integers(1, VOCAB, n, dtype=np.uint16), np.uint16(0)) for n in lengths]
        buffer = ShardBuffer("web", TRAIN, [random.bytes(16) for _ in documents], documents, [1] * len(documents))
        name = f"{FOLDER}/{shard_name('web', TRAIN, number, 0)}.arrow"
        with output.part(f"{number:05d}", conserved=False) as part:
            with part.file(name, rows=len(documents)) as file:
                checked = ChecksumWriter(file)
                write_shard(cast(BinaryIO, checked), buffer, fmt)
            with part.file(ranges.checksums_path(name)) as file:
                file.write(checked.checksums())
    shards = commit(output, "by hand", 1, Config(), [], Report())
    run_stage_in(folder, "tasks.stages.tokens.pack", PackConfig(seq_len=SEQ_LEN), {"shards": shards}, kind="plan")


def spec_at(root: str, plan_at: str = "") -> TrainSpec:
    """Returns a run over the artifacts at `root`."""
    inputs = Inputs(
        {
            role: Artifact.open_at(Store(at), ArtifactId(f"test/{role}", "dev"))
            for role, at in (("shards", root), ("plan", plan_at or root))
        }
    )
    config = TrainConfig(batch_size=BATCH, microbatch=BATCH // 8, steps=10**6, checkpoint_every=10**6)
    return make_spec(config, inputs, Path(tempfile.mkdtemp(prefix="sluice-tokens-")))


class Rate(NamedTuple):
    """Millions of tokens a second, by the clock and by the process's CPU time."""

    per_s: float
    per_cpu_s: float


def timed(loader: Loader, first: int, steps: int) -> Rate:
    """Returns the rate of some steps."""
    wall, cpu, size = time.perf_counter(), time.process_time(), steps * SEQ_LEN * BATCH / 1e6
    for step in range(first, first + steps):
        loader.microbatches(step)
    return Rate(round(size / (time.perf_counter() - wall), 1), round(size / (time.process_time() - cpu), 1))


def rates(spec: TrainSpec, steps: int, workers: int) -> Rate:
    """Returns the best rate of one process over three rounds of the same steps."""
    with Loader(Batches(spec), range(8), 10**6, CPU, workers=workers) as loader:
        timed(loader, 0, steps)  # blocks are verified at their first read
        found = [timed(loader, 0, steps) for _ in range(3)]
    return Rate(max(rate.per_s for rate in found), max(rate.per_cpu_s for rate in found))


def local(folder: Path, steps: int) -> dict[str, Any]:
    """Returns the rates from a folder by number of threads of one process, and of two processes together."""
    spec = spec_at(str(folder))
    threads = {f"{n} threads": rates(spec, steps, n)._asdict() for n in (0, 1, 2, 4)}
    command = [sys.executable, "-c", PROCESS, str(folder), str(steps)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    each = [[float(number) for number in one.communicate()[0].split()] for one in running]
    return {
        **threads,
        "2 processes without threads": Rate(sum(e[0] for e in each), fmean(e[1] for e in each))._asdict(),
    }


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """Serves a folder as a bucket; yields its URL with the environment of a client set."""
    command = [sys.executable, "-m", "benchmarks.range_server", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout
        url = server.stdout.readline().decode().strip()
        os.environ.update(
            AWS_ENDPOINT_URL_S3=url, AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x", AWS_DEFAULT_REGION="us-east-1"
        )
        try:
            yield "s3://bucket"
        finally:
            server.kill()


def remote(root: str, folder: Path, steps: int, warm: float) -> dict[str, Any]:
    """Returns seconds to the first batch of an empty cache, and the rates as it fills, per window of some steps."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["SLUICE_CACHE"] = cache
        begin = time.perf_counter()
        batches = Batches(spec_at(root, str(folder)))
        loader = Loader(batches, range(8), 10**6, CPU)
        loader.microbatches(0)
        first = time.perf_counter() - begin
        with loader:
            windows = [timed(loader, 1 + window * steps, steps) for window in range(5)]
            rounds = [timed(loader, 0, steps) for _ in range(4)]  # as `rates` does
        batches.close()
        cached = sum(path.stat().st_size for path in Path(cache).glob("blocks/*/*"))
    return {
        "first_batch_s": round(first, 2),
        "steps_per_window": steps,
        "windows": [rate._asdict() for rate in windows],
        "cached": max(rounds, key=lambda rate: rate.per_cpu_s)._asdict(),
        "warm_local_over_cached_per_cpu_s": round(warm / max(rate.per_cpu_s for rate in rounds), 2),
        "cached_mb": round(cached / 1e6),
    }


def block_sizes(root: str) -> dict[str, Any]:
    """Returns what blocks of several sizes cost, 32 in flight: and how long a first batch of 64 sequences takes."""
    store, found = Store(root), {}
    paths = Artifact.open_at(store, ArtifactId("test/shards", "dev")).files(f"{FOLDER}/")
    for size in SIZES:
        random = np.random.default_rng(1)
        names = [f"test/shards/dev/{paths[random.integers(len(paths))]}" for _ in range(400)]
        firsts = [int(random.integers(12 * 2**20)) // size * size for _ in names]
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            list(pool.map(store.read_range, names, firsts, [first + 100 for first in firsts]))  # connects
            begin, cpu = time.perf_counter(), time.process_time()
            list(pool.map(store.read_range, names, firsts, [first + size for first in firsts]))
            seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        found[f"{size // 1024} KiB"] = {
            "blocks_per_s": round(len(names) / seconds),
            "mb_per_s": round(len(names) * size / 1e6 / seconds),
            "cpu_ms_per_block": round(cpu / len(names) * 1e3, 2),
            "cold_batch_s": round(seconds / len(names) * BATCH, 3),
            "read_per_sequence_used": size // (SEQ_LEN * 2),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=64, help="millions")
    parser.add_argument("--without-peers", action="store_true")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="sluice-benchmark-"))
    try:
        make(folder, given.tokens * 1_000_000)
        steps = 100
        here = local(folder, steps)
        with s3_server(folder) as root:
            sizes = block_sizes(root)
            there = remote(root, folder, steps, here["2 threads"]["per_cpu_s"])
        others = {} if given.without_peers else peers(folder, SEQ_LEN, BATCH)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    keep(
        "loader",
        {
            "tokens": given.tokens * 1_000_000,
            "seq_len": SEQ_LEN,
            "batch_sequences": BATCH,
            "million_tokens_local": here,
            "million_tokens_cold_s3": there,
            "block_sizes": sizes,
            "peers_million_tokens_per_s": others,
        },
    )


if __name__ == "__main__":
    main()

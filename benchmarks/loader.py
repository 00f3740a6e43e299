"""The token loader: from a warm local disk, from a cold S3 server on loopback, and against two other loaders.

    python -m benchmarks.loader [--tokens 64] [--without-peers]

Random tokens (millions of them, 2 bytes each) in documents of typical lengths become shards and a plan of 2,048 tokens
per sequence, packed end to end. One process loads batches of 64 sequences in training order: tokens, labels and
document numbers as int64, and bounds. Rates are by wall-clock and by CPU time of the process, best of three rounds
with a warm page cache: on a busy machine only the second is meaningful.

The S3 server answers ranged GETs of a folder like S3, with a pause of 10 ms before each, about the latency of an object
store; moto, which the tests use, copies the whole object for each range. It is a separate process on the same cores.

The peers (mosaicml-streaming, litdata) load the same sequences from files in their own formats, shuffled, without
workers: only tokens, without labels or documents. Each has a separate environment below `.sluice/benchmarks/loader` (1
GB each, created on the first run). If one cannot be installed, the result has the reason. Writes `loader.json`.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from benchmarks.harness import keep, parser, peer_python
from benchmarks.range_server import served
from tasks.core import ranges
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.ranges import IN_FLIGHT
from tasks.core.stage import Inputs, Output, Report
from tasks.core.store import Store
from tasks.formats.tokens.index import IndexedShard, write_index
from tasks.formats.tokens.shard import FOLDER, TRAIN, ShardSet, TokenFormat, shard_name, write_shard
from tasks.stages.tokens import PackConfig
from tasks.trainer.config import TrainConfig, TrainSpec
from tasks.trainer.data.batches import Batches, Loader
from tasks.trainer.spec import make_spec
from tests.conftest import run_stage_in
from tests.shards import buffer_of

SEQ_LEN, BATCH, VOCAB, SHARD_TOKENS = 2048, 64, 50_000, 8_000_000
SIZES = (64 * 1024, 256 * 1024, 1024 * 1024)
CPU = torch.device("cpu")
PROCESS = """
import sys
from benchmarks.loader import rates, spec_at
print(*rates(spec_at(sys.argv[1]), int(sys.argv[2]), 0))
"""

# Programs of the peers: they get a raw file of uint16 tokens, the tokens of a sequence and the sequences of a batch,
# write their own format, load one epoch in shuffled order twice, and print the tokens a second of the second.
WITHOUT_IMAGES = """
import sys
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock
# Both import it for data sets of images; the one on PyPI does not fit torch for processors alone.
for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.functional", "torchvision.datasets"):
    sys.modules[name] = MagicMock(__spec__=ModuleSpec(name, None), __version__="0", VisionDataset=type("Base", (), {}))
"""

STREAMING = """
import sys, tempfile, time
import numpy as np
from torch.utils.data import DataLoader
from streaming import MDSWriter, StreamingDataset
tokens, seq_len, batch = np.fromfile(sys.argv[1], np.uint16), int(sys.argv[2]), int(sys.argv[3])
rows = tokens[: len(tokens) // seq_len * seq_len].reshape(-1, seq_len)
with tempfile.TemporaryDirectory() as folder:
    with MDSWriter(out=folder, columns={"tokens": f"ndarray:uint16:{seq_len}"}) as out:
        for row in rows:
            out.write({"tokens": row})
    data = StreamingDataset(local=folder, shuffle=True, batch_size=batch)
    for _ in range(2):
        begin, count = time.perf_counter(), 0
        for one in DataLoader(data, batch_size=batch, num_workers=0):
            count += one["tokens"].numel()
        seconds = time.perf_counter() - begin
    print(count / seconds)
"""

LITDATA = """
import sys, tempfile, time
import numpy as np, torch
from litdata import StreamingDataLoader, StreamingDataset, TokensLoader, optimize
PATH, seq_len, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def parts(number):
    tokens = np.fromfile(PATH, np.uint16)
    size = len(tokens) // 8 // seq_len * seq_len
    yield torch.from_numpy(tokens[number * size : (number + 1) * size].copy())

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        optimize(fn=parts, inputs=list(range(8)), output_dir=folder, chunk_bytes="64MB", num_workers=1,
                 item_loader=TokensLoader(block_size=seq_len))
        data = StreamingDataset(folder, item_loader=TokensLoader(block_size=seq_len), shuffle=True)
        for _ in range(2):
            begin, count = time.perf_counter(), 0
            for one in StreamingDataLoader(data, batch_size=batch, num_workers=0):
                count += one.numel()
            seconds = time.perf_counter() - begin
        print(count / seconds)
"""

PEERS = {
    "mosaicml-streaming": (["torch==2.13.0", "mosaicml-streaming==0.13.0"], STREAMING),
    "litdata": (["torch==2.13.0", "litdata==0.2.76"], LITDATA),
}


def make(folder: Path, tokens: int, shard_tokens: int = SHARD_TOKENS) -> None:
    """Creates the artifacts test/shards and test/plan, and the sequences as one file for the peers."""
    random = np.random.default_rng(0)
    output = Output(Store(str(folder)), ArtifactId("test/shards", "dev"), "by-hand")
    fmt = TokenFormat(VOCAB, 0, "0" * 64)
    for number in range(max(1, tokens // shard_tokens)):
        lengths = np.maximum(8, random.lognormal(6, 1.1, shard_tokens // 740)).astype(int)
        documents = [np.append(random.integers(1, VOCAB, n, dtype=np.uint16), np.uint16(0)) for n in lengths]
        buffer = buffer_of("web", TRAIN, [random.bytes(16) for _ in documents], documents, [1] * len(documents))
        name, sizes = shard_name("web", TRAIN, number, 0), np.array([len(one) for one in documents])
        with output.part(f"{number:05d}", conserved=False) as part:
            with ranges.checksummed_file(part, f"{FOLDER}/{name}.arrow", len(sizes), int(sizes.sum())) as file:
                offsets = write_shard(file, buffer, fmt)
            urls = pa.array([f"https://site-{number}.example.org/{row}" for row in range(len(sizes))])
            write_index(part, [IndexedShard(name, buffer.uids, urls, offsets, sizes)])
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
    """Millions of tokens per second, by wall-clock and by the process's CPU time."""

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
        timed(loader, 0, steps)  # blocks are verified on their first read
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


def remote(root: str, folder: Path, steps: int, warm: float) -> dict[str, Any]:
    """Returns seconds to the first batch with an empty cache, and the rates as it fills, per window of some steps."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["SLUICE_CACHE"] = cache
        begin = time.perf_counter()
        batches = Batches(spec_at(root, str(folder)))
        loader = Loader(batches, range(8), 10**6, CPU)
        loader.microbatches(0)
        first = time.perf_counter() - begin
        with loader:
            windows = [timed(loader, 1 + window * steps, steps) for window in range(5)]
            rounds = [timed(loader, 0, steps) for _ in range(4)]  # as in `rates`
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
    """Returns the rates of several block sizes, 32 in flight, and the seconds to a first batch of 64 sequences."""
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


def peers(folder: Path) -> dict[str, Any]:
    """Returns millions of tokens per second by peer, from the artifact test/shards, or the reason for a failure."""
    shards = ShardSet.open(Artifact.open_at(Store(str(folder)), ArtifactId("test/shards", "dev")))
    raw = folder / "tokens.bin"
    with raw.open("wb") as file:
        for name in shards.all_names:
            shard = shards.shard(name)
            for row, length in enumerate(shard.lengths.tolist()):
                shard.slice(row, 0, length).tofile(file)
    found: dict[str, Any] = {}
    for name, (packages, program) in PEERS.items():
        try:
            python = peer_python(f"loader/{name}", packages)
            script = folder / f"run_{name}.py"
            script.write_text(WITHOUT_IMAGES + program)
            command = [python, str(script), str(raw), str(SEQ_LEN), str(BATCH)]
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900)
            found[name] = round(float(done.stdout.split()[-1]) / 1e6, 1)
        except (subprocess.SubprocessError, ValueError, IndexError) as error:
            reason = str(getattr(error, "stderr", "") or error).strip().split("\n")
            found[name] = f"did not run: {reason[-1][:200]}"
    return found


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--tokens", type=int, default=64, help="millions")
    options.add_argument("--without-peers", action="store_true")
    given = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="sluice-benchmark-"))
    try:
        make(folder, given.tokens * 1_000_000)
        steps = 100
        here = local(folder, steps)
        with served(folder) as environment:
            os.environ.update(environment)
            sizes = block_sizes("s3://bucket")
            there = remote("s3://bucket", folder, steps, here["2 threads"]["per_cpu_s"])
        others = {} if given.without_peers else peers(folder)
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

"""What a rank of 2,048 reads and holds before its first batch: plans of 0.15, 1.5 and 15 T tokens.

    python -m benchmarks.control_data

Sequences of 4,096 tokens in parts of 2**28 tokens, shards of 32 M tokens. Tables and summary are those of a whole plan;
of arrays and shards only those exist that the first batch of one rank reads, and the shards have no bytes but zeros. A
fresh process opens the run from an S3 server on loopback and loads its microbatch of step 0. Memory is the growth of
its peak from the time when all modules are loaded; bytes are those of all answers. The records are heads without
parts: the parts of shards and plan are not read. Writes `control_data.json`, with the exponents in the tokens.
"""

import io
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import keep, parser
from benchmarks.range_server import served
from tasks.core.artifact import Artifact, ArtifactId, ArtifactRecord, InputRef
from tasks.core.digest import sha256_of
from tasks.core.part import Part
from tasks.core.ranges import ChecksumWriter, checksummed_file, checksums_path
from tasks.core.store import Store
from tasks.formats.tokens.order import Order
from tasks.formats.tokens.plan import FOLDER, SLICE, SUMMARY, array_name, arrays_of, write_array
from tasks.formats.tokens.plan_tables import PART, part_row, shard_dtype, write_tables
from tasks.formats.tokens.shard import shard_name, shard_path
from tasks.formats.tokens.shuffle import Windows
from tasks.trainer.config import TrainConfig, TrainSpec
from tasks.trainer.data.batches import Batches
from tasks.trainer.spec import artifact_spec

SEQ_LEN, BATCH, RANKS, PART_TOKENS, SHARD_TOKENS = 4096, 4096, 2048, 2**28, 2**25
HEADER = 1024
"""Bytes of a shard before its tokens."""
ROLES = ("shards", "plan")
SIZES = (int(15e10), int(15e11), int(15e12))
CHILD = """
import sys
from benchmarks.control_data import of_a_rank
of_a_rank(sys.argv[1], int(sys.argv[2]))
"""


def of_a_rank(root: str, rank: int) -> None:
    """Loads the first microbatch; prints bytes of memory before, those at the peak, bytes read and requests."""
    at = {role: artifact_spec(Artifact.open_at(Store(root), ArtifactId(f"test/{role}", "dev"))) for role in ROLES}
    config = TrainConfig(batch_size=BATCH, microbatch=BATCH // RANKS, steps=1000, checkpoint_every=1000)
    spec = TrainSpec(run=config, weights={"web": 1.0}, out="/nowhere", shards=at["shards"], plan=at["plan"])
    sizes: list[int] = []
    for name in ("read", "read_range"):
        whole = getattr(Store, name)

        def counted(store: Store, *given: Any, whole: Any = whole) -> bytes:
            data: bytes = whole(store, *given)
            sizes.append(len(data))
            return data

        setattr(Store, name, counted)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    Batches(spec).microbatches(0, [rank])
    print(before, _status("VmHWM"), sum(sizes), len(sizes))


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(key)).split()[1])


def record(name: str, inputs: list[InputRef]) -> bytes:
    """Returns the record of an artifact without parts."""
    now = datetime.now(UTC)
    return (
        ArtifactRecord(
            artifact=f"test/{name}@dev", stage=name, stage_version=1, member="", fingerprint=name, content=name * 8,
            config={}, inputs=tuple(inputs), code={}, rows_in=0, rows_out=0, rejected={}, bytes=0, manifests=(),
            metrics={}, members=(), note="", host={}, started=now, finished=now,
        ).model_dump_json().encode()
    )  # fmt: skip


def touched(sequences: int, rank: int) -> list[int]:
    """Returns the sequences of a rank's first microbatch."""
    order = Order({"web": sequences}, {"web": 1.0}, BATCH, 0, None, Windows.of(SEQ_LEN, BATCH))
    return [sequence for _, sequence, _ in order.batch(0)[rank::RANKS]]


def write_part(part: Part, number: int, per_part: int) -> None:
    """Writes the arrays of a part whose sequences are whole, one after another."""
    first = number * PART_TOKENS + np.arange(per_part) * SEQ_LEN
    slices = np.zeros(per_part, SLICE)
    slices["shard"] = first // SHARD_TOKENS
    slices["row"], slices["offset"] = 0, first % SHARD_TOKENS + HEADER // 2
    slices["length"] = SEQ_LEN
    for array, values in arrays_of(slices, np.ones(per_part, np.int64)):
        with checksummed_file(part, f"{FOLDER}/{array_name('web', number, array)}", rows=len(values)) as file:
            write_array(file, values)


def make(folder: Path, tokens: int, rank: int) -> dict[str, int]:
    """Creates shards and plan; returns numbers of sequences, parts and shards."""
    per_part, parts = PART_TOKENS // SEQ_LEN, tokens // PART_TOKENS
    store, shards = Store(str(folder)), parts * (PART_TOKENS // SHARD_TOKENS)
    names = [shard_name("web", "train", number, 0) for number in range(shards)]
    sequences = touched(parts * per_part, rank)
    plan = Part(store, "test/plan/dev", "summary", "by hand")
    used = sorted({sequence // per_part for sequence in sequences})
    for number in used:
        write_part(plan, number, per_part)
    files = {file.path: file for file in plan.record(conserved=False).files}

    def row(number: int) -> tuple[Any, ...]:
        of_part = min(used, key=lambda one: abs(one - number))  # parts that are not read have the files of another one
        path = {array: f"{FOLDER}/{array_name('web', of_part, array)}" for array in ("slices", "first", "documents")}
        bounds = number * PART_TOKENS // SHARD_TOKENS, (number + 1) * PART_TOKENS // SHARD_TOKENS - 1
        return part_row(
            number * per_part, per_part, bounds, lambda array: (files[path[array]], files[checksums_path(path[array])])
        )

    size = HEADER + 2 * SHARD_TOKENS + 4096
    writer = ChecksumWriter(io.BytesIO())
    writer.write(bytes(size))
    sums = writer.checksums()
    for shard in {sequence * SEQ_LEN // SHARD_TOKENS for sequence in sequences}:
        path = folder / "test/shards/dev" / shard_path(names[shard])
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(size)
        store_path = folder / "test/shards/dev" / checksums_path(shard_path(names[shard]))
        store_path.parent.mkdir(parents=True, exist_ok=True)
        store_path.write_bytes(sums)
    table = np.zeros(shards, shard_dtype(max(map(len, names))))
    table["name"] = [name.encode() for name in names]
    table["bytes"], table["tokens"], table["rows"] = size, SHARD_TOKENS, 1
    table["sha256"] = np.frombuffer(np.random.default_rng(0).bytes(32 * shards), "V32")
    table["sums"] = np.frombuffer(bytes.fromhex(sha256_of(sums)) * shards, "V32")
    summary = {
        "seq_len": SEQ_LEN, "method": "concat", "by": "source", "vocab_size": 65_536, "eos_id": 0,
        "tokens_dtype": "uint16", "tokenizer_sha256": "0" * 64, "sequences": {"web": parts * per_part},
        "parts": {"web": [0, parts]}, "tables": write_tables(plan, table, map(row, range(parts))),
    }  # fmt: skip
    plan.write(SUMMARY, json.dumps(summary).encode())
    ref = InputRef(role="shards", address="test/shards@dev", fingerprint="shards", content="shards" * 8)
    for name, inputs in (("shards", []), ("plan", [ref])):
        with store.write(f"test/{name}/dev/.artifact.json") as raw:
            raw.write(record(name, inputs))
    tables = PART.itemsize * parts + table.nbytes
    return {"sequences": parts * per_part, "parts": parts, "shards": shards, "tables_bytes": tables}


def measure(tokens: int, rank: int = 777) -> dict[str, Any]:
    """Returns the figures of one rank of a plan of so many tokens."""
    folder = Path(tempfile.mkdtemp(prefix="sluice-benchmark-"))
    try:
        made = make(folder, tokens, rank)
        with served(folder) as environment:
            given = {**os.environ, **environment, "SLUICE_CACHE": str(folder / "cache")}
            command = [sys.executable, "-c", CHILD, "s3://bucket", str(rank)]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=given)
        before, peak, read, requests = map(int, done.stdout.split())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {"tokens": tokens, **made, "grown_bytes": peak - before, "read_bytes": read, "requests": requests}


def main() -> None:
    parser(__doc__).parse_args()
    rows = [measure(tokens) for tokens in SIZES]
    span = math.log(rows[-1]["tokens"] / rows[0]["tokens"])
    exponents = {
        name: round(math.log(rows[-1][name] / rows[0][name]) / span, 3)
        for name in ("tables_bytes", "grown_bytes", "read_bytes", "requests")
    }
    keep("control_data", {"ranks": RANKS, "batch_sequences": BATCH, "sizes": rows, "exponents": exponents})


if __name__ == "__main__":
    main()

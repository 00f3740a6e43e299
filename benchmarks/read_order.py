"""The order of reading in windows of blocks, beside one that permutes single sequences: bytes fetched, and mixing.

    python -m benchmarks.read_order

Documents of random lengths (no tokens) are packed by the functions of the stage, 4,096 tokens per sequence, 2**27
tokens, as one source of eight shards. A run of one epoch reads the sequences in both orders, with as many open blocks
as fit into a cache of a quarter of the bytes, divided among the nodes. Counted are blocks of 256 KiB of the shards and
of the arrays of the plan; each node has the least recently used ones. "before" packs a whole part by best fit and
permutes single sequences.

Mixing: how many of 64 equal stretches of the source the sequences of some steps are from, and how far the numbers are
from equal, beside draws at random; and the held-out loss of a small network that predicts the next byte of sources of
Python's library, file after file, so that neighbors are alike: in the order of the files, in both orders, three seeds.
Writes `read_order.json`.
"""

import sysconfig
from collections import OrderedDict
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.harness import keep, parser
from tasks.core.ranges import BLOCK
from tasks.formats.tokens.order import Order
from tasks.formats.tokens.plan import SLICE
from tasks.formats.tokens.shuffle import Windows
from tasks.stages.tokens import pack
from tasks.stages.tokens.pack import Documents, PackedSequences

SEQ_LEN, TOKENS, SHARDS, BATCH = 4096, 2**27, 8, 16
SINGLE = Windows(1, 1, 2**62)
WINDOWS = Windows(2**20 // SEQ_LEN, 16, 8)
"""The blocks of a real run, a sixty-fourth of its columns: the source has 128 blocks."""
MIXTURES: dict[str, dict[str, float]] = {"one source": {"s0": 1.0}, "three sources": {"s0": 0.6, "s1": 0.3, "s2": 0.1}}
BYTES, CONTEXT, STEPS, SEEDS = 128, 8, 200, 3


def documents() -> Documents:
    """Returns documents of typical lengths, in eight shards."""
    lengths = np.random.default_rng(0).lognormal(6.0, 1.1, TOKENS // 650).astype(np.int64).clip(8)
    shard = np.cumsum(lengths) * SHARDS // (lengths.sum() + 1)
    begins = np.cumsum(lengths) - lengths
    firsts = begins[np.searchsorted(shard, np.arange(SHARDS))]
    return Documents(shard, np.arange(len(lengths)), begins - firsts[shard] + 512, lengths)


def packed(method: str, span: int) -> PackedSequences:
    """Returns the sequences of a method; `span`: tokens that best fit packs together."""
    before, pack._SPAN_TOKENS = pack._SPAN_TOKENS, span
    try:
        return pack.METHODS[method](documents(), SEQ_LEN)
    finally:
        pack._SPAN_TOKENS = before


def blocks_of(found: PackedSequences) -> list[list[int]]:
    """Returns the numbers of the blocks that each sequence is read from, in shards and plan."""
    slices, ends = found.slices, np.cumsum(found.lengths)
    begins = slices["offset"].astype(np.int64) * 2
    first, last = begins // BLOCK, (begins + slices["length"].astype(np.int64) * 2) // BLOCK
    blocks = []
    for number, (begin, end) in enumerate(zip((ends - found.lengths).tolist(), ends.tolist(), strict=True)):
        own = {
            int(shard) << 32 | block
            for shard, low, high in zip(
                slices["shard"][begin:end].tolist(), first[begin:end].tolist(), last[begin:end].tolist(), strict=True
            )
            for block in range(low, high + 1)
        }
        own |= {1 << 60 | number * 4 // BLOCK, 1 << 61 | begin * SLICE.itemsize // BLOCK}
        blocks.append(sorted(own))
    return blocks


def fetched(blocks: list[list[int]], windows: Windows, mixture: dict[str, float], nodes: int) -> float:
    """Returns bytes fetched by all nodes per byte of tokens that a run of one epoch of the largest source reads."""
    order = Order(dict.fromkeys(mixture, len(blocks)), mixture, BATCH, 0, None, windows)
    room = 2 * TOKENS * len(mixture) // 4 // BLOCK // nodes
    caches: list[OrderedDict[tuple[str, int], None]] = [OrderedDict() for _ in range(nodes)]
    count, steps = 0, int(len(blocks) / max(mixture.values())) // BATCH
    for step in range(steps):
        for slot, (source, sequence, _) in enumerate(order.batch(step)):
            cache = caches[slot % nodes]
            for block in blocks[sequence]:
                if (source, block) in cache:
                    cache.move_to_end((source, block))
                else:
                    count += 1
                    cache[source, block] = None
                    if len(cache) > room:
                        cache.popitem(last=False)
    return round(count * BLOCK / (steps * BATCH * SEQ_LEN * 2), 2)


def reads() -> dict[str, Any]:
    """Returns bytes fetched per byte used by method of packing, before and now, by mixture and nodes."""
    result: dict[str, Any] = {}
    for method in ("concat", "best_fit"):
        before, now = packed(method, 2**62), packed(method, pack._SPAN_TOKENS)
        old, new = blocks_of(before), blocks_of(now)
        cells = {
            f"{name}, {nodes} nodes": {
                "before": fetched(old, SINGLE, mixture, nodes), "now": fetched(new, WINDOWS, mixture, nodes)
            }
            for name, mixture in MIXTURES.items() for nodes in (1, 4)
        }  # fmt: skip
        waste = {
            name: round(1 - int(found.slices["length"].sum()) / (len(found.lengths) * SEQ_LEN), 5)
            for name, found in (("before", before), ("now", now))
        }
        result[method] = {"fetched_per_byte_used": cells, "padding": waste}
    return result


def spread() -> dict[str, Any]:
    """Returns by order how many stretches of a large source some steps read, and chi-square per degree of freedom."""
    size, cells, batch, result = 3_000_000, 64, 64, dict[str, Any]()
    for name, windows in (("before", SINGLE), ("now", Windows.of(SEQ_LEN, batch))):
        order = Order({"web": size}, {"web": 1.0}, batch, 0, None, windows)
        rows = {}
        for steps in (1, 16, 256):
            counts = []
            for first in range(0, 2048, 512):
                items = [one for step in range(first, first + steps) for _, one, _ in order.batch(step)]
                counts.append(np.bincount(np.array(items) * cells // size, minlength=cells))
            equal = batch * steps / cells
            rows[f"{steps} steps"] = {
                "stretches": round(fmean(float((one > 0).sum()) for one in counts), 1),
                "chi_square": round(
                    fmean(float(((one - equal) ** 2 / equal).sum()) / (cells - 1) for one in counts), 2
                ),
            }
        result[name] = rows
    return result


def texts() -> NDArray[np.uint8]:
    """Returns the sources of Python's library, file after file, as sequences of bytes, shape (sequences, BYTES)."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*/*.py"))
    joined = np.frombuffer(b"".join(path.read_bytes() for path in files)[: 2**23], np.uint8)
    return joined[: len(joined) // BYTES * BYTES].reshape(-1, BYTES)


def loss(order: Order | None, sequences: NDArray[np.uint8], held: NDArray[np.uint8], seed: int) -> float:
    """Returns the held-out loss, nats per byte, of a network after one run; None: in the order of the files."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Embedding(256, 16), torch.nn.Flatten(), torch.nn.Linear(16 * CONTEXT, 128), torch.nn.ReLU(),
        torch.nn.Linear(128, 256),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def of(rows: NDArray[np.uint8]) -> torch.Tensor:
        windows = torch.from_numpy(rows.astype(np.int64)).unfold(1, CONTEXT + 1, 8).reshape(-1, CONTEXT + 1)
        return torch.nn.functional.cross_entropy(model(windows[:, :-1]), windows[:, -1])

    for step in range(STEPS):
        numbers = [one for _, one, _ in order.batch(step)] if order else list(range(step * 32, step * 32 + 32))
        optimizer.zero_grad()
        of(sequences[numbers]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * (1 - step / STEPS)
    with torch.no_grad():
        return float(of(held))


def losses() -> dict[str, Any]:
    """Returns the held-out losses by order and seed."""
    sequences = texts()
    is_held = np.arange(len(sequences)) // 16 % 20 == 7
    train, held = sequences[~is_held], sequences[is_held][:1500]
    result: dict[str, list[float]] = {"in the order of the files": [], "before": [], "now": []}
    for seed in range(SEEDS):
        for name, windows in (("before", SINGLE), ("now", Windows(64, 64, 8))):
            order = Order({"web": len(train)}, {"web": 1.0}, 32, seed, None, windows)
            result[name].append(round(loss(order, train, held, seed), 4))
        result["in the order of the files"].append(round(loss(None, train, held, seed), 4))
    return {"sequences": len(train), "batch": 32, "steps": STEPS, "nats_per_byte": result}


def main() -> None:
    parser(__doc__).parse_args()
    torch.set_num_threads(1)
    keep("read_order", {"reads": reads(), "spread": spread(), "loss": losses()})


if __name__ == "__main__":
    main()

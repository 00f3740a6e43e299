"""Other token loaders, for `benchmarks.loader`: each in an environment of its own, on the same sequences.

Every program gets a raw file of uint16 tokens, the tokens of a sequence and the sequences of a batch. It writes its own
format, loads one epoch in shuffled order without workers twice, and prints the tokens a second of the second.
"""

import subprocess
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, peer_python
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.store import Store
from tasks.formats.tokens.shard import ShardSet

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


def peers(folder: Path, seq_len: int, batch: int) -> dict[str, Any]:
    """Returns millions of tokens a second by peer, or why it did not run.

    Args:
        folder: store with the artifact test/shards.
        seq_len: tokens of a sequence.
        batch: sequences of a batch.
    """
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
            python = peer_python(ROOT / ".sluice" / "benchmarks" / "loader" / name, packages)
            script = folder / f"run_{name}.py"
            script.write_text(WITHOUT_IMAGES + program)
            command = [python, str(script), str(raw), str(seq_len), str(batch)]
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900)
            found[name] = round(float(done.stdout.split()[-1]) / 1e6, 1)
        except (subprocess.SubprocessError, ValueError, IndexError) as error:
            said = str(getattr(error, "stderr", "") or error).strip().split("\n")
            found[name] = f"did not run: {said[-1][:200]}"
    return found

"""MinHash signatures: Sluice, datatrove, datasketch and rensa on the same texts in one run.

    python -m benchmarks.minhash [--texts FILE.jsonl.zst ...] [--rounds 3]

Each contender starts from plain text and ends with what it stores for the comparison: Sluice with the sorted runs
of text and band keys of `tasks.stages.dedup.signatures`, datatrove with the signature files of its first stage,
datasketch and rensa, which bring no words of their own, with `MinHash` and `RMinHash` objects over the words of one
regular expression. One
process and one thread each, CPU seconds, best of the rounds, taken in turn so that a busy machine hits all alike. The
peers live in an environment of their own (540 MB under `.sluice/benchmarks/minhash`, made on the first run). Writes
`benchmarks/results/minhash.json`.

Parameters differ as the projects' defaults do: Sluice 128 permutations, 16 bands of 8; datatrove 112, 14 of 8, xxhash.
"""

import argparse
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.harness import cpu_seconds, keep, peer_python

ROOT = Path(__file__).parents[1]
PEERS = [
    "datatrove==0.10.1",
    "spacy==3.8.18",
    "xxhash==3.8.2",
    "datasketch==2.0.0",
    "rensa==0.5.0",
    "tokenizers==0.23.3",
    "regex==2026.11.15",
]

DATATROVE = """
import json, sys, tempfile, time
from loguru import logger
logger.remove()
from datatrove.data import Document
from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature
from datatrove.utils.hashing import HashConfig

documents = [Document(text=json.loads(line), id=str(index)) for index, line in enumerate(open(sys.argv[1]))]
config = MinhashConfig(hash_config=HashConfig(hash_fc="xxhash", precision=64))
with tempfile.TemporaryDirectory() as folder:
    step = MinhashDedupSignature(folder, config=config, language="en")
    step.run(iter(documents[:1]), 1, 2)  # the tokenizer loads on first use
    begin = time.process_time()
    step.run(iter(documents), 0, 2)
    print(time.process_time() - begin)
"""

SHINGLES = """
import json, re, sys, time

texts = [json.loads(line) for line in open(sys.argv[1])]
word = re.compile(r"\\w+")

def shingles(text):
    words = word.findall(text.lower())
    return [" ".join(words[start : start + 5]) for start in range(max(1, len(words) - 4))]
"""

DATASKETCH = (
    SHINGLES
    + """
import xxhash
from datasketch import MinHash

begin = time.process_time()
encoded = ([shingle.encode() for shingle in shingles(text)] for text in texts)
MinHash.bulk(encoded, num_perm=128, hashfunc=xxhash.xxh32_intdigest)
print(time.process_time() - begin)
"""
)

RENSA = (
    SHINGLES
    + """
import rensa

begin = time.process_time()
for text in texts:
    signature = rensa.RMinHash(num_perm=128, seed=1)
    signature.update(shingles(text))
    signature.digest()
print(time.process_time() - begin)
"""
)

SLUICE = """
import json, sys, tempfile, time
import numpy as np
import pyarrow as pa
from tasks.formats.dedup.sorted_runs import by_key
from tasks.stages.dedup import DedupConfig
from tasks.stages.dedup.signatures import records, sign

texts = pa.chunked_array([[json.loads(line) for line in open(sys.argv[1])]])
sign(texts.slice(0, 1), DedupConfig())
begin = time.process_time()
with tempfile.TemporaryFile() as file:
    for run in records(sign(texts, DedupConfig()), 0):
        file.write(by_key(run).tobytes())
print(time.process_time() - begin)
"""


def read_texts(paths: Sequence[str]) -> list[str]:
    """Reads the texts of JSONL files, or by default the source files of this Python's standard library."""
    if not paths:
        files = sorted(Path(os.__file__).parent.glob("**/*.py"))[:1000]
        return [file.read_text("utf-8", "replace") for file in files if "site-packages" not in file.parts]
    texts: list[str] = []
    for path in paths:
        with pa.input_stream(path, compression="detect") as stream:
            texts += (json.loads(line)["text"] for line in io.TextIOWrapper(stream, encoding="utf-8"))
    return texts


def peers() -> str:
    """Makes the peers' environment on the first run; returns its Python."""
    return peer_python(ROOT / ".sluice" / "benchmarks" / "minhash", PEERS)


def measure(texts: list[str], rounds: int) -> dict[str, Any]:
    python = peers()
    contenders = {
        "sluice": (sys.executable, SLUICE),
        "datatrove": (python, DATATROVE),
        "datasketch": (python, DATASKETCH),
        "rensa": (python, RENSA),
    }
    best = dict.fromkeys(contenders, float("inf"))
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps(text) + "\n" for text in texts)
        file.flush()
        for _ in range(rounds):
            for name, (python, program) in contenders.items():
                best[name] = min(best[name], cpu_seconds(python, program, file.name))
    megabytes = sum(len(text.encode("utf-8", "replace")) for text in texts) / 1e6
    speed = {name: round(megabytes / value, 2) for name, value in best.items()}
    return {
        "texts": len(texts),
        "megabytes": round(megabytes, 2),
        "megabytes_per_cpu_second": speed,
        "ratio": {f"sluice/{name}": round(speed["sluice"] / speed[name], 1) for name in speed if name != "sluice"},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", nargs="*", default=[], help="JSONL with a field text, plain or compressed")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    begin = time.monotonic()
    result = {
        "corpus": [Path(path).name for path in given.texts] or "Python standard library",
        "peers": PEERS,
        **measure(read_texts(given.texts), given.rounds),
        "wall_seconds": 0.0,
    }
    result["wall_seconds"] = round(time.monotonic() - begin, 1)
    keep("minhash", result)


if __name__ == "__main__":
    main()

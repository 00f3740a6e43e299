"""Near dedup as a whole: Sluice's stage against datatrove's four MinHash stages, on the same texts in one run.

    python -m benchmarks.dedup [--texts FILE.jsonl.zst ...] [--rounds 2]

Sluice reads documents from Parquet and ends with the artifact `duplicates`: signatures, candidates, each pair verified
by its true Jaccard similarity, clusters, verdicts, audit, picture. datatrove has the documents in memory and ends with
those that its filter keeps: signatures, buckets, clusters, filter; a pair that shares a bucket counts as duplicate,
unverified. One process and one thread each, CPU seconds without imports (both run once on one document before), best of
the rounds, taken in turn so that a busy machine hits all alike. Then signatures alone, with `benchmarks.minhash`, whose
environment for the peers this one uses. Parameters are those of Sluice for both: 16 bands of 8 values, shingles of 5
words. Writes `benchmarks/results/dedup.json`. Bar: 10 times datatrove.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import dedup_scale, minhash
from benchmarks.harness import ROOT, keep, one_thread

DATATROVE = """
import json, sys, tempfile, time
from datatrove.data import Document
from datatrove.pipeline.dedup import minhash
from datatrove.utils.hashing import HashConfig
from loguru import logger

logger.remove()

BANDS = 16
config = minhash.MinhashConfig(
    num_buckets=BANDS, hashes_per_bucket=8, hash_config=HashConfig(hash_fc="xxhash", precision=64)
)

def dedup(documents):
    steps = {}
    with tempfile.TemporaryDirectory() as folder:
        signatures, pairs, clusters = (f"{folder}/{name}" for name in ("signatures", "pairs", "clusters"))
        begin = time.process_time()
        minhash.MinhashDedupSignature(signatures, config=config, language="en").run(iter(documents), 0, 1)
        steps["signatures"] = time.process_time() - begin
        for rank in range(BANDS):
            minhash.MinhashDedupBuckets(signatures, pairs, config=config).run(None, rank, BANDS)
        minhash.MinhashDedupCluster(pairs, clusters, config=config).run(None, 0, 1)
        kept = sum(1 for _ in minhash.MinhashDedupFilter(clusters).run(iter(documents), 0, 1))
        steps["all"] = time.process_time() - begin
    return steps, len(documents) - kept

documents = [Document(text=json.loads(line), id=str(index)) for index, line in enumerate(open(sys.argv[1]))]
dedup(documents[:1])  # the tokenizer loads on first use
steps, removed = dedup(documents)
print(json.dumps({**steps, "removed": removed}))
"""

SLUICE = """
import json, shutil, sys, time
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.engine import open_engine
from tasks.core.stage import Inputs, Output
from tasks.core.store import Store
from tasks.stages.dedup import stage
from tasks.stages.dedup import DedupConfig

def dedup(folder):
    store, config = Store(folder), DedupConfig()
    roles = ("extracted", "prose_score")
    inputs = {role: Artifact.open_at(store, ArtifactId(f"scale/{role}", "dev")) for role in roles}
    begin = time.process_time()
    output = Output(store, ArtifactId("scale/duplicates", "dev"), "f" * 64)
    with open_engine(workers=0) as engine:
        report = stage.run(config, Inputs(inputs), output, engine)
    made = commit(output, "dedup", stage.VERSION, config, [], report)
    seconds = time.process_time() - begin
    metrics = made.record.metrics
    shutil.rmtree(f"{folder}/{made.address.path}")
    return {"all": seconds, "removed": int(metrics["exact_duplicates"] + metrics["near_duplicates"])}

dedup(sys.argv[2])
print(json.dumps(dedup(sys.argv[1])))
"""


def measure(texts: list[str], rounds: int) -> dict[str, Any]:
    """Runs both on the texts; returns the best of the rounds, and the ratio."""
    python = minhash.peers()
    best: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="dedup-") as scratch:
        folder = Path(scratch)
        lines = folder / "texts.jsonl"
        lines.write_text("".join(json.dumps(text) + "\n" for text in texts))
        dedup_scale.make(folder / "all", texts, len(texts))
        dedup_scale.make(folder / "one", texts[:1], 1)
        contenders = {
            "sluice": (sys.executable, SLUICE, str(folder / "all"), str(folder / "one")),
            "datatrove": (python, DATATROVE, str(lines)),
        }
        for _ in range(rounds):
            for name, (executable, program, *arguments) in contenders.items():
                found = _run(executable, program, *arguments)
                if name not in best or found["all"] < best[name]["all"]:
                    best[name] = found
    megabytes = sum(len(text.encode("utf-8", "replace")) for text in texts) / 1e6
    return {
        "texts": len(texts),
        "megabytes": round(megabytes, 2),
        "cpu_seconds": {name: round(found["all"], 2) for name, found in best.items()},
        "datatrove_signatures_cpu_seconds": round(best["datatrove"]["signatures"], 2),
        "removed": {name: found["removed"] for name, found in best.items()},
        "megabytes_per_cpu_second": {name: round(megabytes / found["all"], 2) for name, found in best.items()},
        "ratio": {"sluice/datatrove": round(best["datatrove"]["all"] / best["sluice"]["all"], 1)},
    }


def _run(executable: str, program: str, *arguments: str) -> dict[str, float]:
    done = subprocess.run(
        [executable, "-c", program, *arguments],
        cwd=ROOT,
        env={**os.environ, **one_thread()},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", nargs="*", default=[], help="JSONL with a field text, plain or compressed")
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    begin = time.monotonic()
    texts = minhash.read_texts(given.texts)
    result = {
        "corpus": [Path(path).name for path in given.texts] or "Python standard library",
        "peers": minhash.PEERS,
        "bar": 10,
        "whole": measure(texts, given.rounds),
        "signatures": minhash.measure(texts, given.rounds),
        "wall_seconds": 0.0,
    }
    result["wall_seconds"] = round(time.monotonic() - begin, 1)
    keep("dedup", result)


if __name__ == "__main__":
    main()

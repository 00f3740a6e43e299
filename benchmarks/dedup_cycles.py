"""A version with a few new documents, with the dedup index, beside one with all documents: CPU time, and what is kept.

    python -m benchmarks.dedup_cycles TEXTS.jsonl.zst ... [--documents 50000 200000] [--share 0.05]

Documents are those of `benchmarks.dedup_scale`: real passages, half of them drawn anew, the rest exact and edited
copies. `full` is one version with all of them; `first` one with all but `share`, and `next` the version after it, with
the rest.
Both orders of preference are the same: all scores and times are equal within a version, and those of the later one are
worse. CPU seconds are of the stages dedup, consolidate and dedup_index, in a process for each version, less those of a
version of 100 documents: imports above all.
`cost` is next over full; the kept sets of first and next together must equal that of full, or nothing is written.

Writes `benchmarks/results/dedup_cycles.json`.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.dedup_scale import documents, passages, write
from benchmarks.harness import keep

RUN = """
import json, sys, time
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.engine import open_engine
from tasks.core.groups import ref_to
from tasks.core.stage import Inputs, Output, Report
from tasks.core.store import Store
from tasks.stages.consolidate import stage as consolidate
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.dedup import stage as dedup
from tasks.stages.dedup import DedupConfig
from tasks.stages.dedup_index import stage as dedup_index
from tasks.stages.dedup_index import DedupIndexConfig

root, version, before = sys.argv[1:]
store, made = Store(root), {}
previous = {"index": Artifact.open_at(store, ArtifactId("scale/dedup_index", before))} if before else {}

def opened(kind):
    return Artifact.open_at(store, ArtifactId(f"scale/{kind}", version))

def run(kind, stage, config, inputs):
    output = Output(store, ArtifactId(f"scale/{kind}", version), "f" * 64)
    begin = time.process_time()
    with open_engine(workers=0) as engine:
        report = stage.run(config, Inputs(inputs), output, engine)
    artifact = commit(output, kind, stage.VERSION, config, [], report)
    made[kind] = round(time.process_time() - begin, 2)
    return artifact

extracted, scores = opened("extracted"), opened("prose_score")
output = Output(store, ArtifactId("scale/attributes", version), "a")
with output.part("groups", conserved=False):
    pass
attributes = commit(output, "annotate", 1, DedupConfig(), [ref_to(scores, "prose_score")], Report())
given = {"extracted": extracted, "prose_score": scores, **previous}
duplicates = run("duplicates", dedup, DedupConfig(), given)
settings = ConsolidateConfig(filters=(), mask_pii=False)
given = {"extracted": extracted, "attributes": attributes, "duplicates": duplicates}
kept = run("documents", consolidate, settings, given)
given = {"extracted": extracted, "duplicates": duplicates, "documents": kept, **previous}
run("dedup_index", dedup_index, DedupIndexConfig(enabled=True), given)
ids = [one for path in kept.files("kept/") for one in kept.table(path, ["id"]).column("id").to_pylist()]
print(json.dumps({"cpu_s": made, "ids": ids}))
"""


def version(folder: Path, name: str, before: str = "") -> dict[str, Any]:
    """Runs the three stages over one version in a process of its own."""
    done = subprocess.run([sys.executable, "-c", RUN, str(folder), name, before], check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(folder: Path, texts: list[list[str]], count: int, share: float) -> dict[str, Any]:
    """Makes the versions and compares them."""
    new = round(share * count)
    stream = list(documents(texts, count, 1))
    write(folder, iter(stream), 100, "least", scores=(100, 0.9, 0.9))
    write(folder, iter(stream), count, "full", scores=(count - new, 0.9, 0.5))
    write(folder, iter(stream), count - new, "first", scores=(count, 0.9, 0.9))
    write(folder, itertools.islice(stream, count - new, None), new, "next", count - new, scores=(0, 0.5, 0.5))
    full, first, following = version(folder, "full"), version(folder, "first"), version(folder, "next", "first")
    if {*first["ids"], *following["ids"]} != {*full["ids"]}:
        raise SystemExit(f"{count:,} documents: the two versions keep another set than the one")
    least = sum(version(folder, "least")["cpu_s"].values())
    cpu = {name: sum(run["cpu_s"].values()) - least for name, run in (("full", full), ("next", following))}
    return {
        "documents": count,
        "new": new,
        "kept": len(full["ids"]),
        "kept_new": len(following["ids"]),
        "cpu_s": {"full": full["cpu_s"], "first": first["cpu_s"], "next": following["cpu_s"]},
        "least_cpu_s": round(least, 2),
        "cost": round(cpu["next"] / cpu["full"], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="+", help="JSONL files with a field text, plain or compressed")
    parser.add_argument("--documents", nargs="+", type=int, default=[50_000, 200_000])
    parser.add_argument("--share", type=float, default=0.05)
    given = parser.parse_args()
    texts, rows = passages(given.texts), []
    for count in given.documents:
        with tempfile.TemporaryDirectory(prefix="dedup-cycles-") as folder:
            rows.append(measure(Path(folder), texts, count, given.share))
    keep("dedup_cycles", {"corpus": [Path(path).name for path in given.texts], "share": given.share, "runs": rows})


if __name__ == "__main__":
    main()

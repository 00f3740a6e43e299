"""Near dedup of a growing corpus: wall time, CPU time and memory of `dedup` at several numbers of documents.

    python -m benchmarks.dedup_scale TEXTS.jsonl.zst ... [--documents 50000 200000] [--workers 2]

Documents are real text with seeded edits: passages of 60 to 400 words of the files; half of them are drawn anew, a
fifth are exact copies with other case and punctuation, the rest copies with one word in 5 to 200 replaced (true
Jaccard 0.1 to 0.95). So the share of copies, and the sizes of clusters, are alike at all numbers. Each number is one
run of the stage in a process of its own with `--workers` Dask workers; memory is that of the largest process and the
sum of all at one time, sampled every 50 ms: RSS, which also counts pages of mapped files, and PSS-like "own" memory
(RSS without shared pages). What a corpus of 100 documents costs, the start of the processes above all, is taken off the
times. `cost_ratio` is the CPU time per document against the smallest corpus: 1 is linear.

Writes `benchmarks/results/dedup_scale.json`. 5 M documents take about 30 GB below `--folder`.
"""

import argparse
import io
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import keep
from tasks.core.artifact import ArtifactId
from tasks.core.commit import commit
from tasks.core.groups import KIND
from tasks.core.stage import Output, Report, part_names
from tasks.core.store import Store
from tasks.formats.documents.document import DOCUMENT, REJECTED, document_id, marked
from tasks.stages.dedup import DedupConfig

PER_PART = 10_000
"""Documents per part."""
_SCORE = pa.schema([("error", pa.string()), ("prose_score", pa.struct([("score", pa.float32())]))])

RUN = """
import json, sys, time
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.engine import open_engine
from tasks.core.stage import Inputs, Output
from tasks.core.store import Store
from tasks.stages.dedup import stage
from tasks.stages.dedup import DedupConfig

store, config = Store(sys.argv[1]), DedupConfig()
inputs = {role: Artifact.open_at(store, ArtifactId(f"scale/{role}", "dev")) for role in ("extracted", "prose_score")}
output = Output(store, ArtifactId("scale/duplicates", "dev"), "f" * 64)
with open_engine(workers=int(sys.argv[2])) as engine:
    report = stage.run(config, Inputs(inputs), output, engine)
commit(output, "dedup", stage.VERSION, config, [], report)
"""


def passages(paths: list[str]) -> list[list[str]]:
    """Returns the words of every text of at least 60 words."""
    found = []
    for path in paths:
        with pa.input_stream(path, compression="detect") as stream:
            for line in io.TextIOWrapper(stream, encoding="utf-8"):
                words = json.loads(line)["text"].split()
                if len(words) >= 60:
                    found.append(words)
    return found


def documents(texts: list[list[str]], count: int, seed: int) -> Iterator[str]:
    """Yields real passages, exact copies of earlier ones, and edited copies."""
    drawn = random.Random(seed)
    recent: list[list[str]] = []
    for _ in range(count):
        kind = drawn.random()
        if kind < 0.5 or not recent:
            words = drawn.choice(texts)
            length = min(len(words), drawn.randint(60, 400))
            start = drawn.randrange(len(words) - length + 1)
            # A tenth of the words are replaced: two passages of one place of a small collection are no copies.
            fresh = edited(words[start : start + length], length // 10, drawn)
            if len(recent) < 20_000:
                recent.append(fresh)
            else:
                recent[drawn.randrange(20_000)] = fresh
            yield " ".join(fresh)
        elif kind < 0.7:
            yield " ".join(drawn.choice(recent)).upper() + "!"
        else:
            words = drawn.choice(recent)
            yield " ".join(edited(words, max(1, len(words) // drawn.randint(5, 200)), drawn))


def edited(words: list[str], changes: int, drawn: random.Random) -> list[str]:
    """Returns the words with some of them replaced by words that are nowhere else."""
    words = list(words)
    for _ in range(changes):
        words[drawn.randrange(len(words))] = f"x{drawn.getrandbits(40):x}"
    return words


def make(folder: Path, texts: Iterable[str], count: int) -> int:
    """Writes `extracted` and the prose scores of `count` documents; returns their bytes of text."""
    return write(folder, iter(texts), count, "dev")


def write(
    folder: Path,
    stream: Iterator[str],
    count: int,
    version: str,
    first: int = 0,
    scores: tuple[int, float, float] | None = None,
) -> int:
    """Writes the next documents of a stream as a version; returns their bytes of text.

    Args:
        folder: the store.
        stream: texts.
        count: documents.
        version: of both artifacts.
        first: number of the first document, from which its id follows.
        scores: (so many, their prose score, that of the others), all with one time; without it scores and times are
            drawn.
    """
    store = Store(str(folder))
    extracted, measured = (
        Output(store, ArtifactId(f"scale/{kind}", version), kind) for kind in ("extracted", "prose_score")
    )
    drawn, size, at = random.Random(2 + first), 0, first
    for name in part_names(-(-count // PER_PART)):
        held = [text for _, text in zip(range(min(PER_PART, first + count - at)), stream, strict=False)]
        size += sum(len(text.encode()) for text in held)
        ids = [document_id(f"https://example.org/{at + row}", "sha1:A") for row in range(len(held))]
        at += len(held)
        columns: dict[str, Any] = {field.name: [""] * len(held) for field in DOCUMENT if not field.nullable}
        nothing = {field.name: [None] * len(held) for field in DOCUMENT if field.nullable}
        columns |= nothing | {"id": ids, "text": held, "source": ["web"] * len(held)}
        columns["host"] = ["example.org"] * len(held)
        days = [1 if scores else 1 + drawn.randrange(28) for _ in held]
        columns["fetched_at"] = [datetime(2026, 1, day, tzinfo=UTC) for day in days]
        with extracted.part(name, conserved=False) as part:
            part.table("documents", pa.table([columns[field] for field in DOCUMENT.names], schema=DOCUMENT))
            part.table("rejected", REJECTED.empty_table(), out=False)
        score = [{"score": _score(row, scores, drawn)} for row in range(at - len(held), at)]
        table = pa.table([[None] * len(held), score], schema=_SCORE)
        with measured.part(name, conserved=False) as part, part.file(f"{KIND}/{name}.parquet") as file:
            pq.write_table(marked(table, pa.chunked_array([ids])), file)
    for output in (extracted, measured):
        commit(output, "made", 1, DedupConfig(), [], Report())
    return size


def _score(row: int, scores: tuple[int, float, float] | None, drawn: random.Random) -> float:
    if scores is None:
        return drawn.randrange(100) / 100
    return scores[1] if row < scores[0] else scores[2]


class Watch:
    """Samples the memory of a process and its descendants until it ends."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self.largest = self.total = self.largest_own = self.total_own = 0
        self.cpu: dict[int, float] = {}
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE:
            rss, own = [], []
            try:
                several = [self._process, *self._process.children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            for one in several:
                try:
                    memory, times = one.memory_info(), one.cpu_times()
                except psutil.NoSuchProcess:
                    continue
                rss.append(memory.rss)
                own.append(memory.rss - memory.shared)
                self.cpu[one.pid] = times.user + times.system
            self.largest, self.total = max([self.largest, *rss]), max(self.total, sum(rss))
            self.largest_own, self.total_own = max([self.largest_own, *own]), max(self.total_own, sum(own))
            time.sleep(0.05)

    def join(self) -> None:
        """Waits for the end of the process."""
        self._thread.join()


def measure(folder: Path, texts: list[list[str]], count: int, workers: int) -> dict[str, Any]:
    """Makes a corpus of so many documents and runs the stage on it."""
    folder.mkdir(parents=True)
    size = make(folder, documents(texts, count, 1), count)
    begin = time.monotonic()
    child = subprocess.Popen([sys.executable, "-c", RUN, str(folder), str(workers)])
    watch = Watch(psutil.Process(child.pid))
    if child.wait():
        raise SystemExit(f"the run over {count:,} documents has failed")
    wall = time.monotonic() - begin
    watch.join()
    artifact = folder / "scale" / "duplicates" / "dev"
    record = json.loads((artifact / ".artifact.json").read_text())
    on_disk = sum(path.stat().st_size for path in artifact.rglob("*") if path.is_file())
    shutil.rmtree(folder)
    cpu = sum(watch.cpu.values())
    names = ("candidate_pairs", "verified_pairs", "clusters", "largest_cluster", "exact_duplicates", "near_duplicates")
    return {
        "documents": count,
        "text_mb": round(size / 1e6, 1),
        "wall_s": round(wall, 1),
        "cpu_s": round(cpu, 1),
        "largest_process_mb": round(watch.largest / 1e6),
        "all_processes_mb": round(watch.total / 1e6),
        "largest_process_own_mb": round(watch.largest_own / 1e6),
        "all_processes_own_mb": round(watch.total_own / 1e6),
        "artifact_mb": round(on_disk / 1e6),
        **{name: round(record["metrics"][name]) for name in names},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="+", help="JSONL files with a field text, plain or compressed")
    parser.add_argument("--documents", nargs="+", type=int, default=[50_000, 200_000])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    given = parser.parse_args()
    texts = passages(given.texts)
    rows = []
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="dedup-scale-") as folder:
        start, *rows = [
            measure(Path(folder) / str(count), texts, count, given.workers) for count in (100, *sorted(given.documents))
        ]
    for row in rows:
        row["wall_s"], row["cpu_s"] = (round(row[name] - start[name], 1) for name in ("wall_s", "cpu_s"))
        row["cpu_us_per_document"] = round(1e6 * row["cpu_s"] / row["documents"], 1)
        row["cost_ratio"] = round(row["cpu_us_per_document"] / rows[0]["cpu_us_per_document"], 2)
    times = {name: start[name] for name in ("wall_s", "cpu_s", "all_processes_own_mb")}
    corpus = [Path(path).name for path in given.texts]
    keep("dedup_scale", {"corpus": corpus, "workers": given.workers, "start": times, "runs": rows})


if __name__ == "__main__":
    main()

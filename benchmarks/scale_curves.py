"""The growth curves of `benchmarks.scale`: each runs a public operation or a whole stage at several sizes.

A curve is a generator of `Curve`s; `CURVES` has them by name. Sizes are in equal ratio, the smallest ones with
`quick`. Requests and bytes are those that an S3 server on loopback counts (`tests.s3_objects`), CPU and memory those of
this process, which makes the parts of a stage itself.
"""

import json
import os
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import engine as engine_benchmark
from benchmarks import loader, merges, recipes_parse
from benchmarks.harness import ROOT, last_line, spent
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.ledger import newest
from tasks.core.removal import remove_files
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.core.version_index import VersionIndex
from tasks.stages.tokens import EncodeConfig, TokenizerConfig
from tasks.trainer.data.batches import Batches
from tasks.trainer.logs import METRICS, StepLog
from tests.conftest import run_stage_in
from tests.corpora import corpus, documents_in
from tests.many_parts import STAGES, Made, run, write_inputs
from tests.s3_objects import Counting, served

ADDRESS = ArtifactId("demo/books", "a")
FILES = 2
"""Files of a part of the artifacts that are made without a stage."""
PER_BUCKET = 32
"""Records of a bucket of dedup: few, so that there are more buckets for more parts, as in a large corpus."""
_SHARD_TOKENS = 200_000
_STEP = {"loss": 2.512345, "lr": 3e-4, "grad_norm": 1.012345, "tokens": 1 << 40, "tokens_per_s": 1e5, "step_s": 1.0}


@dataclass(frozen=True)
class Curve:
    """The cost of one operation at several sizes.

    Attributes:
        name: the operation.
        unit: what the sizes count: parts, versions, recipes, steps, shards.
        what: what the costs count: requests, bytes, CPU-seconds, or bytes of memory of one process.
        sizes: in equal ratio.
        costs: one for each size.
        stage: the stage of `sluice plan` that it is, or "".
    """

    name: str
    unit: str
    what: str
    sizes: Sequence[int]
    costs: Sequence[float]
    stage: str = ""


REQUESTS, BYTES, CPU, MEMORY = "requests", "bytes", "CPU-seconds", "bytes of memory"


def _sizes(quick: bool, first: int, ratio: int, count: int, smallest: int) -> list[int]:
    """Returns sizes in equal ratio; for `quick` three doublings from the smallest one."""
    return [smallest * 2**step for step in range(3)] if quick else [first * ratio**step for step in range(count)]


def _curves(
    name: str, unit: str, sizes: Sequence[int], rows: Sequence[dict[str, float]], stage: str = ""
) -> list[Curve]:
    """Returns a curve for each figure of the rows."""
    return [Curve(name, unit, what, sizes, [row[what] for row in rows], stage) for what in rows[0]]


@contextmanager
def _server() -> Iterator[Counting]:
    """Runs a server whose environment this process has, with an empty cache."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as cache, served(float(os.environ.get("SLUICE_S3_DELAY_MS", "0"))) as server:
        os.environ.update(server.environment | {"SLUICE_CACHE": cache})
        try:
            yield server
        finally:
            os.environ.clear()
            os.environ.update(before)


def _counted(server: Counting, work: Callable[[], object]) -> dict[str, float]:
    """Returns requests, bytes and CPU of a call."""
    server.counts(reset=True)
    cpu = spent(work)
    counts = server.counts()
    return {REQUESTS: server.total(counts), BYTES: counts["bytes in"] + counts["bytes out"], CPU: cpu}


def _made(store: Store, parts: int, version: str = ADDRESS.version) -> Output:
    """Returns the output of a stage that has made its parts, and not committed them."""
    output = Output(store, ArtifactId(ADDRESS.name, version), "1" * 64)
    for number in range(parts):
        name = f"part-{number:05d}-of-{parts:05d}"
        with output.part(name) as part:
            part.count_in(290)
            part.count_out(290)
            part.metric("texts", 290)
            for folder in range(FILES):
                part.write(f"folder{folder}/{name}.parquet", name.encode(), rows=290)
    return output


def _committed(output: Output) -> Artifact:
    return commit(output, "demo", 1, Config(), (), Report())


def _make_and_commit(store: Store, parts: int) -> Artifact:
    return _committed(_made(store, parts))


def _verify(store: Store) -> None:
    Artifact.open_at(store, ADDRESS).verify()


def _artifacts_of(store: Store, version: str) -> None:
    VersionIndex(store, "demo").artifacts(version)


def _read_one(store: Store) -> None:
    """Opens an artifact, and reads one of its files."""
    artifact = Artifact.open_at(store, ADDRESS)
    artifact.read(next(iter(artifact.parts)).files[0].path)


def _count_files(store: Store) -> int:
    """Opens an artifact, and reads the records of all its parts one after another."""
    return sum(len(part.files) for part in Artifact.open_at(store, ADDRESS).parts)


def _remove_files(store: Store) -> None:
    remove_files(Artifact.open_at(store, ADDRESS), "measured", datetime.now(UTC))


def _peak(work: Callable[[], object]) -> float:
    """Returns the largest number of bytes that Python has allocated during a call."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _alone(measure: Callable[[Callable[[], object]], float], work: Callable[[], object]) -> float:
    """Returns what is measured of a call in a process of its own, so that nothing is in its memory yet."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        try:
            os.write(writer, repr(float(measure(work))).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as file:
        result = file.read()
    os.waitpid(child, 0)
    return float(result)


def records(quick: bool) -> Iterator[Curve]:
    """Commit of an artifact, and opening it for one file and for all parts: CPU and memory of one process."""
    sizes = _sizes(quick, 250, 4, 3, 16)
    rows: dict[str, list[dict[str, float]]] = {"commit": [], "open and read a file": [], "go through all parts": []}
    os.fsync = lambda _: None  # type: ignore[assignment]  # the disk is not measured
    with tempfile.TemporaryDirectory() as folder:
        _committed(_made(Store(f"{folder}/warm"), 2))  # reads the version of the code from git
        for parts in sizes:
            timed, traced = (Store(f"{folder}/{name}-{parts}") for name in ("timed", "traced"))
            cpu = spent(partial(_committed, _made(timed, parts)))
            memory = _peak(partial(_make_and_commit, traced, parts))
            hidden = sum(size for path, size in timed.sizes(ADDRESS.path).items() if not path.startswith("folder"))
            rows["commit"].append({CPU: cpu, MEMORY: memory, BYTES: float(hidden)})
            for name, call in (("open and read a file", _read_one), ("go through all parts", _count_files)):
                reading = partial(call, timed)
                rows[name].append({CPU: _alone(spent, reading), MEMORY: _alone(_peak, reading)})
    for name, found in rows.items():
        yield from _curves(name, "parts", sizes, found)


def requests(quick: bool) -> Iterator[Curve]:
    """Resume, commit, opening, verification and removal of an artifact: requests."""
    sizes = _sizes(quick, 16, 2, 4, 4)
    rows: dict[str, list[dict[str, float]]] = {}
    with _server() as server:
        for parts in sizes:
            store = Store(f"s3://sluice/requests-{parts}")
            output = _made(store, parts)
            calls: dict[str, Callable[[], object]] = {
                "resume": partial(Output, store, ADDRESS, "1" * 64),
                "commit": partial(_committed, output),
                "open and read a file": partial(_read_one, store),
                "verify": partial(_verify, store),
                "remove files": partial(_remove_files, store),
            }
            for name, call in calls.items():
                rows.setdefault(name, []).append({REQUESTS: _counted(server, call)[REQUESTS]})
    for name, found in rows.items():
        yield from _curves(name, "parts", sizes, found)


def versions(quick: bool) -> Iterator[Curve]:
    """The list of versions, the artifacts of one, and the newest artifact of a kind: requests."""
    sizes = _sizes(quick, 16, 2, 4, 2)
    rows: dict[str, list[dict[str, float]]] = {}
    with _server() as server:
        store, made = Store("s3://sluice/versions"), 0
        for count in sizes:
            for number in range(made, count):
                _committed(_made(store, 1, f"v{number:05d}"))
            made = count
            last = f"v{count - 1:05d}"
            calls: dict[str, Callable[[], object]] = {
                "list the versions": lambda: VersionIndex(store, "demo").versions(),
                "artifacts of a version": partial(_artifacts_of, store, last),
                "newest of a kind": lambda: newest(store, ADDRESS.name),
            }
            for name, call in calls.items():
                call()  # the first use may write the index
                rows.setdefault(name, []).append({REQUESTS: _counted(server, call)[REQUESTS]})
    for name, found in rows.items():
        yield from _curves(name, "versions", sizes, found)


_PLANNED = {
    "extracted": "extract",
    "attributes": "annotate",
    "duplicates": "dedup",
    "documents": "consolidate",
    "tokenizer": "tokenizer",
    "shards": "encode",
    "plan": "pack",
    "spans": "spans",
}
"""Stages of the plan of a corpus, by the kind of their artifact."""


def stages(quick: bool) -> Iterator[Curve]:
    """Every stage from extract to spans on parts of two documents: requests, bytes and CPU of all its processes."""
    sizes = _sizes(quick, 8, 2, 4, 2)
    rows: dict[str, list[dict[str, float]]] = {kind: [] for kind in STAGES}
    with tempfile.TemporaryDirectory() as scratch, _server() as server:
        for number, parts in enumerate([2, *sizes]):  # the first run imports modules, and does not count
            made = Made(f"s3://sluice/stages-{number}", Path(scratch) / str(number), parts, PER_BUCKET)
            write_inputs(made.inputs, parts)
            for kind, found in rows.items():
                found.append(_counted(server, partial(run, kind, made)))
    for kind, found in rows.items():
        yield from _curves(_PLANNED[kind], "parts", sizes, found[1:], _PLANNED[kind])


def accumulate(quick: bool) -> Iterator[Curve]:
    """Encode with `accumulate`: what all versions together cost, each with two new parts."""
    sizes = _sizes(quick, 1, 2, 4, 1)
    rows: list[dict[str, float]] = []
    with _server() as server:
        root = "s3://sluice/accumulate"
        encoded: Artifact | None = None
        total: dict[str, float] = {}
        texts = corpus(24 * sizes[-1])
        for number in range(sizes[-1]):
            version = f"v{number:04d}"
            documents = documents_in(root, texts[24 * number : 24 * (number + 1)], version=version)
            if encoded is None:
                config = TokenizerConfig(vocab_size=300, sample_bytes=5000)
                tokenizer = run_stage_in(
                    root, "tasks.stages.tokens.bpe", config, {"documents": documents}, kind="tokenizer"
                )
            inputs: dict[str, Any] = {"documents": documents, "tokenizer": tokenizer}
            inputs |= {"earlier": encoded} if encoded else {}

            def encode(inputs: dict[str, Any] = inputs, version: str = version) -> None:
                nonlocal encoded
                config = EncodeConfig(accumulate=True)
                module = "tasks.stages.tokens.encode"
                encoded = run_stage_in(root, module, config, inputs, kind="shards", version=version)

            total = {what: total.get(what, 0) + cost for what, cost in _counted(server, encode).items()}
            if number + 1 in sizes:
                rows.append(total)
    yield from _curves("encode of all versions", "versions", sizes, rows)


def _identities_merged(rows: int, parts: int) -> dict[str, Any]:
    return merges.identities_measured(parts, rows)


def merged(quick: bool) -> Iterator[Curve]:
    """The merge of the keys of many parts, and of the identities of the first pass (`benchmarks.merges`)."""
    for name, sizes, measure in (
        ("merge of keys", _sizes(quick, 256, 4, 3, 4), partial(merges.measured, "levels")),
        ("merge of identities", _sizes(quick, 64, 2, 3, 4), partial(_identities_merged, 4096)),
    ):
        found = [measure(parts) for parts in sizes]
        rows = [{BYTES: row["bytes"], REQUESTS: row["requests"], CPU: row["cpu_s"]} for row in found]
        yield from _curves(name, "parts", sizes, rows)


def engine(quick: bool) -> Iterator[Curve]:
    """Parts on Dask with two workers, in a window (`benchmarks.engine`)."""
    sizes = _sizes(quick, 1000, 4, 3, 100)
    program = engine_benchmark.ONE_RUN
    found = [json.loads(last_line(sys.executable, program, "window", str(size))) for size in sizes]
    rows = [{CPU: row["client_cpu_s"] + row["other_cpu_s"], MEMORY: row["bytes"]} for row in found]
    yield from _curves("engine", "parts", sizes, rows)


def batches(quick: bool) -> Iterator[Curve]:
    """What a rank of a training run opens before its first batch: CPU and memory, by shards of a plan."""
    sizes, rows = _sizes(quick, 8, 4, 3, 2), []
    for shards in sizes:
        with tempfile.TemporaryDirectory() as folder:
            loader.make(Path(folder), shards * _SHARD_TOKENS, _SHARD_TOKENS)
            spec = loader.spec_at(folder)
            Batches(spec).close()

            def opened(spec: Any = spec) -> None:
                Batches(spec).close()

            rows.append({CPU: spent(opened), MEMORY: _peak(opened)})
    yield from _curves("batches of a rank", "shards", sizes, rows)


def steps(quick: bool) -> Iterator[Curve]:
    """A restart of a training run, which reads the log of its steps again."""
    sizes, rows = _sizes(quick, 2500, 4, 3, 100), []
    for count in sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / METRICS
            path.write_text("".join(json.dumps({"step": step, **_STEP}) + "\n" for step in range(count)))
            memory = _peak(partial(StepLog, path, count))
            rows.append({CPU: spent(partial(StepLog, path, count)), MEMORY: memory})
    yield from _curves("restart of a training", "steps", sizes, rows)


def recipes(quick: bool) -> Iterator[Curve]:
    """A round of the dag-processor over all DAG files (`benchmarks.recipes_parse`)."""
    sizes = _sizes(quick, 25, 2, 3, 1)
    found = recipes_parse.worker(ROOT, sizes)
    yield from _curves("parse of DAG files", "recipes", sizes, [{CPU: row["parse_s"]} for row in found])


CURVES: dict[str, Callable[[bool], Iterator[Curve]]] = {
    one.__name__: one
    for one in (records, requests, versions, stages, accumulate, merged, engine, batches, steps, recipes)
}

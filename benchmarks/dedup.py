"""Near dedup: against datatrove, at growing sizes, across versions, and its recall against the theory.

    python -m benchmarks.dedup peers [--texts FILE.jsonl.zst ...] [--rounds 2]
    python -m benchmarks.dedup scale TEXTS.jsonl.zst ... [--documents 50000 200000] [--workers 2]
    python -m benchmarks.dedup cycles TEXTS.jsonl.zst ... [--documents 50000 200000] [--share 0.05]
    python -m benchmarks.dedup recall TEXTS.jsonl.zst ... [--gold FOLDER] [--pairs 500]

`peers`: the stage against datatrove's four MinHash stages, on the same texts. Sluice reads documents from Parquet and
writes the artifact `duplicates`: signatures, candidates, each pair verified by its exact Jaccard similarity, clusters,
verdicts, audit, figure. datatrove has the documents in memory and returns those that its filter keeps; a pair that
shares a bucket counts as a duplicate, unverified. One process and one thread each, CPU seconds without imports (both
run once on one document before), best of the rounds, taken in turn. Both use the parameters of Sluice: 16 bands of 8
values, shingles of 5 words. Goal: 10 times datatrove. Writes `dedup.json`.

`scale`: passages of 60 to 400 words of the files; half of the documents are new passages, a fifth are exact copies with
other case and punctuation, the rest copies with one word in 5 to 200 replaced (exact Jaccard 0.1 to 0.95), so the share
of copies and the sizes of clusters are similar at all sizes. Each size is one run of the stage in a separate process
with `--workers` Dask workers. The cost of a corpus of 100 documents, mostly the start of the processes, is
subtracted from the times. `cost_ratio` is the CPU time per document relative to the smallest corpus: 1 is linear. 5 M
documents take about 30 GB below `--folder`. Writes `dedup_scale.json`.

`cycles`: `full` is one version with all documents, `first` one with all but `share`, and `next` the version after it,
with the rest and the dedup index. Both prefer the same documents: scores and times are equal within a version, and
worse in the later one. CPU seconds are of the stages dedup, consolidate and dedup_index, minus those of a version of
100 documents. `cost` is next over full. The kept sets of first and next together must equal that of full, or nothing is
written. Writes `dedup_cycles.json`.

`recall`: distinct real passages of 200 words, each with an edited copy, until there are `--pairs` pairs in each of 20
ranges of exact Jaccard similarity from 0.5 to 1. The stage runs with a threshold of 0.01, so it lists each pair that
shares a band; `found` is their share in a range, `theory` the mean of 1 - (1 - s^r)^b over its pairs (Leskovec,
Rajaraman, Ullman, Mining of Massive Datasets, 3.4.2), for 16 bands of 8 and 20 of 6. `z` is the distance between both
in standard deviations of the number of detected pairs, or in pairs if that deviation is below one. `--gold` is a folder
with `docs.jsonl.zst` (id, text) and `pairs.jsonl.zst` (a, b, jaccard5): recall of its pairs from 0.8 on with the
stage's default settings, and the share of detected pairs at 0.8 or above. Writes `dedup_recall.json` and
`dedup_recall.png`.
"""

import argparse
import itertools
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.harness import (
    RESULTS,
    in_turn,
    json_lines,
    keep,
    last_line,
    parser,
    peer_python,
    python_sources,
    texts_of,
    watched,
)
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.engine import open_engine
from tasks.core.stage import Inputs, Output, Report, part_names
from tasks.core.store import Store
from tasks.formats.documents.document import DOCUMENT, REJECTED, document_id, with_ids_digest
from tasks.formats.documents.groups import KIND, ref_to
from tasks.formats.documents.text import normalise
from tasks.stages.consolidate import stage as consolidate
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.dedup import DedupConfig
from tasks.stages.dedup import stage as dedup
from tasks.stages.dedup_index import DedupIndexConfig
from tasks.stages.dedup_index import stage as dedup_index

PEERS = ("datatrove==0.10.1", "spacy==3.8.18", "xxhash==3.8.2", "tokenizers==0.23.3", "regex==2026.11.15")
PER_PART = 10_000
"""Documents per part."""
WORDS, SHINGLE = 200, 5
RANGES = np.linspace(0.5, 1.0, 21)
BANDINGS = ((16, 8), (20, 6))
EDITS = ("replaced", "beginning", "end")
_TRIES = 100
_SCORE = pa.schema([("error", pa.string()), ("prose_score", pa.struct([("score", pa.float32())]))])


def passages(paths: Sequence[str]) -> list[list[str]]:
    """Returns the words of every text of at least 60 words."""
    return [words for path in paths for text in texts_of(path) if len(words := text.split()) >= 60]


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
            # A tenth of the words are replaced, so that two passages from the same place of a small collection are not
            # copies.
            fresh = replaced(words[start : start + length], length // 10, drawn)
            if len(recent) < 20_000:
                recent.append(fresh)
            else:
                recent[drawn.randrange(20_000)] = fresh
            yield " ".join(fresh)
        elif kind < 0.7:
            yield " ".join(drawn.choice(recent)).upper() + "!"
        else:
            words = drawn.choice(recent)
            yield " ".join(replaced(words, max(1, len(words) // drawn.randint(5, 200)), drawn))


def replaced(words: list[str], changes: int, drawn: random.Random) -> list[str]:
    """Returns the words with some of them replaced by unique words."""
    words = list(words)
    for _ in range(changes):
        words[drawn.randrange(len(words))] = f"x{drawn.getrandbits(40):x}"
    return words


def write(
    folder: Path | str,
    texts: Iterable[str],
    count: int,
    version: str = "dev",
    first: int = 0,
    scores: tuple[int, float, float] | None = None,
) -> int:
    """Writes `scale/extracted` and `scale/prose_score` of the next documents; returns their bytes of text.

    Args:
        folder: the store.
        texts: of the documents, an iterator if several versions share it.
        count: documents.
        version: of both artifacts.
        first: number of the first document, which determines its id.
        scores: (count, their prose score, that of the others), all with one time; without it scores and times are
            random.
    """
    store, stream = Store(str(folder)), iter(texts)
    extracted, measured = (
        Output(store, ArtifactId(f"scale/{kind}", version), kind) for kind in ("extracted", "prose_score")
    )
    drawn, size, at = random.Random(2 + first), 0, first
    for name in part_names(-(-count // PER_PART)):
        held = list(itertools.islice(stream, min(PER_PART, first + count - at)))
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
            pq.write_table(with_ids_digest(table, pa.chunked_array([ids])), file)
    for output in (extracted, measured):
        commit(output, "made", 1, Config(), [], Report())
    return size


def _score(row: int, scores: tuple[int, float, float] | None, drawn: random.Random) -> float:
    if scores is None:
        return drawn.randrange(100) / 100
    return scores[1] if row < scores[0] else scores[2]


def run_stage(folder: Path | str, workers: int = 0, config: DedupConfig | None = None) -> Artifact:
    """Runs the stage over the artifacts of `write`, and commits its artifact `scale/duplicates`."""
    store, config = Store(str(folder)), config or DedupConfig()
    roles = ("extracted", "prose_score")
    inputs = {role: Artifact.open_at(store, ArtifactId(f"scale/{role}", "dev")) for role in roles}
    output = Output(store, ArtifactId("scale/duplicates", "dev"), "f" * 64)
    with open_engine(workers=workers) as engine:
        report = dedup.run(config, Inputs(inputs), output, engine)
    return commit(output, "dedup", dedup.VERSION, config, [], report)


# Against datatrove

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


def sluice(whole: str, one: str) -> None:
    """Runs the stage on the store `one` and then on `whole`; prints the CPU seconds and removals of the latter."""
    for folder in (one, whole):
        begin = time.process_time()
        made = run_stage(folder)
        seconds = time.process_time() - begin
        shutil.rmtree(f"{folder}/{made.address.path}")
    metrics = made.record.metrics
    print(json.dumps({"all": seconds, "removed": int(metrics["exact_duplicates"] + metrics["near_duplicates"])}))


def beside_peers(given: argparse.Namespace) -> None:
    """Measures both on the same texts."""
    begin = time.monotonic()
    texts = [text for path in given.texts for text in texts_of(path)] or python_sources()
    with tempfile.TemporaryDirectory(prefix="dedup-") as scratch:
        folder = Path(scratch)
        lines = folder / "texts.jsonl"
        lines.write_text("".join(json.dumps(text) + "\n" for text in texts))
        write(folder / "all", texts, len(texts))
        write(folder / "one", texts[:1], 1)
        ours = "import sys; from benchmarks.dedup import sluice; sluice(*sys.argv[1:])"
        contenders: dict[str, Callable[[], str]] = {
            "sluice": partial(last_line, sys.executable, ours, str(folder / "all"), str(folder / "one")),
            "datatrove": partial(last_line, peer_python("dedup", PEERS), DATATROVE, str(lines)),
        }
        best = {
            name: min(map(json.loads, printed), key=lambda one: float(one["all"]))
            for name, printed in in_turn(contenders, given.rounds).items()
        }
    megabytes = sum(len(text.encode("utf-8", "replace")) for text in texts) / 1e6
    figures = {
        "corpus": [Path(path).name for path in given.texts] or "Python standard library",
        "peers": PEERS,
        "bar": 10,
        "texts": len(texts),
        "megabytes": round(megabytes, 2),
        "cpu_seconds": {name: round(found["all"], 2) for name, found in best.items()},
        "datatrove_signatures_cpu_seconds": round(best["datatrove"]["signatures"], 2),
        "removed": {name: found["removed"] for name, found in best.items()},
        "megabytes_per_cpu_second": {name: round(megabytes / found["all"], 2) for name, found in best.items()},
        "ratio": {"sluice/datatrove": round(best["datatrove"]["all"] / best["sluice"]["all"], 1)},
    }
    keep("dedup", {**figures, "wall_seconds": round(time.monotonic() - begin, 1)})


# At growing sizes


def measured(folder: Path, texts: list[list[str]], count: int, workers: int) -> dict[str, Any]:
    """Creates a corpus of the given size and runs the stage on it, in a separate process."""
    folder.mkdir(parents=True)
    size = write(folder, documents(texts, count, 1), count)
    program = "import sys; from benchmarks.dedup import run_stage; run_stage(sys.argv[1], int(sys.argv[2]))"
    begin = time.monotonic()
    watch = watched([sys.executable, "-c", program, str(folder), str(workers)])
    wall = time.monotonic() - begin
    artifact = folder / "scale" / "duplicates" / "dev"
    record = json.loads((artifact / ".artifact.json").read_text())
    on_disk = sum(path.stat().st_size for path in artifact.rglob("*") if path.is_file())
    shutil.rmtree(folder)
    names = ("candidate_pairs", "verified_pairs", "clusters", "largest_cluster", "exact_duplicates", "near_duplicates")
    return {
        "documents": count,
        "text_mb": round(size / 1e6, 1),
        "wall_s": round(wall, 1),
        "cpu_s": round(watch.cpu_s, 1),
        "largest_process_mb": round(watch.largest / 1e6),
        "all_processes_mb": round(watch.total / 1e6),
        "largest_process_own_mb": round(watch.largest_own / 1e6),
        "all_processes_own_mb": round(watch.total_own / 1e6),
        "artifact_mb": round(on_disk / 1e6),
        **{name: round(record["metrics"][name]) for name in names},
    }


def at_scale(given: argparse.Namespace) -> None:
    """Measures the stage at several numbers of documents."""
    texts = passages(given.texts)
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="dedup-scale-") as folder:
        start, *rows = [
            measured(Path(folder) / str(count), texts, count, given.workers)
            for count in (100, *sorted(given.documents))
        ]
    for row in rows:
        row["wall_s"], row["cpu_s"] = (round(row[name] - start[name], 1) for name in ("wall_s", "cpu_s"))
        row["cpu_us_per_document"] = round(1e6 * row["cpu_s"] / row["documents"], 1)
        row["cost_ratio"] = round(row["cpu_us_per_document"] / rows[0]["cpu_us_per_document"], 2)
    times = {name: start[name] for name in ("wall_s", "cpu_s", "all_processes_own_mb")}
    corpus = [Path(path).name for path in given.texts]
    keep("dedup_scale", {"corpus": corpus, "workers": given.workers, "start": times, "runs": rows})


# Across versions


def run_version(root: str, version: str, before: str) -> None:
    """Runs dedup, consolidate and dedup_index over one version; prints CPU seconds of each and the ids kept."""
    store, seconds = Store(root), {}
    previous = {"index": Artifact.open_at(store, ArtifactId("scale/dedup_index", before))} if before else {}

    def run(kind: str, stage: Any, config: Config, inputs: dict[str, Artifact]) -> Artifact:
        output = Output(store, ArtifactId(f"scale/{kind}", version), "f" * 64)
        begin = time.process_time()
        with open_engine(workers=0) as engine:
            report = stage.run(config, Inputs(inputs), output, engine)
        made = commit(output, kind, stage.VERSION, config, [], report)
        seconds[kind] = round(time.process_time() - begin, 2)
        return made

    extracted, scores = (
        Artifact.open_at(store, ArtifactId(f"scale/{kind}", version)) for kind in ("extracted", "prose_score")
    )
    output = Output(store, ArtifactId("scale/attributes", version), "a")
    with output.part("groups", conserved=False):
        pass
    attributes = commit(output, "annotate", 1, Config(), [ref_to(scores, "prose_score")], Report())
    given = {"extracted": extracted, "prose_score": scores, **previous}
    duplicates = run("duplicates", dedup, DedupConfig(), given)
    given = {"extracted": extracted, "attributes": attributes, "duplicates": duplicates}
    kept = run("documents", consolidate, ConsolidateConfig(filters=(), mask_pii=False), given)
    given = {"extracted": extracted, "duplicates": duplicates, "documents": kept, **previous}
    run("dedup_index", dedup_index, DedupIndexConfig(enabled=True), given)
    ids = [one for path in kept.files("kept/") for one in kept.table(path, ["id"]).column("id").to_pylist()]
    print(json.dumps({"cpu_s": seconds, "ids": ids}))


def compared(folder: Path, texts: list[list[str]], count: int, share: float) -> dict[str, Any]:
    """Creates the versions and compares them; each runs in a separate process."""
    new = round(share * count)
    stream = list(documents(texts, count, 1))
    write(folder, stream, 100, "least", scores=(100, 0.9, 0.9))
    write(folder, stream, count, "full", scores=(count - new, 0.9, 0.5))
    write(folder, stream, count - new, "first", scores=(count, 0.9, 0.9))
    write(folder, stream[count - new :], new, "next", count - new, scores=(0, 0.5, 0.5))
    program = "import sys; from benchmarks.dedup import run_version; run_version(*sys.argv[1:])"

    def version(name: str, before: str = "") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(last_line(sys.executable, program, str(folder), name, before))
        return found

    full, first, following = version("full"), version("first"), version("next", "first")
    if {*first["ids"], *following["ids"]} != {*full["ids"]}:
        raise SystemExit(f"{count:,} documents: the two versions keep another set than the one")
    least = sum(version("least")["cpu_s"].values())
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


def over_cycles(given: argparse.Namespace) -> None:
    """Compares a version with few new documents with one that has them all."""
    texts, rows = passages(given.texts), []
    for count in given.documents:
        with tempfile.TemporaryDirectory(prefix="dedup-cycles-") as folder:
            rows.append(compared(Path(folder), texts, count, given.share))
    keep("dedup_cycles", {"corpus": [Path(path).name for path in given.texts], "share": given.share, "runs": rows})


# Recall against the theory


def tuples(text: str) -> set[tuple[str, ...]]:
    """Returns the shingles of a text over the words as normalized by dedup; a short text is one shingle."""
    words = normalise(text).split()
    return {tuple(words[at : at + SHINGLE]) for at in range(max(1, len(words) - SHINGLE + 1))}


def similarity(one: str, other: str) -> float:
    """Returns the Jaccard similarity of two texts, from sets of tuples without hashing."""
    left, right = tuples(one), tuples(other)
    return len(left & right) / len(left | right)


def edited(words: Sequence[str], drawn: random.Random) -> str:
    """Returns a copy with words replaced throughout, replaced at the start, or removed at the end."""
    kind, changed = drawn.choice(EDITS), list(words)
    if kind == "end":
        return " ".join(changed[: len(words) - drawn.randrange(1, len(words) // 2)])
    places: Sequence[int] = range(drawn.randrange(1, len(words) // 3))
    if kind == "replaced":
        places = drawn.sample(range(len(words)), drawn.randrange(1, len(words) // 12))
    for place in places:
        changed[place] = f"x{drawn.getrandbits(40):x}"
    return " ".join(changed)


def planted(texts: list[list[str]], per_range: int) -> list[tuple[str, str, float]]:
    """Returns passages, their edited copies and the exact similarity, equally many in each range."""
    drawn = random.Random(3)
    cut = [words[at : at + WORDS] for words in texts for at in range(0, len(words) - WORDS + 1, WORDS)]
    drawn.shuffle(cut)
    missing = np.full(len(RANGES) - 1, per_range)
    found = []
    for words in cut:
        passage = " ".join(words)
        for _ in range(_TRIES):
            copy = edited(words, drawn)
            share = similarity(passage, copy)
            place = int(np.searchsorted(RANGES, share, side="right")) - 1
            if 0 <= place < len(missing) and missing[place]:
                missing[place] -= 1
                found.append((passage, copy, share))
                break
        if not missing.any():
            return found
    raise SystemExit(f"{len(cut):,} passages are too few for {per_range} pairs in each range: give more texts")


def pairs_in(folder: Path, texts: list[str], config: DedupConfig) -> Iterator[tuple[int, int]]:
    """Runs the stage; yields the pairs of texts that it lists, as indices of `texts`, the smaller one first."""
    write(folder, texts, len(texts))
    made = run_stage(folder, config=config)
    rows = [row for path in made.files("duplicates/") for row in made.table(path, ["id", "text"]).to_pylist()]
    of_text: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        of_text.setdefault(row["text"] or row["id"], []).append(index)
    for group in of_text.values():
        yield from ((a, b) for a in group for b in group if a < b)
    for path in made.files("pairs/"):
        for pair in made.table(path).to_pylist():
            both = ((a, b) for a in of_text[pair["better"]] for b in of_text[pair["worse"]])
            yield from ((min(a, b), max(a, b)) for a, b in both)


def curve(folder: Path, pairs: list[tuple[str, str, float]], bands: int, rows: int) -> dict[str, Any]:
    """Returns the measured and the expected share of pairs with a common band, by range of similarity."""
    config = DedupConfig.model_validate({"jaccard": 0.01, "minhash": {"bands": bands, "rows": rows}})
    found = set(pairs_in(folder, [text for one, other, _ in pairs for text in (one, other)], config))
    met = np.array([(2 * index, 2 * index + 1) in found for index in range(len(pairs))])
    shares = np.array([share for _, _, share in pairs])
    expected = 1 - (1 - shares**rows) ** bands
    place = np.searchsorted(RANGES, shares, side="right") - 1
    ranges = [place == number for number in range(len(RANGES) - 1)]
    points = [point(shares[inside], met[inside], expected[inside]) for inside in ranges]
    return {"bands": bands, "rows": rows, "worst_z": max(abs(one["z"]) for one in points), "curve": points}


def point(shares: NDArray[np.float64], met: NDArray[np.bool_], expected: NDArray[np.float64]) -> dict[str, float]:
    """Returns the point of the curve for the pairs of one range."""
    deviation = np.sqrt((expected * (1 - expected)).sum())
    found = {"jaccard": shares.mean(), "found": met.mean(), "theory": expected.mean()}
    z = (met.sum() - expected.sum()) / max(deviation, 1.0)
    return {**{name: round(float(value), 4) for name, value in found.items()}, "z": round(float(z), 2)}


def gold(folder: Path, data: Path) -> dict[str, Any]:
    """Returns recall and precision on real pairs."""
    held, known = (list(json_lines(data / name)) for name in ("docs.jsonl.zst", "pairs.jsonl.zst"))
    texts, number = [row["text"] for row in held], {row["id"]: index for index, row in enumerate(held)}
    found = set(pairs_in(folder, texts, DedupConfig()))
    true = {tuple(sorted((number[row["a"]], number[row["b"]]))) for row in known if row["jaccard5"] >= 0.8}
    right = sum(similarity(texts[one], texts[other]) >= 0.8 for one, other in found)
    return {
        "true_pairs": len(true),
        "recall": round(len(true & found) / len(true), 4),
        "found_pairs": len(found),
        "precision": round(right / len(found), 4),
    }


def draw(curves: list[dict[str, Any]], target: Path) -> None:
    """Draws the measured shares over the curves of the theory."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    similarities = np.linspace(RANGES[0], 1, 200)
    for one in curves:
        bands, rows = one["bands"], one["rows"]
        (line,) = axes.plot(
            similarities, 1 - (1 - similarities**rows) ** bands, label=f"theory, {bands} bands of {rows}"
        )
        points = [[row[name] for row in one["curve"]] for name in ("jaccard", "found")]
        axes.plot(*points, "o", color=line.get_color(), label=f"measured, {bands} bands of {rows}")
    axes.axvline(0.8, color="grey", linestyle=":")
    axes.set_xlabel("true Jaccard similarity")
    axes.set_ylabel("share of pairs that share a band")
    axes.legend()
    figure.savefig(target, dpi=100)


def recall(given: argparse.Namespace) -> None:
    """Measures recall on planted pairs, and on real ones if given."""
    long = [words for words in passages(given.texts) if len(words) >= WORDS]
    pairs = planted(long, given.pairs)
    with tempfile.TemporaryDirectory(prefix="dedup-recall-") as scratch:
        folder = Path(scratch)
        curves = [curve(folder / f"{bands}x{rows}", pairs, bands, rows) for bands, rows in BANDINGS]
        real = {"gold": gold(folder / "gold", given.gold)} if given.gold else {}
    draw(curves, RESULTS / "dedup_recall.png")
    corpus = [Path(path).name for path in given.texts]
    keep("dedup_recall", {"corpus": corpus, "pairs": len(pairs), **real, "planted": curves})


def main() -> None:
    options = parser(__doc__)
    commands = options.add_subparsers(required=True)
    peers = commands.add_parser("peers", help="the stage against datatrove's")
    peers.add_argument("--texts", nargs="*", default=[], help="JSONL with a field text, plain or compressed")
    peers.add_argument("--rounds", type=int, default=2)
    peers.set_defaults(run=beside_peers)
    scale = commands.add_parser("scale", help="time and memory at several numbers of documents")
    scale.add_argument("--workers", type=int, default=2)
    scale.add_argument("--folder", default=tempfile.gettempdir())
    scale.set_defaults(run=at_scale)
    cycles = commands.add_parser("cycles", help="a version with few new documents against one with all")
    cycles.add_argument("--share", type=float, default=0.05, help="of new documents")
    cycles.set_defaults(run=over_cycles)
    pairs = commands.add_parser("recall", help="planted and real pairs against the theory")
    pairs.add_argument("--gold", type=Path, help="folder with docs.jsonl.zst and pairs.jsonl.zst")
    pairs.add_argument("--pairs", type=int, default=500, help="pairs in each range")
    pairs.set_defaults(run=recall)
    for one in (scale, cycles, pairs):
        one.add_argument("texts", nargs="+", help="JSONL files with a field text, plain or compressed")
    for one in (scale, cycles):
        one.add_argument("--documents", nargs="+", type=int, default=[50_000, 200_000])
    given = options.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()

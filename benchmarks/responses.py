"""Small real runs on many mixtures of six domains, and the forms of the response judged on them.

    python -m benchmarks.responses make --data FOLDER

`make` trains models of half a million weights with the product's stages, on mixtures of the texts in
FOLDER/<domain>.jsonl.zst, and measures held-out bits per byte by domain. A run reads as often from each domain as its
weight says, and the domains differ in size by a factor of 40, so that the smallest ones are repeated many times.
The mixtures are corners and midpoints of edges of the simplex, drawn 15 % of the way to its center (with the center,
the D-optimal design of a quadratic response), and samples of Dirichlet distributions of different concentrations; some
are repeated with other seeds, for the noise. A second cycle of fewer mixtures has runs of half the length. Every run is
an artifact, so that after a kill only the unfinished run is repeated. Writes `responses.json`; ten minutes of a core.
"""

import argparse
import hashlib
import importlib
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from benchmarks.harness import STATE, json_lines, keep, parser
from tasks.core.artifact import Artifact, ArtifactId, InputRef, fingerprint
from tasks.core.commit import commit
from tasks.core.config import Config, canonical_json
from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output, Report, part_names
from tasks.core.store import Store
from tasks.formats.documents.document import document_id
from tasks.formats.tokens.mixture import grid_weights, repetitions
from tasks.formats.tokens.plan import Plan
from tasks.stages.canary import CanaryConfig
from tasks.stages.canary.arms import ARMS, RESULT
from tasks.stages.consolidate.stage import KEPT_SCHEMA
from tasks.stages.tokens import EncodeConfig, PackConfig, TokenizerConfig
from tasks.trainer.config import ModelConfig, OptimConfig, TrainSpec
from tasks.trainer.launch.launcher import OnMetrics

FOLDER = STATE / "responses"

BYTES = {
    "books": 300_000,
    "code": 200_000,
    "reviews": 100_000,
    "techdocs": 40_000,
    "math": 12_000,
    "speech": 7_000,
}
"""UTF-8 bytes of training text by domain."""
HELD_OUT = 0.45
"""Share of each domain's documents that is measured."""
PIECE = 1_500
"""Characters of each document that are used: many short documents, so that the split is even."""
VOCABULARY, SEQ_LEN, BATCH = 1_024, 64, 8
STEPS = {"long": 80, "short": 40}
"""Steps of the runs of each cycle."""
SAMPLED, SHORT = 40, 12
"""Sampled mixtures, and mixtures of the cycle of short runs."""
REPEATED = (0, 1, 4, 7, 12, 20)
"""Numbers of the mixtures that are trained with all seeds."""
SEEDS = (0, 1, 2)
CENTERED = 0.15
INCLUDED = {"batch_size", "model", "optim", "heldout_tokens"}


class Run(NamedTuple):
    """A run of the data set."""

    cycle: str
    arm: int
    seed: int


def config(steps: int) -> CanaryConfig:
    return CanaryConfig(
        steps=steps,
        batch_size=BATCH,
        microbatch=BATCH,
        model=ModelConfig(layers=2, dim=128, heads=4, kv_heads=2),
        optim=OptimConfig(warmup_steps=10),
        heldout_tokens=3_000,
    )


def mixtures() -> list[dict[str, float]]:
    """Returns the mixtures: natural, uniform, corners, midpoints of edges, and samples."""
    names, count = list(BYTES), len(BYTES)
    center = np.full(count, 1 / count)
    corners = np.eye(count)
    edges = np.array([(corners[one] + corners[two]) / 2 for one, two in itertools.combinations(range(count), 2)])
    natural = np.array(list(BYTES.values())) / sum(BYTES.values())
    rng = np.random.default_rng(0)
    middle = (natural + center) / 2
    spread = np.exp(rng.uniform(np.log(0.5), np.log(5), SAMPLED))
    sampled = np.stack([rng.dirichlet(count * one * middle) for one in spread])
    designed = (1 - CENTERED) * np.concatenate([corners, edges]) + CENTERED * center
    rows = np.concatenate([[natural, center], designed, sampled])
    return [grid_weights(dict(zip(names, row.tolist(), strict=True))) for row in rows]


def runs(arms: int) -> Iterator[Run]:
    """Yields the runs: all mixtures, the repeated ones with other seeds, and the short ones."""
    yield from (Run("long", arm, 0) for arm in range(arms))
    yield from (Run("long", arm, seed) for seed in SEEDS[1:] for arm in REPEATED)
    yield from (Run("short", arm, 0) for arm in np.linspace(0, arms - 1, SHORT).astype(int).tolist())


def made(kind: str, module: str, config: Config, member: str = "", **inputs: Artifact) -> Artifact:
    """Returns the artifact of a stage, which runs unless it has, with these settings and inputs."""
    stage, store = importlib.import_module(module), Store(str(FOLDER))
    address = ArtifactId(f"responses/{kind}" + (f"/{member}" if member else ""), "dev")
    refs = [
        InputRef(role=role, address=str(one.address), fingerprint=one.record.fingerprint, content=one.record.content)
        for role, one in sorted(inputs.items())
    ]
    identity = fingerprint(module, stage.VERSION, member, config, refs)
    existing = Artifact.find(store, address)
    if existing and existing.record.fingerprint == identity:
        return existing
    output = Output(store, address, identity, member=member)
    report = stage.run(config, Inputs(dict(inputs)), output, Engine())
    return commit(output, module, stage.VERSION, config, refs, report)


def train_here(spec: TrainSpec, on_metrics: OnMetrics, check: Callable[[], None]) -> None:
    """Trains like `train_local`, in this process: a process per run would import torch for as long as it trains."""
    import torch

    from tasks.trainer.loop import Trainer
    from tasks.trainer.parallel.ranks import Ranks

    torch.set_num_threads(spec.run.threads)
    Path(spec.out).mkdir(parents=True, exist_ok=True)
    (Path(spec.out) / "spec.json").write_text(canonical_json(spec) + "\n")
    check()
    Trainer(spec, Ranks(0, 1, 0)).train()


def documents(data: Path) -> Artifact:
    """Returns the documents: of each domain, those with the lowest hashes."""
    address = ArtifactId("responses/documents", "dev")
    if existing := Artifact.find(Store(str(FOLDER)), address):
        return existing
    empty = {field.name: None if field.nullable else "" for field in KEPT_SCHEMA}
    rows = []
    for domain, wanted in BYTES.items():
        texts = [row["text"][:PIECE] for row in json_lines(data / f"{domain}.jsonl.zst")]
        texts.sort(key=lambda text: hashlib.sha1(text.encode()).digest())
        sizes = np.cumsum([len(text.encode()) for text in texts])
        for number, text in enumerate(texts[: int(np.searchsorted(sizes, wanted / (1 - HELD_OUT))) + 1]):
            url = f"https://{domain}.example.org/{number}"
            row = {"id": document_id(url, "sha1:A"), "url": url, "text": text, "source": domain}
            rows.append({**empty, **row, "tier": "silver", "language": "en"})
    output = Output(Store(str(FOLDER)), address, "texts")
    with output.part(part_names(1)[0], conserved=False) as part:
        part.table("kept", pa.Table.from_pylist(sorted(rows, key=lambda row: row["id"]), schema=KEPT_SCHEMA))
    return commit(output, "texts", 1, Config(), [], Report())


def tokens(data: Path) -> tuple[Artifact, Artifact]:
    """Returns shards and plan."""
    texts = documents(data)
    tokenizer = made("tokenizer", "tasks.stages.tokens.bpe", TokenizerConfig(vocab_size=VOCABULARY), documents=texts)
    encoding = EncodeConfig(heldout_share=HELD_OUT)
    shards = made("shards", "tasks.stages.tokens.encode", encoding, documents=texts, tokenizer=tokenizer)
    plan = made("plan", "tasks.stages.tokens.pack", PackConfig(seq_len=SEQ_LEN), shards=shards)
    return shards, plan


def arms(weights: list[dict[str, float]]) -> Artifact:
    """Returns the arms as the artifact that the stage `canary` reads."""
    address = ArtifactId("responses/arms", "dev")
    if existing := Artifact.find(Store(str(FOLDER)), address):
        return existing
    rows = [{"arm": f"arm-{number}", "kind": "designed", "weights": row} for number, row in enumerate(weights)]
    output = Output(Store(str(FOLDER)), address, "designed")
    with output.part(ARMS, conserved=False) as part, part.file(ARMS) as file:
        file.write(json.dumps(rows, indent=1).encode())
    return commit(output, "designed", 1, Config(), [], Report())


def measured(run: Run, designed: Artifact, shards: Artifact, plan: Artifact) -> dict[str, Any]:
    """Returns a row of the data set, from a run that is trained unless it has been."""
    settings = config(STEPS[run.cycle])
    member = f"arm-{run.arm}-seed-{run.seed}"
    with patch("tasks.stages.canary.run.train_local", train_here):
        inputs = {"arms": designed, "shards": shards, "plan": plan}
        trained = made(f"canary-{run.cycle}", "tasks.stages.canary.run", settings, member, **inputs)
    result = json.loads(trained.read(RESULT))
    epochs = repetitions(result["weights"], Plan.open(plan).sequences, settings.steps * BATCH)
    rounded = {source: round(times, 4) for source, times in epochs.items()}
    return {**run._asdict(), "weights": result["weights"], "epochs": rounded, "bpb": result["bpb"]}


def make(given: argparse.Namespace) -> None:
    """Trains the runs, and keeps them."""
    shards, plan = tokens(given.data)
    weights = mixtures()
    designed = arms(weights)
    rows = []
    for run in runs(len(weights)):
        rows.append(measured(run, designed, shards, plan))
        print(run, f"{np.mean(list(rows[-1]['bpb'].values())):.4f}", flush=True)
    recipe = {
        "training_bytes": BYTES,
        "sequences": dict(Plan.open(plan).sequences),
        "heldout_share": HELD_OUT,
        "vocabulary": VOCABULARY,
        "seq_len": SEQ_LEN,
        "steps": STEPS,
        "canary": config(STEPS["long"]).model_dump(
            mode="json", include={"batch_size", "model", "optim", "heldout_tokens"}
        ),
    }
    keep("responses", {"recipe": recipe, "runs": rows})


def main() -> None:
    options = parser(__doc__)
    commands = options.add_subparsers(required=True, metavar="make")
    one = commands.add_parser("make", help="train the runs, and keep them")
    one.add_argument("--data", type=Path, required=True, help="folder with <domain>.jsonl.zst")
    one.set_defaults(run=make)
    given = options.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()

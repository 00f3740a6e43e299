"""Small real runs on many mixtures of six domains, and the forms of the response judged on them.

    python -m benchmarks.responses make --data FOLDER
    python -m benchmarks.responses forms

`make` trains models of half a million weights with the product's stages, on mixtures of the texts in
FOLDER/<domain>.jsonl.zst, and measures held-out bits per byte by domain. A run reads as often from each domain as its
weight says, and the domains differ in size by a factor of 40, so that the smallest ones are repeated many times.
The mixtures are corners and midpoints of edges of the simplex, drawn 15 % of the way to its center (with the center,
the D-optimal design of a quadratic response), and samples of Dirichlet distributions of different concentrations; some
are repeated with other seeds, for the noise. Every run is an artifact, so that after a kill only the unfinished
run is repeated. Writes `responses.json`; ten minutes of a core.

`forms` fits every form of the response to a random part of the mixtures, and ranks the other ones: Spearman's
correlation on the mean bits per byte of the domains, mean over the splits. Also of the form that `fit` chooses from the
part alone, and of boosted trees on the same weights, which RegMix uses (of scikit-learn, which MLflow brings: 300 trees
of depth 2, each on half of the runs, learning rate 0.05). Writes `response_forms.json`.
"""

import argparse
import hashlib
import importlib
import itertools
import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.stats import spearmanr

from benchmarks.harness import STATE, json_lines, keep, last, parser
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
from tasks.stages.canary.registration import ARMS, RESULT
from tasks.stages.canary.statistics.forms import Floats
from tasks.stages.canary.statistics.response import FORMS, Response, fit
from tasks.stages.consolidate.stage import KEPT_SCHEMA
from tasks.stages.tokens import EncodeConfig, PackConfig, TokenizerConfig
from tasks.trainer.config import OptimConfig, TrainSpec
from tasks.trainer.launch.launcher import OnMetrics
from tasks.trainer.model.config import ModelConfig

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
STEPS = 80
MIXTURES, SAMPLED = 60, 40
"""Number of mixtures; samples that are drawn, of which the first ones complete this number."""
REPEATED = (1, 12, 20)
"""Numbers of the mixtures that are trained with all seeds."""
SEEDS = (0, 1, 2)
CENTERED = 0.15
INCLUDED = {"batch_size", "model", "optim", "heldout_tokens"}


class Run(NamedTuple):
    """A run of the data set."""

    arm: int
    seed: int


def config() -> CanaryConfig:
    return CanaryConfig(
        steps=STEPS,
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
    return [grid_weights(dict(zip(names, row.tolist(), strict=True))) for row in rows[:MIXTURES]]


def runs() -> list[Run]:
    """Returns the runs: all mixtures, and the repeated ones with other seeds."""
    return [
        *(Run(arm, SEEDS[0]) for arm in range(MIXTURES)),
        *(Run(arm, seed) for arm in REPEATED for seed in SEEDS[1:]),
    ]


def made(kind: str, module: str, config: Config, member: str = "", **inputs: Artifact) -> Artifact:
    """Returns the artifact of a stage, which runs unless it has.

    Raises:
        RuntimeError: it has, with other settings or inputs.
    """
    stage, store = importlib.import_module(module), Store(str(FOLDER))
    address = ArtifactId(f"responses/{kind}" + (f"/{member}" if member else ""), "dev")
    refs = [
        InputRef(role=role, address=str(one.address), fingerprint=one.record.fingerprint, content=one.record.content)
        for role, one in sorted(inputs.items())
    ]
    identity = fingerprint(module, stage.VERSION, member, config, refs)
    if existing := Artifact.find(store, address):
        if existing.record.fingerprint != identity:
            raise RuntimeError(f"{address} has other settings or inputs: delete {FOLDER}")
        return existing
    output = Output(store, address, identity, member=member)
    report = stage.run(config, Inputs(dict(inputs)), output, Engine())
    return commit(output, module, stage.VERSION, config, refs, report)


def train_here(spec: TrainSpec, on_metrics: OnMetrics, gang: None, check: Callable[[], None]) -> None:
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
    settings = config()
    member = f"arm-{run.arm}-seed-{run.seed}"
    with patch("tasks.trainer.launch.supervised.train_local", train_here):
        inputs = {"arms": designed, "shards": shards, "plan": plan}
        trained = made("canary", "tasks.stages.canary.run", settings, member, **inputs)
    result = json.loads(trained.read(RESULT))
    epochs = repetitions(result["weights"], Plan.open(plan).sequences, settings.steps * BATCH)
    rounded = {source: round(times, 4) for source, times in epochs.items()}
    return {**run._asdict(), "weights": result["weights"], "epochs": rounded, "bpb": result["bpb"]}


def make(given: argparse.Namespace) -> None:
    """Trains the runs, and keeps them."""
    shards, plan = tokens(given.data)
    designed = arms(mixtures())
    rows = []
    for run in runs():
        rows.append(measured(run, designed, shards, plan))
        print(run, f"{np.mean(list(rows[-1]['bpb'].values())):.4f}", flush=True)
    recipe = {
        "training_bytes": BYTES,
        "sequences": dict(Plan.open(plan).sequences),
        "heldout_share": HELD_OUT,
        "vocabulary": VOCABULARY,
        "seq_len": SEQ_LEN,
        "steps": STEPS,
        "canary": config().model_dump(mode="json", include={"batch_size", "model", "optim", "heldout_tokens"}),
    }
    keep("responses", {"recipe": recipe, "runs": rows})


class Kept(NamedTuple):
    """The data set as arrays.

    Attributes:
        sources: the domains.
        weights: shape (n, sources).
        bpb: shape (n, sources).
        epochs: number of times that a run with weight 1 reads each source, shape (sources,).
        arms: number of the mixture of each run, shape (n,).
    """

    sources: list[str]
    weights: Floats
    bpb: Floats
    epochs: Floats
    arms: NDArray[np.int64]

    def rows(self, which: NDArray[np.generic]) -> "Kept":
        """Returns some of the runs."""
        return self._replace(weights=self.weights[which], bpb=self.bpb[which], arms=self.arms[which])

    def fit(self, forms: Collection[str] = FORMS, **more: Any) -> Response:
        """Returns the response of the mean over the domains."""
        goal = np.full(len(self.sources), 1 / len(self.sources))
        return fit(self.weights, self.bpb, goal, epochs=self.epochs, forms=forms, **more)


def kept() -> Kept:
    """Returns the runs that are kept."""
    data = last("responses")
    recipe, rows = data["recipe"], data["runs"]
    sources = sorted(BYTES)
    weights, bpb = (np.array([[row[key][source] for source in sources] for row in rows]) for key in ("weights", "bpb"))
    sequences = np.array([recipe["sequences"][source] for source in sources])
    epochs = recipe["steps"] * recipe["canary"]["batch_size"] / sequences
    return Kept(sources, weights, bpb, epochs, np.array([row["arm"] for row in rows]))


def split(runs: Kept, share: float, seed: int) -> tuple[Kept, Kept]:
    """Returns the runs of a random share of the mixtures, and those of the other ones."""
    numbers = np.unique(runs.arms)
    chosen = np.random.default_rng(seed).permutation(numbers)[: round(share * len(numbers))]
    inside = np.isin(runs.arms, chosen)
    return runs.rows(inside), runs.rows(~inside)


def boosted(some: Kept, others: Kept) -> Floats:
    """Returns the target of the others as boosted trees predict it."""
    from sklearn.ensemble import GradientBoostingRegressor  # type: ignore[import-untyped]

    trees = GradientBoostingRegressor(n_estimators=300, max_depth=2, learning_rate=0.05, subsample=0.5, random_state=0)
    values: Floats = trees.fit(some.weights, some.bpb.mean(1)).predict(others.weights)
    return values


def ranked(some: Kept, others: Kept) -> dict[str, float]:
    """Returns Spearman's correlation of the predictions for the others with their measurements, by form."""
    predicted = {form: some.fit((form,)).predict(others.weights) for form in FORMS}
    chosen = some.fit()
    predicted |= {"chosen": chosen.predict(others.weights), "boosting": boosted(some, others)}
    return {form: float(spearmanr(values, others.bpb.mean(1)).statistic) for form, values in predicted.items()}


def forms(given: argparse.Namespace) -> None:
    """Judges the forms on the data set, and keeps the figures."""
    runs = kept()
    judged = {
        form: {
            name: round(float(getattr(one, name)), 4) for name in ("rank_agreement", "accuracy", "optimism", "error")
        }
        for form, one in runs.fit().judgements.items()
    }
    held_out = []
    for share in (1 / 4, 1 / 2, 2 / 3):
        rows = [ranked(*split(runs, share, seed)) for seed in range(given.splits)]
        means = {form: round(float(np.mean([row[form] for row in rows])), 3) for form in rows[0]}
        held_out.append({"mixtures": round(share * len(np.unique(runs.arms))), **means})
    repeated = [runs.bpb[runs.arms == arm].mean(1) for arm in np.unique(runs.arms)]
    noise = float(np.sqrt(np.mean([values.var(ddof=1) for values in repeated if len(values) > 1])))
    targets = runs.bpb.mean(1)
    figures = {"runs": len(targets), "noise": round(noise, 4), "spread": round(float(targets.std()), 4)}
    keep("response_forms", {**figures, "splits": given.splits, "out_of_fold": judged, "held_out": held_out})


def main() -> None:
    options = parser(__doc__)
    commands = options.add_subparsers(required=True, metavar="make|forms")
    two = commands.add_parser("forms", help="judge the forms on the runs that are kept")
    two.add_argument("--splits", type=int, default=20, help="random splits of each size")
    two.set_defaults(run=forms)
    one = commands.add_parser("make", help="train the runs, and keep them")
    one.add_argument("--data", type=Path, required=True, help="folder with <domain>.jsonl.zst")
    one.set_defaults(run=make)
    given = options.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()

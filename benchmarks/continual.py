"""A year's first half: six months of real text, read by continual training and by retraining from nothing.

    python -m benchmarks.continual settings --data FOLDER
    python -m benchmarks.continual months --data FOLDER
    python -m benchmarks.continual costs [--hosts 200] [--new 10]

The texts are from FOLDER/<domain>.jsonl.zst. The first month has books, code and reviews; each later one has an eighth
of its bytes, three fifths of them from a domain that is new. Models of half a million weights are trained by the stages
of the product with the tokenizer of the first month. All are measured by bits per byte
on held-out text of all six months. A later month has `COMPUTE` of the steps that a run from nothing would have.

`settings` trains the later months with three seeds under several settings of `[train.continual]`, and without replay.
`months` trains them with the defaults and three seeds, with and without replay, and from nothing on all documents, read
twice. Every run is an artifact, so that after a kill only the unfinished run is repeated. Writes
`continual_settings.json` and `continual.json`.

`costs` is what a month takes without its training: CPU-seconds of each stage from the crawl to the packing plan. The
web of `benchmarks.crawl_web` has 100 pages on each of `--hosts` hosts in the first month. In the second, `--new` hosts
have been added, and all other pages are due again and have not changed. This process serves them, each with an ETag; a
month is a process of its own. `cost` is the second month over the first. Writes `month_costs.json`.
"""

import argparse
import hashlib
import importlib
import json
import resource
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from aiohttp import web

from benchmarks import crawl_web
from benchmarks.harness import STATE, json_lines, keep, last_line, parser
from benchmarks.responses import train_here
from tasks.core.artifact import Artifact, ArtifactId, InputRef, fingerprint
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output, Report, part_names
from tasks.core.store import Store
from tasks.formats.documents.document import document_id
from tasks.formats.tokens.plan import Plan
from tasks.formats.tokens.shard import ShardSet
from tasks.run.catalogue import STAGES
from tasks.run.recipe import Recipe
from tasks.run.runner import run_stage
from tasks.stages.consolidate.stage import KEPT_SCHEMA
from tasks.stages.tokens import EncodeConfig, PackConfig, TokenizerConfig
from tasks.trainer.config import ContinualConfig, InitialSpec, ReplayConfig, TrainConfig
from tasks.trainer.model.config import ModelConfig
from tests.tasks.run.monthly.simulated import a_month_passes
from tests.tasks.stages.crawl.site import Site

FOLDER = STATE / "continual"
MONTHS = ("2026-01", "2026-02", "2026-03", "2026-04", "2026-05", "2026-06")
BASE = ("books", "code", "reviews")
NEW = ("techdocs", "academic", "math", "speech", "wiki")
"""The domain that begins in each later month."""
FIRST_BYTES = 160_000
"""UTF-8 bytes of training text of the first month."""
INCREMENT = 1 / 8
"""Bytes of a later month, per byte of the first."""
NEW_SHARE = 0.6
HELD_OUT = 0.3
PIECE = 1_500
"""Characters of each document that are used."""
VOCABULARY, SEQ_LEN, BATCH = 1_024, 64, 8
EPOCHS = 2
SEEDS = (0, 1, 2)
HELDOUT_TOKENS = 4_000
"""Per month."""
MILESTONES = 6
COMPUTE = 0.4
"""Steps of a later month, as a share of those of a training from nothing on all documents up to it."""
REPLAY = "replay"
NO_REPLAY = 0.001
USUAL: dict[str, Any] = {"start": "stable", "fall": 0.5, "warmup_steps": 10, REPLAY: 0.5}
"""Settings of the chains of `settings`, unless they say otherwise."""
FIRST_MONTH = {"start": "stable", "fall": 0.5, "warmup_steps": 10, "peak_share": 0.1}
"""Those of the first month of all chains, on which they have no effect."""
SETTINGS: dict[str, dict[str, Any]] = {
    "peak 1": {"peak_share": 1.0},
    "peak 1, constant": {"peak_share": 1.0, "fall": 0.0},
    "peak 1, constant, replay 3/4": {"peak_share": 1.0, "fall": 0.0, REPLAY: 0.75},
    "peak 1, replay 3/4": {"peak_share": 1.0, REPLAY: 0.75},
    "peak 1, no replay": {"peak_share": 1.0, REPLAY: NO_REPLAY},
    "peak 1, last": {"peak_share": 1.0, "start": "last"},
    "peak 1, with moments": {"peak_share": 1.0, "moments": True},
    "peak 1/3": {"peak_share": 1 / 3},
    "peak 1/10": {"peak_share": 0.1},
    "peak 1/30": {"peak_share": 1 / 30},
}
"""Settings of the chains of `settings`; "moments": with the state of the optimizer, which the product does not load."""
PAGES = 100
"""Of a host of `costs`."""
COSTS = """
name = "living"
[crawl]
seeds = {seeds}
allow_loopback = true
delay_s = 0.0
latency_factor = 0.0
partitions = 1
max_pages = 1000000
max_pages_per_host = 1000000
max_pages_per_domain = 1000000
recrawl = true
[consolidate]
filters = []
[dedup_index]
enabled = true
[encode]
accumulate = true
[place]
store = "{store}"
"""
"""Recipe of `costs`: what `init` writes for a site, with more pages, and all of them kept."""


def made(kind: str, version: str, module: str, config: Config, **inputs: Artifact) -> Artifact:
    """Returns the artifact of a stage, which runs unless it has; raises RuntimeError if it has with other settings."""
    stage, store = importlib.import_module(module), Store(str(FOLDER))
    address = ArtifactId(f"continual/{kind}", version)
    refs = [
        InputRef(role=role, address=str(one.address), fingerprint=one.record.fingerprint, content=one.record.content)
        for role, one in sorted(inputs.items())
    ]
    identity = fingerprint(module, stage.VERSION, "", config, refs)
    if existing := Artifact.find(store, address):
        if existing.record.fingerprint != identity:
            raise RuntimeError(f"{address} has other settings or inputs: delete {FOLDER}")
        return existing
    output = Output(store, address, identity)
    report = stage.run(config, Inputs(dict(inputs)), output, Engine())
    return commit(output, module, stage.VERSION, config, refs, report)


def texts_by_month(data: Path) -> dict[str, list[tuple[str, str]]]:
    """Returns (domain, text) of the new documents of every month; those of a domain are ordered by their hashes."""
    streams: dict[str, Iterator[str]] = {}
    for domain in (*BASE, *NEW):
        texts = [row["text"][:PIECE] for row in json_lines(data / f"{domain}.jsonl.zst")]
        streams[domain] = iter(sorted(texts, key=lambda text: hashlib.sha1(text.encode()).digest()))
    months: dict[str, list[tuple[str, str]]] = {}
    for number, month in enumerate(MONTHS):
        size = FIRST_BYTES * (INCREMENT if number else 1) / (1 - HELD_OUT)
        new = NEW_SHARE if number else 0.0
        wanted = {domain: size * (1 - new) / len(BASE) for domain in BASE}
        wanted |= {NEW[number - 1]: size * new} if number else {}
        months[month] = [(domain, text) for domain, count in wanted.items() for text in _taken(streams[domain], count)]
    return months


def _taken(texts: Iterator[str], count: float) -> Iterator[str]:
    """Yields texts until they have `count` UTF-8 bytes."""
    while count > 0 and (text := next(texts, None)) is not None:
        count -= len(text.encode())
        yield text


def tokens(data: Path) -> dict[str, tuple[Artifact, Artifact]]:
    """Returns shards and plan of every month, with the documents of all months up to it; the months are sources."""
    by_month = texts_by_month(data)
    empty = {field.name: None if field.nullable else "" for field in KEPT_SCHEMA}
    rows: list[dict[str, Any]] = []
    tokenizer: Artifact | None = None
    found = {}
    for month in MONTHS:
        for number, (domain, text) in enumerate(by_month[month]):
            url = f"https://{domain}.example.org/{month}/{number}"
            row = {"id": document_id(url, "sha1:A"), "url": url, "text": text, "source": month}
            rows.append({**empty, **row, "tier": "silver", "language": "en"})
        documents = Artifact.find(Store(str(FOLDER)), address := ArtifactId("continual/documents", month))
        if documents is None:
            output = Output(Store(str(FOLDER)), address, "texts")
            with output.part(part_names(1)[0], conserved=False) as part:
                part.table("kept", pa.Table.from_pylist(sorted(rows, key=lambda row: row["id"]), schema=KEPT_SCHEMA))
            documents = commit(output, "texts", 1, Config(), [], Report())
        tokenizer = tokenizer or made(
            "tokenizer", "all", "tasks.stages.tokens.bpe", TokenizerConfig(vocab_size=VOCABULARY), documents=documents
        )
        encoding = EncodeConfig(heldout_share=HELD_OUT)
        shards = made("shards", month, "tasks.stages.tokens.encode", encoding, documents=documents, tokenizer=tokenizer)
        found[month] = (
            shards,
            made("plan", month, "tasks.stages.tokens.pack", PackConfig(seq_len=SEQ_LEN), shards=shards),
        )
    return found


def training(steps: int, seed: int, **settings: Any) -> TrainConfig:
    """Returns the settings of a run of so many steps."""
    common = {"model": ModelConfig(layers=2, dim=128, heads=4, kv_heads=2), "batch_size": BATCH, "microbatch": BATCH}
    return TrainConfig(
        **{**common, "steps": steps, "milestones": MILESTONES, "checkpoint_every": steps, **settings},
        init_seed=seed,
        seed=seed,
    )


def chain(
    name: str, seed: int, months: Mapping[str, tuple[Artifact, Artifact]], changes: Mapping[str, Any]
) -> list[Artifact]:
    """Trains the six months one after the other; returns their checkpoints."""
    changes = dict(changes)
    replay, keeps = ReplayConfig(share=changes.pop(REPLAY)), changes.pop("moments", False)
    checkpoints: list[Artifact] = []
    for number, month in enumerate(MONTHS):
        shards, plan = months[month]
        inputs = {"shards": shards, "plan": plan}
        if number == 0:  # the same for all settings
            usual, share = ContinualConfig(**FIRST_MONTH), ReplayConfig(share=0.5)
            config = training(steps_from_nothing(plan), seed, init_from="previous", continual=usual, replay=share)
        else:
            continual = ContinualConfig(**changes, steps=round(COMPUTE * steps_from_nothing(plan)))
            first = steps_from_nothing(months[MONTHS[0]][1])
            config = training(first, seed, init_from="previous", continual=continual, replay=replay)
            inputs["initial"] = checkpoints[-1]
        version = f"{month}-seed{seed}" + (f"-{slug(name)}" if number else "")
        with moments_of_the_initial_checkpoint() if keeps else nullcontext():
            checkpoints.append(trained(version, config, **inputs))
    return checkpoints


def steps_from_nothing(plan: Artifact) -> int:
    """Returns the steps in which a run from nothing reads all documents of a plan, `EPOCHS` times each."""
    return -(-sum(Plan.open(plan).sequences.values()) * EPOCHS // BATCH)


def trained(version: str, config: TrainConfig, **inputs: Artifact) -> Artifact:
    """Returns a checkpoint, trained in this process unless it exists."""
    with patch("tasks.trainer.launch.supervised.train_local", train_here):
        return made("checkpoint", version, "tasks.stages.train.stage", config, **inputs)


def slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)


@contextmanager
def moments_of_the_initial_checkpoint() -> Iterator[None]:
    """Within the block, runs load the optimizer's state of their initial checkpoint as well."""
    from safetensors.torch import load_file

    from tasks.trainer.model.model_file import load_initial
    from tasks.trainer.optim import load_optimizer

    def load(method: Any, initial: InitialSpec) -> None:
        load_initial(method, initial)
        folder, optimizer = Path(initial.file).parent, method.__self__.optimizer
        load_optimizer(optimizer, load_file(folder / "optimizer.safetensors"))
        optimizer.steps_taken = json.loads((folder / "state.json").read_text())["steps_taken"]

    with patch("tasks.trainer.loop.load_initial", load):
        yield


def bits_per_byte(checkpoint: Artifact, shards: Artifact, step: int | None = None) -> dict[str, float]:
    """Returns the bits per byte of a checkpoint on held-out text, by month."""
    from tasks.trainer.data.heldout import heldout_by_source
    from tasks.trainer.evaluation.bpb import document_bits
    from tasks.trainer.model.model_file import last_weights, load_model

    weights = Path(last_weights(checkpoint, "", step)[1].file)
    model, about = load_model(Path(checkpoint.local("model.json")), weights)
    found = {}
    for month, documents in heldout_by_source(ShardSet.open(shards), HELDOUT_TOKENS).items():
        bits = document_bits(model, documents, about["eos_id"], about["seq_len"])
        found[month] = round(sum(bits) / sum(document.n_bytes for document in documents), 4)
    return found


def mean(by_month: Mapping[str, float]) -> float:
    return round(float(np.mean([*by_month.values()])), 4)


def settings(given: argparse.Namespace) -> None:
    """Trains chains with each of the settings and all seeds, and keeps the bits per byte of their last month."""
    months = tokens(given.data)
    last = months[MONTHS[-1]][0]
    rows = []
    for name in given.only:
        chains = [chain(name, seed, months, USUAL | SETTINGS[name]) for seed in SEEDS[: given.seeds]]
        found = [bits_per_byte(one[-1], last) for one in chains]
        old = [mean({month: row[month] for month in MONTHS[:-1]}) for row in found]
        by_seed = {"all": [mean(row) for row in found], "old": old, "new": [row[MONTHS[-1]] for row in found]}
        rows.append({"settings": name, **{part: _spread(values) for part, values in by_seed.items()}})
        rows[-1]["steps"] = _steps(chains[0])
        print(rows[-1], flush=True)
    keep("continual_settings", {"rows": rows})


def months(given: argparse.Namespace) -> None:
    """Trains chains and from nothing with all seeds, and keeps the bits per byte of all models."""
    found = tokens(given.data)
    last_shards, last_plan = found[MONTHS[-1]]
    every = [steps_from_nothing(plan) for _, plan in found.values()]
    nothing = [
        trained(f"nothing-seed{seed}", training(every[-1], seed), shards=last_shards, plan=last_plan)
        for seed in SEEDS[: given.seeds]
    ]
    retrained = [bits_per_byte(one, last_shards) for one in nothing]
    print([mean(row) for row in retrained], flush=True)
    usual = ContinualConfig().model_dump(exclude={"steps"})
    chains = {"continual": usual | {REPLAY: USUAL[REPLAY]}, "without_replay": usual | {REPLAY: NO_REPLAY}}
    scores: dict[str, list[list[dict[str, float]]]] = {name: [] for name in chains}
    of_chain: list[int] = []
    for seed in SEEDS[: given.seeds]:
        for name, changes in chains.items():
            known = (one for one, others in SETTINGS.items() if USUAL | others == changes)
            checkpoints = chain(next(known, name), seed, found, changes)
            scores[name].append([bits_per_byte(one, last_shards) for one in checkpoints])
            of_chain = _steps(checkpoints)
            print(seed, name, [mean(row) for row in scores[name][-1]], flush=True)
    steps = {"month 6": of_chain[-1], "month 6 from nothing": every[-1],
             "six months": sum(of_chain), "six months from nothing": sum(every)}  # fmt: skip
    last = {"from_nothing": retrained, **{name: [rows[-1] for rows in of_seeds] for name, of_seeds in scores.items()}}
    figures = {
        "steps": steps,
        **{name: _spread([mean(row) for row in rows]) for name, rows in last.items()},
        "by_month": {
            name: {month: _spread([row[month] for row in rows]) for month in MONTHS} for name, rows in last.items()
        },
        "forgotten": {name: _spread([_forgotten(rows) for rows in of_seeds]) for name, of_seeds in scores.items()},
        "regret_of_seed_0": {
            name: [[row[month] for month in MONTHS] for row in of_seeds[0]] for name, of_seeds in scores.items()
        },
    }
    keep("continual", figures)


def _forgotten(rows: list[dict[str, float]]) -> float:
    """Returns by how much the last model is worse on the months 2 to 5 than the model of each of them, on average."""
    learned = [(month, row[month]) for month, row in zip(MONTHS, rows, strict=True)][1:-1]
    return float(np.mean([rows[-1][month] - then for month, then in learned]))


class GrowingWeb(Site):
    """Serves the pages of `hosts` in a folder of `crawl_web`, with an ETag, and 304 to whoever has them already."""

    def __init__(self, folder: Path) -> None:
        super().__init__({})
        self.folder = folder
        self.hosts: set[str] = set()

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        host = request.host.partition(":")[0]
        file = self.folder / host / (request.path[1:] + ("index.html" if request.path.endswith("/") else ""))
        packed = file.with_name(f"{file.name}.gz")
        if host not in self.hosts or not (file.exists() or packed.exists()):
            return web.Response(status=404)
        if file.exists():  # robots.txt
            return web.Response(text=file.read_text())
        validator = {"ETag": f'"{packed.stat().st_size}"'}
        if request.headers.get("If-None-Match") == validator["ETag"]:
            return web.Response(status=304, headers=validator)
        headers = {**validator, "Content-Type": "text/html", "Content-Encoding": "gzip"}
        return web.Response(body=packed.read_bytes(), headers=headers)


def costs(given: argparse.Namespace) -> None:
    """Runs two months of a web that grows, and keeps the CPU-seconds of their stages."""
    shape = crawl_web.Shape(given.hosts + given.new, PAGES)
    hosts = crawl_web.make(crawl_web.folder_of(shape), shape).hosts
    months: list[dict[str, dict[str, float]]] = []
    site = GrowingWeb(crawl_web.folder_of(shape))
    with tempfile.TemporaryDirectory() as folder, site:
        path = Path(folder, "living.toml")
        seeds = json.dumps([site.url("/", host) for host in hosts])
        path.write_text(COSTS.format(seeds=seeds, store=f"{folder}/store"))
        for month, count in enumerate((given.hosts, len(hosts)), 1):
            site.hosts = {*hosts[:count]}
            program = "import sys; from benchmarks.continual import stages_of_month; stages_of_month(*sys.argv[1:])"
            months.append(json.loads(last_line(sys.executable, program, str(path), f"2026-{month:02}")))
            a_month_passes(Store(f"{folder}/store"))
    by_stage = {stage: [month[stage]["cpu_s"] for month in months] for stage in months[0]}
    first, second = (sum(one["cpu_s"] for one in month.values()) for month in months)
    rows = {stage: [month[stage]["rows"] for month in months] for stage in ("fetch", "extract", "consolidate")}
    keep("month_costs", {"rows": rows, "cpu_s": by_stage, "cost": round(second / first, 3)})


def stages_of_month(path: str, version: str) -> None:
    """Runs the stages of a month up to `pack` in this process; prints the CPU-seconds and the rows of each."""
    recipe = Recipe.load(Path(path))
    found = {}
    for stage in (stage for dag in ("crawl", "corpus", "tokens") for stage in recipe.stages(dag)):
        began = _cpu_s()
        result = run_stage(recipe, stage, version=version, member="p0" if STAGES[stage].mapped else "")
        found[stage] = {"cpu_s": round(_cpu_s() - began, 2), "rows": result.rows["out"]}
    print(json.dumps(found))


def _cpu_s() -> float:
    """CPU-seconds of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _steps(checkpoints: list[Artifact]) -> list[int]:
    return [json.loads(one.read("run.json"))["steps"] for one in checkpoints]


def _spread(values: list[float]) -> dict[str, Any]:
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {
        "mean": round(float(np.mean(values)), 4),
        "sd": None if deviation is None else round(deviation, 4),
        "values": values,
    }


def main() -> None:
    options = parser(__doc__)
    commands = options.add_subparsers(required=True, metavar="settings|months|costs")
    one = commands.add_parser("settings", help="compare settings, three seeds")
    one.add_argument("--data", type=Path, required=True, help="folder with <domain>.jsonl.zst")
    one.add_argument("--only", nargs="*", choices=SETTINGS, default=[*SETTINGS], help="some of the settings")
    one.add_argument("--seeds", type=int, default=len(SEEDS), help="number of seeds")
    one.set_defaults(run=settings)
    two = commands.add_parser("months", help="compare with retraining, three seeds")
    two.add_argument("--data", type=Path, required=True, help="folder with <domain>.jsonl.zst")
    two.add_argument("--seeds", type=int, default=len(SEEDS), help="number of seeds")
    two.set_defaults(run=months)
    three = commands.add_parser("costs", help="cost of a month with few new pages")
    three.add_argument("--hosts", type=int, default=200, help="of the first month, with 100 pages each")
    three.add_argument("--new", type=int, default=10, help="hosts that begin in the second month")
    three.set_defaults(run=costs)
    given = options.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()

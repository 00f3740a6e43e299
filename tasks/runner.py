"""Runs one stage of a recipe: finds its inputs, decides whether there is anything to do, runs it, commits, reports.

Used by the shell (`python -m tasks`), by every operator and inside GPU pods, so that a stage does the same wherever it
runs. Writes one artifact into the store, and beside its record `.tracking.json` (the MLflow run that shows it).
"""

import hashlib
import importlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tasks.artifact import Address, Artifact, InputRef, fingerprint
from tasks.catalogue import STAGES, Stage
from tasks.commit import commit
from tasks.config import Config, canonical_json, nearest
from tasks.engine import open_engine
from tasks.errors import DriftError, InputError, RecipeError, SluiceError
from tasks.ledger import newest
from tasks.place import filled
from tasks.recipe import Recipe
from tasks.stage import Inputs, Output
from tasks.store import Store
from tasks.tracking import TrackingContext, outbox
from tasks.tracking.run import StageRun

log = logging.getLogger("sluice.runner")

TRACKING = ".tracking.json"


@dataclass(frozen=True)
class StageResult:
    """What a stage run came to."""

    address: str
    fingerprint: str
    content: str
    skipped: bool
    members: tuple[str, ...]
    metrics: dict[str, float]
    rows: dict[str, int]
    mlflow_run_url: str


@dataclass(frozen=True)
class _Plan:
    """A stage with everything that decides its identity."""

    stage: Stage
    module: Any
    config: Config
    inputs: Inputs
    refs: tuple[InputRef, ...]
    address: Address
    fingerprint: str


def run_stage(
    recipe: Recipe,
    stage: str,
    *,
    version: str = "",
    source_version: str | None = None,
    member: str = "",
    on_dask: bool = False,
    tracking: TrackingContext | None = None,
) -> StageResult:
    """Runs `stage` of `recipe`, or finds that its artifact is there already.

    Args:
        recipe: the whole run.
        stage: a name of `tasks.catalogue`.
        version: version of the artifact to make; empty: the recipe's.
        source_version: where an input is missing at `version`, the version to read it at.
        member: which member of a mapped stage ("p0").
        on_dask: map parts over the cluster of `[place.dask]` where it names one.
        tracking: where to mirror the run; None: the shell's defaults of the recipe's place.

    Raises:
        SluiceError: see `tasks.errors`; `.permanent` tells whether a retry could help.
    """
    store = open_store(recipe)
    context = tracking or TrackingContext(filled(recipe.place.mlflow), recipe.name)
    plan = _plan(recipe, store, stage, version or recipe.version, source_version, member)
    existing = Artifact.find(store, plan.address)
    if existing:
        _check_drift(existing, plan)
        log.info("[%s] unchanged: the same inputs and settings made it at %s", plan.address, existing.record.finished)
        return _result(existing, skipped=True)
    output = Output(store, plan.address, plan.fingerprint, member=member, max_bad_share=recipe.max_bad_share)
    artifact = _tracked(recipe, store, plan, output, context, on_dask)
    return _result(artifact, skipped=False)


def open_store(recipe: Recipe) -> Store:
    """Opens the store of the recipe's place."""
    return Store(filled(recipe.place.store))


def _tracked(
    recipe: Recipe, store: Store, plan: _Plan, output: Output, context: TrackingContext, on_dask: bool
) -> Artifact:
    if not context.uri:
        return _run(recipe, plan, output, on_dask)
    key = f"{context.parent_key}|{plan.address}|{plan.fingerprint[:16]}"
    run = StageRun(context, key, f"{plan.stage.name} {output.member}".strip())
    if url := run.open():
        log.info("[%s] MLflow: %s", plan.address, url)
    output.listen(run)
    try:
        artifact = _run(recipe, plan, output, on_dask)
    except BaseException as error:
        _told(store, run, "FAILED", None, error)
        raise
    run.message.registered = output.model
    if _told(store, run, "FINISHED", artifact):
        with suppress(Exception):
            outbox.send(store)
    if run.url:
        with store.write(f"{artifact.address.path}/{TRACKING}") as file:
            file.write(json.dumps({"url": run.url}).encode())
    return artifact


def _told(
    store: Store, run: StageRun, status: str, artifact: Artifact | None, error: BaseException | None = None
) -> bool:
    told = run.close(status, artifact, " ".join(str(error).split()) if error else "")
    if not told:
        with suppress(SluiceError, OSError):  # a full store has been reported already
            outbox.keep(store, run.message)
    return told


def _run(recipe: Recipe, plan: _Plan, output: Output, on_dask: bool) -> Artifact:
    started = datetime.now(UTC)
    log.info("[%s] running %s, fingerprint %s", plan.address, plan.stage.name, plan.fingerprint[:16])
    address = filled(recipe.place.dask.address) if on_dask else ""
    os.environ.setdefault("SLUICE_NPROC", str(recipe.place.train.nproc))
    with open_engine(address, recipe.place.workers) as engine:
        report = plan.module.run(plan.config, plan.inputs, output, engine)
    artifact = commit(output, plan.stage.name, plan.module.VERSION, plan.config, plan.refs, report, started)
    record = artifact.record
    log.info(
        "[%s] done: %s rows in, %s out, rejected %s", plan.address, record.rows_in, record.rows_out, record.rejected
    )
    return artifact


def _plan(recipe: Recipe, store: Store, name: str, version: str, source_version: str | None, member: str) -> _Plan:
    stage = STAGES.get(name)
    if stage is None:
        raise RecipeError(f'no stage "{name}"', nearest(name, STAGES))
    if stage.mapped != bool(member):
        raise RecipeError(f'stage "{name}" {"needs" if stage.mapped else "takes no"} member', "see its --help")
    module = importlib.import_module(stage.module)
    config: Config = getattr(recipe, stage.section)
    kind = f"{stage.writes}/{member}" if member else stage.writes
    address = Address(f"{recipe.name}/{kind}", version)
    found = {**_read(recipe, store, stage, version, source_version), **_earlier(recipe, store, stage, address)}
    external = list(_external(module, config))
    refs = (*(_ref(role, one) for role in sorted(found) for one in _several(found[role])), *external)
    print_ = fingerprint(name, module.VERSION, member, config, refs)
    return _Plan(stage, module, config, Inputs(found), refs, address, print_)


def _read(
    recipe: Recipe, store: Store, stage: Stage, version: str, source_version: str | None
) -> dict[str, Artifact | list[Artifact]]:
    def one(kind: str) -> Artifact:
        name = f"{recipe.name}/{kind}"
        for wanted in dict.fromkeys((version, source_version or version)):
            if artifact := Artifact.find(store, Address(name, wanted)):
                return artifact
        maker = next((s.name for s in STAGES.values() if s.writes == kind.partition("/")[0]), "")
        raise InputError(
            f"stage {stage.name} needs {name}@{source_version or version}, which is not in {store.root}",
            f"run the stage {maker} first, or name the version to read (source_version)",
        )

    found: dict[str, Artifact | list[Artifact]] = {role: one(kind) for role, kind in stage.reads.items()}
    for role, (kind, names) in stage.gathers.items():
        found[role] = [one(f"{kind}/{member}") for member in one(names).record.members]
    return found


def _earlier(recipe: Recipe, store: Store, stage: Stage, own: Address) -> dict[str, Artifact]:
    """Finds the inputs of the cycle before. Once bound they stay: a run repeated later reads what it read first."""
    if not stage.earlier or not recipe.crawl.recrawl:
        return {}
    bound = Artifact.find(store, own)
    if bound is None and "fetchlist" in stage.reads:  # both ends of a cycle start from the same crawl DB
        bound = Artifact.find(store, Address(f"{recipe.name}/fetchlist", own.version))
    found = {}
    for role, kind in stage.earlier.items():
        if bound:
            addresses = [ref.address for ref in bound.record.inputs if ref.role == role]
            earlier = Artifact.open_at(store, Address.parse(addresses[0])) if addresses else None
        else:
            earlier = newest(store, f"{recipe.name}/{kind}", but=own.version)
        if earlier:
            found[role] = earlier
    return found


def _external(module: Any, config: Config) -> Iterator[InputRef]:
    """Pins files from outside the store: their names and bytes enter the fingerprint."""
    if not hasattr(module, "external"):
        return
    for role, paths in sorted(module.external(config).items()):
        listing = []
        for path in paths:
            with open(path, "rb") as file:
                listing.append([os.path.basename(path), hashlib.file_digest(file, "sha256").hexdigest()])
        content = hashlib.sha256(canonical_json(listing).encode()).hexdigest()
        yield InputRef(role=role, address=f"external:{role}", fingerprint=content, content=content)


def _ref(role: str, artifact: Artifact) -> InputRef:
    record = artifact.record
    return InputRef(role=role, address=str(artifact.address), fingerprint=record.fingerprint, content=record.content)


def _several(found: Artifact | Sequence[Artifact]) -> Sequence[Artifact]:
    return [found] if isinstance(found, Artifact) else found


def _check_drift(existing: Artifact, plan: _Plan) -> None:
    record = existing.record
    if record.fingerprint == plan.fingerprint:
        return
    raise DriftError(
        f"{plan.address} was made differently: {_difference(record, plan)}",
        "give this run another version (recipe `version`, --version, or the form's field), or delete the artifact",
    )


def _difference(record: Any, plan: _Plan) -> str:
    if record.stage_version != plan.module.VERSION:
        return f"by version {record.stage_version} of the stage {plan.stage.name}, which is {plan.module.VERSION} now"
    now = plan.config.model_dump(mode="json")
    for path, old, new in _changes(record.config, now, plan.stage.section):
        return f"{path} was {json.dumps(old)} and is {json.dumps(new)}"
    before = {(ref.role, ref.address): ref for ref in record.inputs}
    for ref in plan.refs:
        held = before.get((ref.role, ref.address))
        if held is None or (held.fingerprint, held.content) != (ref.fingerprint, ref.content):
            return f"its input {ref.role} ({ref.address}) is not what it was"
    return "its inputs are not what they were"


def _changes(old: Any, new: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _changes(old.get(key), new.get(key), f"{path}.{key}")
    elif old != new:
        yield path, old, new


def _result(artifact: Artifact, *, skipped: bool) -> StageResult:
    record = artifact.record
    try:
        url = str(json.loads(artifact.read(TRACKING))["url"])
    except FileNotFoundError:
        url = ""
    return StageResult(
        address=record.artifact,
        fingerprint=record.fingerprint,
        content=record.content,
        skipped=skipped,
        members=record.members,
        metrics=record.metrics,
        rows={"in": record.rows_in, "out": record.rows_out, **record.rejected},
        mlflow_run_url=url,
    )


@contextmanager
def logging_to_stderr() -> Iterator[None]:
    """Shows the log of Sluice on stderr, for processes that no Airflow looks after."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("sluice")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)

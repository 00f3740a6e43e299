"""Run of one stage of a recipe: resolves its inputs, skips or adopts an existing result, else runs and commits it.

Writes one artifact into the store, and with its record `.tracking.json` (the URL of its MLflow run). If the source
version has an artifact with the same settings and inputs, it is adopted instead of made again. Nodes other than node 0
of a gang join a stage (`join_stage`): they read the same inputs, decide with the same functions, and write nothing.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime

from tasks.core.artifact import CODE, EXTERNAL, TRACKING, Artifact, InputRef
from tasks.core.commit import adopt, clear, commit
from tasks.core.engine import open_engine
from tasks.core.errors import InputError, SluiceError, StoppedError, SupersededError
from tasks.core.open_files import raise_limit
from tasks.core.stage import Output
from tasks.core.store import Store, probe
from tasks.formats.hooks import Hooks
from tasks.run.inputs import ResolvedStage, check_drift, resolve, with_recorded_previous
from tasks.run.lineage import artifacts_of_version
from tasks.run.place import expand_all, expand_env
from tasks.run.recipe import Recipe
from tasks.run.result import StageResult
from tasks.run.tracking import Message, TrackingContext, describe, server_of
from tasks.run.tracking.outbox import keep_message, send_messages
from tasks.run.tracking.send import StageRun
from tasks.trainer.place import TrainPlace

log = logging.getLogger("sluice.runner")


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
    """Runs `stage` of `recipe`, unless its artifact exists or can be adopted.

    Args:
        recipe: the recipe.
        stage: name of a stage in `tasks.run.catalogue`.
        version: version of the artifact to make; "" for the recipe's.
        source_version: version from which inputs that are missing at `version` are read (`tasks.run.lineage`). Its
            artifact with the same settings and inputs is adopted, except for a crawl: another version reads the web
            again.
        member: member of a mapped stage ("p0").
        on_dask: whether to map parts over the cluster of `[place.dask]`, if that names one.
        tracking: MLflow server and parent run; None for the server of the recipe's place without a parent run.

    Raises:
        SluiceError: see `tasks.core.errors`; a retry may succeed unless `.permanent`.
    """
    raise_limit()
    store = open_store(recipe)
    probe(store.root)
    version = version or recipe.version
    source = f", source version {source_version}" if source_version else ""
    log.info("%s of %s, version %s%s", f"{stage} {member}".strip(), recipe.name, version, source)
    context = tracking or TrackingContext(server_of(recipe.place), recipe.name)
    resolved = resolve(recipe, store, stage, version, source_version, member)
    run = _stage_run(recipe, store, resolved, context, source_version) if context.uri else None
    if existing := Artifact.find(store, resolved.address):
        check_drift(existing, resolved)
        finished = existing.record.finished
        log.info("[%s] unchanged: made from the same inputs and settings at %s", resolved.address, finished)
        clear(existing, again=True)
        return result_of(existing, resolved.address.version, skipped=True)
    candidates = artifacts_at_source(store, recipe, resolved, source_version)
    if match := adoptable(store, resolved, candidates):
        origin, refs = match
        artifact = adopt(origin, resolved.address, refs)
        log.info("[%s] adopted from %s: same settings and inputs", resolved.address, origin.address)
        if run:
            finish(store, run, artifact)
        return result_of(artifact, resolved.address.version, skipped=True)
    try:
        artifact = _make(recipe, store, resolved, candidates, run, on_dask)
    except SupersededError:
        committed = Artifact.find(store, resolved.address)
        if committed is None or committed.record.fingerprint != resolved.fingerprint:
            raise
        # The other attempt committed first; its result is the same.
        return result_of(committed, resolved.address.version, skipped=True)
    return result_of(artifact, resolved.address.version, skipped=False)


def open_store(recipe: Recipe) -> Store:
    """Opens the store of the recipe's place; raises StoreError if it is a file, or a folder that may not be read."""
    store = Store(expand_env(recipe.place.store))
    store.check_root()
    return store


def _make(
    recipe: Recipe,
    store: Store,
    resolved: ResolvedStage,
    candidates: Sequence[Artifact],
    run: StageRun | None,
    on_dask: bool,
) -> Artifact:
    output = Output(
        store,
        resolved.address,
        resolved.fingerprint,
        member=resolved.member,
        max_bad_share=recipe.max_bad_share,
        source_artifacts=candidates,
        place=_place_of_training(recipe),
    )
    if run is None:
        return _run(recipe, resolved, output, on_dask)
    if url := run.open():
        log.info("[%s] MLflow: %s", resolved.address, url)
    output.listen(run)
    try:
        artifact = _run(recipe, resolved, output, on_dask)
    except BaseException as error:
        stopped = isinstance(error, StoppedError | KeyboardInterrupt | SystemExit)
        _end_tracking(store, run, "KILLED" if stopped else "FAILED", None, error)
        raise
    run.message.registered, run.message.aliases = output.model, output.aliases
    finish(store, run, artifact)
    return artifact


def _stage_run(
    recipe: Recipe, store: Store, resolved: ResolvedStage, context: TrackingContext, source_version: str | None
) -> StageRun:
    """Returns the MLflow run of a stage run; it is created when it is opened or closed."""
    key = f"{context.parent_key}|{resolved.address}|{resolved.fingerprint[:16]}"
    context = replace(context, description=describe.recipe(recipe))
    about = (resolved.module.__doc__ or "").partition("\n")[0]
    name = f"{resolved.spec.name} {resolved.member}".strip()
    return StageRun(store, Message(context, key, name, about, resolved.address.version, source_version or ""))


def finish(store: Store, run: StageRun, artifact: Artifact) -> None:
    """Ends the MLflow run of a made or adopted artifact, and writes its URL beside the record."""
    if _end_tracking(store, run, "FINISHED", artifact) or run.is_refused:
        with suppress(Exception):
            send_messages(store)
    if run.url:
        with store.write(f"{artifact.address.path}/{TRACKING}") as file:
            file.write(json.dumps({"url": run.url}).encode())


def _end_tracking(
    store: Store, run: StageRun, status: str, artifact: Artifact | None, error: BaseException | None = None
) -> bool:
    """Ends the MLflow run and returns whether everything was sent; if not, writes the message to the outbox."""
    is_sent = run.close(status, artifact, " ".join(str(error).split()) if error else "")
    if not is_sent:
        with suppress(SluiceError, OSError):  # a full store has already been reported
            keep_message(store, run.message)
    return is_sent


def _run(recipe: Recipe, resolved: ResolvedStage, output: Output, on_dask: bool) -> Artifact:
    started = datetime.now(UTC)
    log.info("[%s] running %s, fingerprint %s", resolved.address, resolved.spec.name, resolved.fingerprint[:16])
    address = expand_env(recipe.place.dask.address) if on_dask else ""
    with open_engine(address, recipe.place.workers) as engine:
        report = resolved.module.run(resolved.config, resolved.inputs, output, engine)
    refs = (*resolved.refs, *resolved.named_only)
    artifact = commit(output, resolved.spec.name, resolved.module.VERSION, resolved.config, refs, report, started)
    log.info("[%s] done%s", resolved.address, f": {text}" if (text := describe.counts(artifact.record)) else "")
    return artifact


def _place_of_training(recipe: Recipe) -> TrainPlace:
    place, cluster = recipe.place.train, recipe.place.kubernetes
    nodes = cluster.nodes if cluster else 1
    return place.model_copy(update={"checkpoints": expand_all(place.checkpoints), "nodes": nodes})


def result_of(artifact: Artifact, version: str, *, skipped: bool) -> StageResult:
    """Returns the result of a run that made this artifact for `version`, or skipped the work (`skipped`)."""
    record = artifact.record
    return StageResult(
        address=record.artifact,
        fingerprint=record.fingerprint,
        content=record.content,
        version=version,
        skipped=skipped,
        members=record.members,
        metrics=record.metrics,
        rows={"in": record.rows_in, "out": record.rows_out, **record.rejected},
        mlflow_run_url=mlflow_url(artifact),
        adopted_from=record.adopted_from or "",
    )


def mlflow_url(artifact: Artifact) -> str:
    """Returns the URL of the MLflow run that made or adopted an artifact; "" if it was not tracked."""
    try:
        return str(json.loads(artifact.store.read(f"{artifact.address.path}/{TRACKING}"))["url"])
    except FileNotFoundError:
        return ""


@contextmanager
def logging_to_stderr() -> Iterator[None]:
    """Writes the log of Sluice to stderr, for processes outside Airflow."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("sluice")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def artifacts_at_source(
    store: Store, recipe: Recipe, resolved: ResolvedStage, source_version: str | None
) -> list[Artifact]:
    """Returns the artifacts of the kind at the source version that have files; none for a stage that reads the web."""
    if not source_version or resolved.spec.reads_web:
        return []
    try:
        kind = resolved.address.name.removeprefix(f"{recipe.name}/")
        found = artifacts_of_version(store, recipe.name, kind, source_version)
        return [artifact for artifact in found if artifact.removal() is None]
    except InputError as error:
        log.warning("[%s] not adopted: %s", resolved.address, error)
        return []


def adoptable(
    store: Store, resolved: ResolvedStage, candidates: Sequence[Artifact]
) -> tuple[Artifact, tuple[InputRef, ...]] | None:
    """Returns the first candidate with the result of `resolved`, and the inputs at this version; or None.

    An artifact that combines others, such as the groups of `attributes`, can be adopted only while these exist.
    """
    for candidate in candidates:
        matching = with_recorded_previous(resolved, candidate.record)
        if matching is None:
            continue
        refs = (*matching.refs, *matching.named_only)
        roles = {ref.role for ref in refs}
        others = [ref for ref in candidate.record.inputs if ref.role not in roles]
        missing = [ref.address for ref in others if not _exists(store, ref)]
        if not missing:
            return candidate, refs
        log.warning(
            "[%s] %s is not adopted: %s is gone or was made again",
            resolved.address,
            candidate.address,
            missing[0],
        )
    return None


def _exists(store: Store, ref: InputRef) -> bool:
    return ref.address.startswith((EXTERNAL, CODE)) or Artifact.find_unchanged(store, ref) is not None


def join_stage(
    recipe: Recipe, stage: str, *, version: str = "", source_version: str | None = None, member: str = ""
) -> None:
    """Joins node 0 in `stage` of `recipe`, with the same arguments as `run_stage`; returns when the stage has ended.

    Raises:
        SluiceError: as on node 0.
    """
    store = open_store(recipe)
    resolved = resolve(recipe, store, stage, version or recipe.version, source_version, member)
    if existing := Artifact.find(store, resolved.address):
        check_drift(existing, resolved)
        log.info("[%s] unchanged: there is nothing to join", resolved.address)
    elif adoptable(store, resolved, artifacts_at_source(store, recipe, resolved, source_version)):
        # This node may decide before node 0 does; node 0 then adopts too, and waits for no other node.
        log.info("[%s] adopted from version %s: there is nothing to join", resolved.address, source_version)
    elif join := Hooks.of(resolved.module).join:
        log.info("[%s] joining %s, fingerprint %s", resolved.address, stage, resolved.fingerprint[:16])
        place = _place_of_training(recipe)
        join(resolved.config, resolved.inputs, Output(store, resolved.address, resolved.fingerprint, place=place))
    else:
        log.info("[%s] the stage %s runs on node 0 alone", resolved.address, stage)

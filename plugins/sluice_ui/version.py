"""The page of one version of a recipe, and that of one artifact.

Reads the artifacts of a version by the index of the store, so that a page costs the same in a small and in a large
store, and of some of them a file: funnel, loss, scores, decision about the mixture.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.responses import HTMLResponse
from markupsafe import Markup

from sluice_ui import charts
from sluice_ui.access import AnyVersion, At, User, readable, respond, router
from sluice_ui.attention import attention
from sluice_ui.costs import Cost
from sluice_ui.dossier import refusal
from sluice_ui.frame import (
    ROOT,
    Address,
    Version,
    artifact_link,
    badge,
    bar,
    external_link,
    link,
    moment,
    page,
    size,
)
from sluice_ui.recipes import versions
from tasks.core.artifact import Artifact, ArtifactId, InputRef
from tasks.core.errors import InputError
from tasks.core.ledger import changed
from tasks.core.store import Store
from tasks.core.terminal import duration
from tasks.core.version_index import VersionIndex
from tasks.formats.documents.languages import language_name
from tasks.run.recipe import Recipe
from tasks.run.runner import mlflow_url, open_store
from tasks.stages.canary.decision import Decision
from tasks.stages.consolidate.funnel import totals
from tasks.trainer.evaluation.paired import of_sized

MOST_USERS = 100
"""Users of an artifact in other versions that its page lists."""

KNOWN = 10
"""Versions that are named if another one is asked for."""

CONFIDENCE = 0.95
"""Of the intervals of scores."""

Kinds = Mapping[str, Artifact]
"""Artifacts of a version by kind."""


def overview(recipe: Recipe, name: str, at: Address) -> str:
    """Returns the page of a version: figures, warnings, funnel, loss, scores, mixture, artifacts.

    Raises:
        InputError: the version has no artifacts.
    """
    store = open_store(recipe)
    index = VersionIndex(store, recipe.name)
    artifacts = index.artifacts(name)
    if not artifacts:
        known = index.versions()
        more = f" and {len(known) - KNOWN:,} more" if len(known) > KNOWN else ""
        listed = ", ".join(known[:KNOWN]) or "none yet"
        raise InputError(f"{recipe.name} has no artifacts of version {name}", f"versions: {listed}{more}")
    kinds = {artifact.address.name.removeprefix(f"{recipe.name}/"): artifact for artifact in artifacts}
    of = Version(recipe.name, name, "overview", "crawl" in recipe.parts)
    return page(
        "version",
        f"{recipe.name} {name}",
        at,
        of,
        cards=_cards(artifacts, kinds),
        warnings=attention(store, recipe.name, name, artifacts),
        stages=_stages(artifacts),
        cost=_cost(artifacts, recipe.name),
        crawl=_crawl(kinds),
        funnel=_funnel(kinds.get("documents")),
        languages=_languages(kinds.get("documents"), of),
        loss=_loss(kinds.get("checkpoint")),
        scores=_scores(kinds.get("scores")),
        mixture=_mixture(kinds.get("mixture")),
        artifacts=_artifact_rows(artifacts),
        no_dossier=refusal(kinds.get("checkpoint")),
        query={"recipe": recipe.name, "version": name},
    )


def artifact(recipe: Recipe, address: str, at: Address) -> str:
    """Returns the page of one artifact: its inputs, settings and metrics, and the artifacts that used it.

    Raises:
        InputError: there is no such artifact; also for an address that is none, so that it is never used as a path.
    """
    index = VersionIndex(open_store(recipe), recipe.name)
    name = address.partition("@")[2]
    readable = index.artifacts(name) if name and "/" not in name else []
    known = {str(artifact.address): artifact for artifact in readable}
    if address not in known:
        raise InputError(f"there is no artifact {address}", "begin at the recipe's versions")
    found = known[address]
    record = found.record
    inputs = [
        [ref.role, artifact_link(ref.address), ref.content[:12], _state(found.store, ref)] for ref in record.inputs
    ]
    facts: list[list[object]] = [
        ["fingerprint", record.fingerprint],
        ["content", record.content],
        ["stage", f"{record.stage}, version {record.stage_version}"],
        ["code", ", ".join(f"{name} {value}" for name, value in sorted(record.code.items()))],
        ["host", ", ".join(f"{name} {value}" for name, value in sorted(record.host.items()))],
        [
            f"times of {record.adopted_from}" if record.adopted_from else "made",
            f"{record.started:%Y-%m-%d %H:%M:%S} to {record.finished:%H:%M:%S} UTC",
        ],
        ["rows", f"{record.rows_in:,} in, {record.rows_out:,} out, {sum(record.rejected.values()):,} rejected"],
        ["bytes", record.bytes],
        ["note", record.note],
        ["MLflow", _mlflow(found)],
    ]
    if record.adopted_from:
        facts.insert(0, ["adopted from", artifact_link(record.adopted_from)])
    metrics = sorted({**record.metrics, **{f"rejected: {k}": v for k, v in record.rejected.items()}}.items())
    return page(
        "artifact",
        address,
        at,
        Version(recipe.name, name, crawls="crawl" in recipe.parts),
        source=artifact_link(record.adopted_from) if record.adopted_from else "",
        facts=facts,
        inputs=inputs,
        users=[[artifact_link(user)] for user in index.users(found.address, MOST_USERS)],
        most_users=MOST_USERS,
        metrics=metrics,
        settings=json.dumps(record.config, indent=2, ensure_ascii=False),
    )


def _cards(artifacts: Sequence[Artifact], kinds: Kinds) -> list[tuple[str, object, str]]:
    """Returns label, value and remark of the main figures."""

    def metric(kind: str, name: str) -> float | None:
        return kinds[kind].record.metrics.get(name) if kind in kinds else None

    cards: list[tuple[str, object, str]] = []
    if (kept := metric("documents", "kept")) is not None:
        share = metric("documents", "kept_share")
        cards.append(("Documents", int(kept), "" if share is None else f"{share:.1%} of the extracted ones"))
    if (tokens := metric("shards", "tokens")) is not None:
        cards.append(("Tokens", int(tokens), ""))
    if (loss := metric("checkpoint", "loss")) is not None:
        cards.append(("Loss", f"{loss:.3f}", "nats per token, mean of the last twentieth of the steps"))
    if (bpb := metric("scores", "bpb")) is not None:
        cards.append(("Bits per byte", f"{bpb:.3f}", "of held-out text"))
    if (price := metric("estimate", "price")) is not None:
        cards.append(("Planned price", f"{price:,.4g}", "of the training"))
    made = [artifact.record for artifact in artifacts if not artifact.record.adopted_from]
    spent = sum((record.finished - record.started).total_seconds() for record in made)
    cards.append(("Stage time", duration(spent), f"{len(made)} made, {len(artifacts) - len(made)} adopted"))
    cards.append(("Disk", size(sum(record.stored() for record in made)), "without files of other versions"))
    return cards


def _state(store: Store, ref: InputRef) -> str:
    """Returns whether an input is as it was when it was read."""
    name, at_sign, version = ref.address.partition("@")
    current = Artifact.find(store, ArtifactId(name, version)) if at_sign else None
    return changed(ref, current) or "unchanged"


def _artifact_rows(artifacts: Sequence[Artifact]) -> list[list[object]]:
    rows: list[list[object]] = []
    longest = max((_seconds(one) for one in artifacts if not one.record.adopted_from), default=0) or 1
    for one in artifacts:
        record = one.record
        adopted = record.adopted_from
        how = badge("made", "good")
        finished = moment(record.finished)
        if adopted:
            how = badge("adopted", "pale") + Markup(" from ") + _of_source(adopted, record.artifact)
            finished = Markup('<span class="quiet">{} there</span>').format(finished)
        time = "" if adopted else bar(_seconds(one) / longest)
        rows.append(
            [artifact_link(record.artifact), record.stage, how, finished,
             None if adopted else round(_seconds(one), 1), time, record.rows_in, record.rows_out,
             sum(record.rejected.values()), record.bytes, record.note, _mlflow(one)]
        )  # fmt: skip
    return rows


def _of_source(adopted: str, own: str) -> Markup:
    """Returns a link to the artifact that another one was adopted from, as short as its kind allows."""
    name, _, version = adopted.partition("@")
    return link(version if name == own.partition("@")[0] else adopted, f"{ROOT}/artifact/{adopted}")


def _seconds(artifact: Artifact) -> float:
    return (artifact.record.finished - artifact.record.started).total_seconds()


def _mlflow(artifact: Artifact) -> str:
    url = mlflow_url(artifact)
    return external_link("run", url) if url else ""


def _funnel(documents: Artifact | None) -> dict[str, Any] | None:
    if documents is None or "funnel.parquet" not in documents.files():
        return None
    rows = totals(documents.table("funnel.parquet"), ["source", "step", "reason"])
    of_source: dict[str, int] = defaultdict(int)
    for row in rows:
        of_source[row["source"]] += row["documents"]
    lines: list[list[object]] = []
    for row in rows:
        share = row["documents"] / max(of_source[row["source"]], 1)
        shown = bar(share, lost=row["step"] != "kept") + f" {share:.1%}"
        lines.append([row["source"], row["step"], row["reason"] or "kept", row["documents"], row["bytes"], shown])
    kept = sum(row["documents"] for row in rows if row["step"] == "kept")
    label = f"{kept:,} of {sum(of_source.values()):,} documents are kept"
    return {"rows": lines, "figure": charts.funnel(rows), "label": label}


def _languages(documents: Artifact | None, of: Version) -> list[list[object]]:
    """Returns language, documents with text, kept ones and their share and bytes, the most documents first."""
    if documents is None or "funnel.parquet" not in documents.files():
        return []
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in totals(documents.table("funnel.parquet"), ["language", "step"]):
        counts = found[row["language"]]
        counts[0] += row["documents"]
        if row["step"] == "kept":
            counts[1] += row["documents"]
            counts[2] += row["bytes"] or 0
    found.pop("", None)  # without text
    rows: list[list[object]] = []
    for code, (number, kept, n_bytes) in sorted(found.items(), key=lambda item: (-item[1][0], item[0])):
        name = link(language_name(code), f"{ROOT}/corpus", **of.query, language=code)
        rows.append([name, number, kept, bar(kept / number) + f" {kept / number:.1%}", n_bytes])
    return rows


def _loss(checkpoint: Artifact | None) -> dict[str, str] | None:
    if checkpoint is None or "loss.parquet" not in checkpoint.files():
        return None
    table = checkpoint.table("loss.parquet").to_pydict()
    losses = [loss for loss in table["loss"] if loss is not None]
    if not losses:
        return None
    label = f"loss from {losses[0]:.2f} to {losses[-1]:.2f} nats per token in {len(table['step']):,} steps"
    return {"figure": charts.curve(table["step"], table["loss"], "step", "nats per token"), "label": label}


def _scores(scores: Artifact | None) -> dict[str, Any] | None:
    """Returns bits per byte by source with their intervals, and the scores on tasks with their standard errors."""
    if scores is None:
        return None
    content = json.loads(scores.read("scores.json"))
    rows: list[list[Any]] = []
    points = []
    for path in scores.files("documents/"):
        documents = scores.table(path, ["bytes", "bits"]).to_pydict()
        if not documents["bytes"]:
            continue
        estimate = of_sized(documents["bits"], documents["bytes"])
        source = path.removeprefix("documents/").removesuffix(".parquet")
        unigram = content["sources"].get(source, {}).get("unigram_bpb")
        ends = estimate.bounds(CONFIDENCE)
        points.append((source, estimate.value, ends))
        interval = charts.interval(ends, digits=3, otherwise="not known: too few documents")
        rows.append([source, len(documents["bytes"]), estimate.value, interval, unigram])
    tasks = [
        [task["task"], task["step"], task["items"], name, metric["value"],
         "" if metric["stderr"] is None else f"± {metric['stderr']:.4f}"]
        for task in content.get("tasks", ()) for name, metric in task["metrics"].items()
    ]  # fmt: skip
    if not rows and not tasks:
        return None
    label = "bits per byte: " + ", ".join(f"{row[0]} {row[2]:.3f} ({row[3]})" for row in rows)
    title = "bits per byte of held-out text with 95 % interval, lower is better"
    figure = charts.differences(points, title)
    return {"figure": figure if rows else "", "label": label, "rows": rows, "tasks": tasks}


def _stages(artifacts: Sequence[Artifact]) -> list[list[object]]:
    """Returns stage, artifacts made and adopted, minutes, their share as a bar, and MB of own files, of each stage."""
    by_stage: dict[str, list[Artifact]] = defaultdict(list)
    for one in artifacts:
        by_stage[one.record.stage].append(one)
    times = {stage: sum(_seconds(one) for one in of if not one.record.adopted_from) for stage, of in by_stage.items()}
    total = sum(times.values()) or 1
    rows: list[list[object]] = []
    for stage, of in by_stage.items():
        made = [one for one in of if not one.record.adopted_from]
        rows.append(
            [stage, len(made), len(of) - len(made), round(times[stage] / 60, 2), bar(times[stage] / total),
             round(sum(one.record.stored() for one in made) / 1e6, 1)]
        )  # fmt: skip
    return rows


def _cost(artifacts: Sequence[Artifact], recipe: str) -> list[list[object]]:
    """Returns figure, planned and real value, and their ratio, of the training; [] without an estimate."""
    cost = Cost.of(artifacts, recipe)
    return [
        [name, planned, real, None if real is None or not planned else real / planned]
        for name, planned in cost.planned.items()
        for real in [cost.real.get(name)]
    ]


def _mixture(mixture: Artifact | None) -> dict[str, Any] | None:
    if mixture is None:
        return None
    decision = Decision.read(mixture)
    return {
        "reason": decision.reason,
        "weights": [[name, share, bar(share)] for name, share in sorted(decision.weights.items())],
    }


def _crawl(kinds: Kinds) -> list[list[object]]:
    segments = [(name, one) for name, one in sorted(kinds.items()) if name.startswith("segment/")]
    return [
        [artifact_link(str(one.address)), one.record.rows_in, one.record.rows_out,
         ", ".join(f"{reason} {count:,}" for reason, count in sorted(one.record.rejected.items())),
         round(one.record.rows_out / max(_seconds(one), 1e-9), 1)]
        for _, one in segments
    ]  # fmt: skip


routes = router()


@routes.get("/recipe/{recipe}")
def recipe_page(recipe: str, user: User, at: At, version: AnyVersion = "") -> HTMLResponse:
    """One version of a recipe, or all its versions."""
    found = readable(recipe, user)
    return respond(lambda: overview(found, version, at) if version else versions(found, at))


@routes.get("/artifact/{address:path}")
def artifact_page(address: str, user: User, at: At) -> HTMLResponse:
    """One artifact, by name@version."""
    return respond(lambda: artifact(readable(address.partition("/")[0], user), address, at))

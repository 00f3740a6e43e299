"""`month`: the report of one month, beside the months before it.

Reads the artifacts of the version (`figures`, `drift`, `regret`) and the report of the month before, which contains the
entries of all earlier months. Writes the artifact `<recipe>/month@<version>`: `month.json`
{recipe, version, history, drift, alerts, regret, takedowns, needs}, and `month.html`, which is also sent to MLflow.

An entry of `history` has `version`, `ended` (why the month ended before a model, or ""), `documents`, `tokens`,
`seconds` by stage, `champion`, `scores`, and for the newest twelve months `profile` and `crawled`, with which later
months are compared.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId, InputRef, fingerprint
from tasks.core.commit import commit
from tasks.core.ledger import newest
from tasks.core.pages import template
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.core.version_index import VERSIONS
from tasks.formats.documents.languages import language_name
from tasks.formats.documents.tombstones import in_force
from tasks.run.inputs import check_recorded
from tasks.run.lineage import chain
from tasks.run.monthly import drift, figures, regret
from tasks.run.monthly.config import Cycle
from tasks.run.monthly.cycle import NOTHING_NEW, too_few
from tasks.run.monthly.tables import FILE, KIND, PAGE, read_month, tables
from tasks.run.recipe import Recipe
from tasks.run.runner import finish
from tasks.run.schedule import UTC
from tasks.run.trace.audit import audit
from tasks.run.tracking import Message, TrackingContext
from tasks.run.tracking.send import StageRun
from tasks.stages.consolidate.funnel import MOST_LOST

log = logging.getLogger("sluice.month")
alerts_log = logging.getLogger("sluice.alerts")
"""Operators forward what is logged here to the notifier of `[place.alerts]`."""

COMMAND, VERSION = "month", 2
"""Stage and version in the records, and in the fingerprints."""
DETAILED = 12
"""Months whose distributions are stored."""

READ = ("warc", "documents", "dedup_index", "shards", "checkpoint", "scores", "comparison", "champion")
"""Kinds that a report is made from; they are in its fingerprint."""

Entry = dict[str, Any]


def month_report(store: Store, recipe: Recipe, version: str, tracking: TrackingContext | None = None) -> Artifact:
    """Writes the report of a month, unless it exists.

    Args:
        store: store of the artifacts.
        recipe: the recipe; without `[cycle]` its defaults apply.
        version: the month.
        tracking: MLflow server and parent run; None for no tracking.

    Raises:
        InputError: nothing was made at the version.
        DriftError: the report exists, and something was made at the version since.
    """
    settings = (recipe.cycle or Cycle()).model_copy(update={"schedule": "", "timezone": UTC})
    artifacts = chain(store, recipe.name, version)
    address = ArtifactId(f"{recipe.name}/{KIND}", version)
    existing = Artifact.find(store, address)
    previous = _previous(store, existing, address)
    refs = [artifacts[kind].ref(kind) for kind in READ if kind in artifacts]
    refs += [previous.ref("previous")] if previous else []
    identity = fingerprint(COMMAND, VERSION, "", settings, refs)
    if existing:
        check_recorded(existing, identity)
        return existing
    content = _content(store, recipe, version, settings, artifacts, previous)
    return _write(store, address, identity, settings, refs, content, tracking)


def _previous(store: Store, existing: Artifact | None, own: ArtifactId) -> Artifact | None:
    """Returns the report of the month before: that which the existing report read, or the newest other one."""
    if existing is None:
        return newest(store, own.name, but=own.version)
    return existing.open_input("previous") if existing.ids_of("previous") else None


def _content(
    store: Store,
    recipe: Recipe,
    version: str,
    settings: Cycle,
    artifacts: Mapping[str, Artifact],
    previous: Artifact | None,
) -> dict[str, Any]:
    earlier: list[Entry] = read_month(previous)["history"] if previous else []
    entry = _entry(store, recipe, version, artifacts)
    recent = earlier[-settings.months :]
    profiles = [one["profile"] for one in recent if "profile" in one]
    drifts = drift.compare(entry["profile"], profiles, settings.drift)
    taken = _takedowns(store, recipe.name)
    alerts = [
        *({"kind": "drift", "what": one.name, "text": one.text()} for one in drifts if one.alert),
        *_alerts(entry, earlier, taken, figures.faults_of(store, recipe.name, version)),
    ]
    history = [*(_brief(one) for one in earlier[: 1 - DETAILED]), *earlier[1 - DETAILED :], entry]
    content = {
        "recipe": recipe.name,
        "version": version,
        "compared_with": [one["version"] for one in recent],
        "history": history,
        "drift": [{**asdict(one), "alert": one.alert} for one in drifts],
        "alerts": alerts,
        "regret": regret.matrix(history)._asdict(),
        "takedowns": taken,
    }
    return {**content, "needs": list(_needs(entry, alerts))}


def _brief(entry: Entry) -> Entry:
    return {name: value for name, value in entry.items() if name not in ("profile", "crawled")}


def _entry(store: Store, recipe: Recipe, version: str, artifacts: Mapping[str, Artifact]) -> Entry:
    index = artifacts.get("dedup_index")
    published = figures.published_by(index) if index else None
    return {
        "version": version,
        "ended": _ended(store, recipe, version, artifacts),
        "documents": figures.documents_of(artifacts, published),
        "filtered": figures.filtered_of(artifacts),
        "tokens": figures.tokens_of(store, recipe.name, version),
        "seconds": figures.costs_of(store, recipe.name, version),
        "champion": figures.champion_of(artifacts),
        "scores": regret.scores_of(store, recipe.name, version),
        "profile": figures.profile_of(artifacts, published),
        "crawled": figures.crawled_domains(artifacts),
    }


def _ended(store: Store, recipe: Recipe, version: str, artifacts: Mapping[str, Artifact]) -> str:
    """Returns why a month ended before the last DAG of its recipe; "" if it did not."""
    if "documents" not in artifacts:
        return NOTHING_NEW
    if "checkpoint" in artifacts or "checkpoint" not in recipe.makes:
        return ""
    return too_few(store, recipe, version) or "no mixture was approved, or the training has not run yet"


def _takedowns(store: Store, recipe: str) -> dict[str, Any]:
    """Returns the values in force, by kind, and the current artifacts that still have any of them."""
    if not in_force(store, recipe):
        return {"in_force": {}, "present": []}
    found = audit(store, recipe)
    return {"in_force": found.in_force, "present": [check.artifact for check in found.checked if check.present]}


def _alerts(
    entry: Entry, earlier: Sequence[Entry], taken: Mapping[str, Any], faults: Mapping[str, int]
) -> Iterator[dict[str, str]]:
    for language, share in drift.new_languages(entry["profile"], [one.get("profile", {}) for one in earlier]):
        text = f"{share:.1%} of the kept documents are in {language_name(language)}, which no earlier month had"
        yield {"kind": "new_language", "what": language, "text": text}
    for domain in drift.vanished(entry["crawled"], [one.get("crawled", {}) for one in earlier]):
        yield {"kind": "vanished", "what": domain, "text": f"no page of {domain} was there any more"}
    for address in taken["present"]:
        yield {"kind": "takedown", "what": address, "text": f"{address} has documents that are taken down"}
    for name, count in sorted(faults.items()):
        yield {"kind": "training", "what": name, "text": f"{name.replace('/', ': ')} {count:,}"}


def _needs(entry: Entry, alerts: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yields what needs a person, in sentences."""
    yield from (alert["text"] for alert in alerts)
    for source, share in entry["filtered"].items():
        if share > MOST_LOST:
            yield f"filters dropped {share:.0%} of the documents of {source}: see samples in audit.html of documents"
    champion = entry["champion"]
    if champion and champion["promoted"] and not champion["decided"]:
        yield f"the model is to become champion, but the decision is open: {champion['reason']}"


def _write(
    store: Store,
    address: ArtifactId,
    identity: str,
    settings: Cycle,
    refs: Sequence[InputRef],
    content: Mapping[str, Any],
    tracking: TrackingContext | None,
) -> Artifact:
    html = page(content)
    output = Output(store, address, identity)
    if "month" not in output.committed:
        with output.part("month", conserved=False) as part:
            for name, text in ((FILE, json.dumps(content, indent=1, sort_keys=True) + "\n"), (PAGE, html)):
                part.write(name, text.encode())
    entry = content["history"][-1]
    counted = {
        **{f"documents/{name}": count for name, count in entry["documents"].items()},
        VERSIONS: len(content["history"]),
    }
    metrics = {
        name: float(value)
        for name, value in {**counted, "alerts": len(content["alerts"]), "new_tokens": entry["tokens"]["new"]}.items()
    }
    report = Report(metrics=metrics, note=note_of(content))
    artifact = commit(output, COMMAND, VERSION, settings, refs, report)
    log.info("[%s] %s", address, report.note)
    for alert in content["alerts"]:
        alerts_log.warning("[%s] alert: %s at %s: %s", address, alert["kind"], address.version, alert["text"])
    if tracking and tracking.uri:
        _track(store, artifact, tracking, html, json.dumps(content, indent=1))
    return artifact


def note_of(content: Mapping[str, Any]) -> str:
    """Returns a month in one line."""
    entry = content["history"][-1]
    documents, alerts = entry["documents"], len(content["alerts"])
    what = entry["ended"] or f"{documents.get('new', 0):,} new documents, {documents.get('changed', 0):,} changed"
    return f"{what}; {alerts} alert{'s' * (alerts != 1)}"


def page(content: Mapping[str, Any]) -> str:
    """Returns the report as an HTML page that opens without a network."""
    title = f"{content['recipe']}, {content['version']}"
    return template(__package__, "month.html").render(title=title, content=content, tables=tables(content))


def _track(store: Store, artifact: Artifact, tracking: TrackingContext, html: str, text: str) -> None:
    """Sends the report to MLflow as a run of its own under the run of the month; keeps it for later if that is down."""
    key = f"{tracking.parent_key}|{artifact.address}|{artifact.record.fingerprint[:16]}"
    about = (__doc__ or "").partition("\n")[0]
    run = StageRun(store, Message(tracking, key, COMMAND, about, artifact.address.version))
    run.file(PAGE, html.encode())
    run.file(FILE, text.encode())
    finish(store, run, artifact)

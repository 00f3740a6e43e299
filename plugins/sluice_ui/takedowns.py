"""The takedowns of a recipe: who asked for which, what it met, and whether the current artifacts honor it.

Reads the records of takedowns, the reports of those that are shown, and the records of the newest artifacts, but no
documents: the report of a takedown names the artifacts that had its documents when it came into force, and the records
of later artifacts the takedowns that they applied. `sluice audit` reads the documents.

A preview finds the kept documents of a request in the document index of the newest tokens and the newest model.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Form, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, Response
from markupsafe import Markup

from sluice_ui.access import AnyVersion, At, Name, User, readable, respond, router
from sluice_ui.frame import ROOT, Address, Version, artifact_link, badge, link, page, page_of
from sluice_ui.trigger import Token, offer, trigger
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError, SluiceError
from tasks.core.ledger import versions_of
from tasks.core.store import Store
from tasks.core.version_index import VersionIndex, find_readable
from tasks.formats.dedup import dedup_index
from tasks.formats.documents.tombstones import (
    DOCUMENT,
    DOMAIN,
    PREVIOUS,
    TAKEDOWN,
    URL,
    Tombstone,
    heads,
    read_all,
)
from tasks.formats.tokens.readings import EXAMPLES
from tasks.formats.web.domain import host_name
from tasks.formats.web.url import bare
from tasks.run.recipe import Recipe
from tasks.run.runner import open_store
from tasks.stages.takedown import TakedownConfig
from tasks.stages.takedown.nearest import nearest
from tasks.stages.takedown.report import CHECKPOINT, CHUNKS, DOCUMENTS, MODELS, PLAN
from tasks.stages.takedown.stage import requested_values, values_to_lift

if TYPE_CHECKING:
    from tasks.formats.tokens.index import IndexEntry
    from tasks.run.trace.graph import LineageReader

PER_PAGE = 25
"""Takedowns on one page."""

SHOWN = 3
"""Values of a takedown in the list."""

MOST_VALUES = 50
"""Values of a request that a preview looks up."""

MOST_DOCUMENTS = 100
"""Documents of a preview that are shown."""

MOST_COMPARED = 1_000
"""Documents of a host, the first ones, among which a preview looks for addresses like one without a document."""

CURRENT = (DOCUMENTS, CHUNKS, PLAN, EXAMPLES, dedup_index.KIND)
"""Kinds whose newest artifact must be free of what is taken down, as `audit` checks."""

LINES = {
    "urls": "URLs of pages, or file:// URLs as Trace shows them",
    "domains": "Domains, such as example.org; all names below them are included",
    "documents": "Document ids, 32 hex digits each",
    "lift": "Lift: URLs, domains or ids whose takedown ends, in any spelling",
}
"""Multi-line fields of a request, with their titles."""

FIELDS = (*LINES, "reason", "requested_by", "from_crawl")
"""All fields of a request; `from_crawl` is "" or "1"."""

Query = Mapping[str, str]
Value = tuple[str, str]


@dataclass(frozen=True)
class Standing:
    """The takedowns of a recipe, and what its newest artifacts are.

    Attributes:
        made: all takedowns, the newest first.
        stones: values in force, once per takedown that introduced them.
        current: the newest artifact of each kind in CURRENT that was made.
        applied: ids of the takedowns that a current artifact applied, or that these contain, by its kind.
    """

    made: Sequence[Artifact]
    stones: Sequence[Tombstone]
    current: Mapping[str, Artifact]
    applied: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, store: Store, recipe: str) -> "Standing":
        """Reads the records of all takedowns and of the newest artifacts."""
        made = versions_of(store, f"{recipe}/{TAKEDOWN}")
        before = {str(one.address): [ref.address for ref in one.record.inputs if ref.role == PREVIOUS] for one in made}
        current = newest_artifacts(store, recipe)
        applied = {
            kind: _closure([ref.address for ref in artifact.record.inputs if ref.address in before], before)
            for kind, artifact in current.items()
        }
        made.sort(key=lambda one: (one.record.config["date"], one.address), reverse=True)
        return cls(made, read_all(heads(made)), current, applied)

    def of_takedown(self, takedown: str) -> list[Tombstone]:
        """Returns the values that a takedown introduced and that are still in force."""
        return [stone for stone in self.stones if stone.takedown == takedown]

    def pending(self, takedown: Artifact, report: Mapping[str, Any]) -> list[tuple[str, int]]:
        """Returns the current artifacts that do not apply a takedown though they had its documents, and how many.

        The number is 0 if it is not known: an artifact that was finished after the takedown and does not apply it, or
        the index of duplicates, of which the report says nothing.
        """
        address = str(takedown.address)
        if not self.of_takedown(address):
            return []
        had = {entry["artifact"]: entry["documents"] for entry in report["artifacts"]}
        result = []
        for kind, artifact in self.current.items():
            if address in self.applied[kind]:
                continue
            own, source = str(artifact.address), artifact.record.adopted_from
            unknown = artifact.record.finished > takedown.record.finished
            if own in had or source in had:
                result.append((own, had.get(own) or had.get(source, 0)))
            elif unknown or (kind == dedup_index.KIND and had):
                result.append((own, 0))
        return result


def newest_artifacts(store: Store, recipe: str) -> dict[str, Artifact]:
    """Returns the artifact of each kind in CURRENT whose version was begun last."""
    order = {version: at for at, version in enumerate(VersionIndex(store, recipe).versions())}
    return {kind: found for kind in CURRENT if (found := _newest(store, f"{recipe}/{kind}", order))}


def _newest(store: Store, name: str, order: Mapping[str, int]) -> Artifact | None:
    versions = sorted(store.folders(name), key=lambda version: order.get(version, len(order)))
    found = (find_readable(store, ArtifactId(name, version)) for version in versions)
    return next((artifact for artifact in found if artifact), None)


def _closure(takedowns: Sequence[str], before: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """Returns some takedowns and all those that they contain."""
    known: set[str] = set()
    front = list(takedowns)
    while front:
        address = front.pop()
        if address not in known:
            known.add(address)
            front += before.get(address, ())
    return frozenset(known)


def takedowns(recipe: Recipe, at: Address, user: Any, asked: Query | None = None) -> str:
    """Returns the page of a recipe's takedowns, newest first, with the form of a request.

    Args:
        recipe: the recipe.
        at: address of the page.
        user: the logged-in user.
        asked: fields of a request whose preview is shown; None for an empty form.
    """
    store = open_store(recipe)
    standing = Standing.of(store, recipe.name)
    number, pages = page_of(at, len(standing.made), PER_PAGE)
    rows = [_row(made, standing) for made in standing.made[(number - 1) * PER_PAGE : number * PER_PAGE]]
    return page(
        "takedowns",
        "Takedowns",
        at,
        Version(recipe.name, "", "takedowns", "crawl" in recipe.parts),
        rows=rows,
        number=number,
        pages=pages,
        count=len(standing.made),
        links={step: at.href(page=str(number + step)) for step in (-1, 1) if 1 <= number + step <= pages},
        in_force=len({(stone.kind, stone.value) for stone in standing.stones}),
        offer=offer(user, f"{recipe.name}.takedown"),
        action=Address("/takedowns", {"recipe": recipe.name}).href(),
        lines=LINES,
        asked={**dict.fromkeys(FIELDS, ""), "requested_by": user.get_name(), **(asked or {})},
        preview=preview(store, recipe.name, asked, standing) if asked is not None else None,
        crawls="crawl" in recipe.parts,
    )


def one_takedown(recipe: Recipe, version: str, at: Address) -> str:
    """Returns the page of one takedown; raises InputError if there is none."""
    store = open_store(recipe)
    made = Artifact.find(store, ArtifactId(f"{recipe.name}/{TAKEDOWN}", version))
    if made is None:
        raise InputError(f"{recipe.name} has no takedown {version}", "begin at the list of takedowns")
    standing = Standing.of(store, recipe.name)
    report, address = _report(made), str(made.address)
    now = {stone.value for stone in standing.of_takedown(address)}
    pending = dict(standing.pending(made, report))
    return page(
        "takedown",
        f"Takedown of {_when(report['date']) or version}",
        at,
        Version(recipe.name, "", "takedowns", "crawl" in recipe.parts),
        report=report,
        record=link("its artifact", f"{ROOT}/artifact/{address}"),
        state=_state(made, report, standing),
        unmatched=[[one["kind"], one["value"], ", ".join(one["nearest"])] for one in report["unmatched"]],
        values=[
            [one["kind"], one["value"], badge("in force") if one["value"] in now else badge("lifted", "pale"),
             one["reason"], artifact_link(one["origin"]) if "@" in one["origin"] else one["origin"]]
            for one in report["new"]
        ],
        lifted=[[one["kind"], one["value"], artifact_link(one["takedown"])] for one in report["lifted"]],
        artifacts=[_effect(entry, pending) for entry in report["artifacts"]],
        unknown=[artifact_link(name) for name, count in pending.items() if not count],
        found=[[one["url"], one["source"], _traces(one, recipe.name)] for one in report["found"]],
        copies=[[artifact_link(one["artifact"]), one["url"], one["id"]] for one in report["copies"]],
        published=[[artifact_link(one["artifact"]), one["url"], one["id"]] for one in report["published_copies"]],
    )  # fmt: skip


def preview(store: Store, recipe: str, asked: Query, standing: Standing) -> dict[str, Any]:
    """Returns what a request would meet: {problem, rows, notes}.

    The rows are kept documents of the newest version with tokens and of the newest one with a model, found in their
    index: value, version, document, URL, tokens, and the number of training steps that read it, None without a model.
    """
    try:
        config, values, lifted = checked(asked, standing)
    except (SluiceError, ValueError) as error:
        return {"problem": str(error), "rows": [], "notes": []}
    known = {(stone.kind, stone.value) for stone in standing.stones}
    notes = [f"{kind} {value}: would be lifted" for kind, value in lifted]
    notes += [f"{kind} {value}: in force already" for kind, value in values if (kind, value) in known]
    if config.from_crawl:
        notes.append("The pages that their sites withdrew are read from the newest crawl cycle when the run begins.")
    readers = _readers(store, recipe)
    if not readers:
        return {"problem": "", "rows": [], "notes": [*notes, "No tokens yet, so no document can be looked up."]}
    rows: list[list[object]] = []
    for kind, value in values[:MOST_VALUES]:
        met = 0
        for version, reader in readers.items():
            count, entries = _look_up(reader, kind, value)
            met += count
            if count > len(entries):
                notes.append(f"{kind} {value}: {count:,} documents in {version}, of which {len(entries)} are listed")
            for entry in entries[: max(0, MOST_DOCUMENTS - len(rows))]:
                steps = len(reader.readings.of(entry.shard, entry.row).steps) if reader.readings.run else None
                trace = link(entry.uid.hex(), f"{ROOT}/trace", recipe=recipe, version=version, what=entry.uid.hex())
                rows.append([value, version, trace, entry.url, entry.n_tokens, steps])
        notes += [] if met else [f"{kind} {value}: no kept document{_nearest(readers, kind, value)}"]
    if len(values) > MOST_VALUES:
        notes.append(f"The first {MOST_VALUES} of {len(values):,} lines were looked up.")
    return {"problem": "", "rows": rows, "notes": notes, "of": " and ".join(readers)}


def _readers(store: Store, recipe: str) -> "dict[str, LineageReader]":
    """Returns the newest versions with tokens and with a model, which may be one, opened for look-ups."""
    from tasks.run.trace.graph import LineageReader

    order = {version: at for at, version in enumerate(VersionIndex(store, recipe).versions())}
    newest = [_newest(store, f"{recipe}/{kind}", order) for kind in ("shards", CHECKPOINT)]
    versions = dict.fromkeys(artifact.address.version for artifact in newest if artifact)
    readers = {version: LineageReader.follow(store, recipe, version) for version in versions}
    return {version: reader for version, reader in readers.items() if reader.index is not None}


def _look_up(reader: "LineageReader", kind: str, value: str) -> tuple[int, "list[IndexEntry]"]:
    """Returns the number of kept documents that a takedown of one value meets, and at most MOST_DOCUMENTS of them."""
    assert reader.index is not None
    if kind == DOMAIN:
        return reader.index.by_domain(value, MOST_DOCUMENTS)
    if kind == DOCUMENT:
        entry = reader.index.by_uid(bytes.fromhex(value))
        entries = [entry] if entry else []
    else:
        entries = reader.entries_of(value)
    return len(entries), entries[:MOST_DOCUMENTS]


def _nearest(readers: "Mapping[str, LineageReader]", kind: str, value: str) -> str:
    """Returns the kept URLs of the same host that are most like a URL, as text; "" if there are none."""
    host = host_name(value) if kind == URL else None
    near: list[str] = []
    for index in (reader.index for reader in readers.values() if host and reader.index is not None):
        near += [entry.url for entry in index.by_domain(bare(host or ""), MOST_COMPARED)[1]]
    return f"; the nearest: {', '.join(nearest(value, near))}" if near else ""


def checked(asked: Query, standing: Standing) -> tuple[TakedownConfig, list[Value], list[Value]]:
    """Returns a request from the fields of its form, and the (kind, value) that it takes down and that it lifts.

    Raises:
        SluiceError, ValueError: a field or a line is invalid, or the request is empty.
    """
    fields = {name: _lines(asked[name]) for name in (*LINES, "reason", "requested_by")}
    config = TakedownConfig.model_validate({**fields, "from_crawl": bool(asked["from_crawl"])})
    values = list(requested_values(config))
    lifted = list(values_to_lift(config, {(stone.kind, stone.value) for stone in standing.stones}))
    if not (values or lifted or config.from_crawl):
        raise InputError("the request is empty", "give at least one URL, domain or document id")
    return config, values, lifted


def _lines(text: str) -> str:
    """Returns the text of a field; forms send CRLF."""
    return text.replace("\r\n", "\n")


def _report(made: Artifact) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(made.read("report.json"))
    return report


def _row(made: Artifact, standing: Standing) -> list[object]:
    """Returns date, values, person, reason, documents, and state of a takedown."""
    report, address = _report(made), str(made.address)
    values = [one["value"] for one in report["new"]] + [f"lifts {one['value']}" for one in report["lifted"]]
    more = f" and {len(values) - SHOWN:,} more" if len(values) > SHOWN else ""
    query = {"recipe": address.partition("/")[0], "takedown": made.address.version}
    what = (", ".join(values[:SHOWN]) + more) or "nothing new"
    return [
        link(_when(report["date"]) or made.address.version, f"{ROOT}/takedowns", **query),
        what,
        report["requested_by"],
        report["reason"],
        report["documents"],
        _state(made, report, standing),
    ]


def _when(date: str) -> str:
    """Returns the date of a request to the minute, in its own time zone; "" if it has none."""
    return f"{datetime.fromisoformat(date):%Y-%m-%d %H:%M}" if date else ""


def _state(made: Artifact, report: Mapping[str, Any], standing: Standing) -> Markup:
    """Returns whether the newest artifacts honor a takedown, and which models have read its documents."""
    new, now = len(report["new"]), len(standing.of_takedown(str(made.address)))
    pending = standing.pending(made, report)
    if not new:
        state = badge("lifts only" if report["lifted"] else "nothing new", "pale")
    elif not now:
        state = badge("lifted", "pale")
    elif known := [f"{name} ({count:,})" for name, count in pending if count]:
        state = badge("pending", "bad") + Markup(" in {}").format(", ".join(known))
    elif pending:
        state = badge("not known", "bad") + Markup(" for {}").format(", ".join(name for name, _ in pending))
    else:
        state = badge("honored", "good")
    if new and 0 < now < new:
        state += Markup("; {:,} of {:,} values lifted").format(new - now, new)
    if missing := len(report["unmatched"]):
        state += Markup("; ") + badge(f"no record matches {missing:,}", "bad")
    models = [entry["artifact"] for entry in report["artifacts"] if entry["kind"] in MODELS and entry["documents"]]
    if models and now:
        state += Markup("; read by {} {}").format(f"{len(models):,}", "model" if len(models) == 1 else "models")
    return state


def _effect(entry: Mapping[str, Any], pending: Mapping[str, int]) -> list[object]:
    """Returns artifact, documents, steps, what it is now, and what remains to be done, of an affected artifact."""
    if entry["kind"] in MODELS:
        state = badge("cannot forget", "pale")
    elif entry["artifact"] in pending:
        state = badge("pending", "bad")
    else:
        state = badge("not the newest", "pale") if entry["kind"] in CURRENT else badge("stays as it is", "pale")
    return [artifact_link(entry["artifact"]), entry["documents"], entry.get("steps"), state,
            entry["problem"] or entry["next"]]  # fmt: skip


def _traces(found: Mapping[str, Any], recipe: str) -> Markup:
    version = found["artifacts"][0].partition("@")[2]
    return link(found["id"], f"{ROOT}/trace", recipe=recipe, version=version, what=found["id"])


def _problem(recipe: Recipe, asked: Query) -> str:
    """Returns why a request cannot be made, which its preview shows; "" if it can."""
    try:
        checked(asked, Standing.of(open_store(recipe), recipe.name))
    except (SluiceError, ValueError) as error:
        return str(error)
    return ""


routes = router()

Text = Annotated[str, Form()]


@routes.get("/takedowns")
def takedowns_page(recipe: Name, user: User, at: At, takedown: AnyVersion = "") -> HTMLResponse:
    """All takedowns of a recipe with the form of a request, or one of them."""
    found = readable(recipe, user)
    return respond(lambda: one_takedown(found, takedown, at) if takedown else takedowns(found, at, user))


@routes.post("/takedowns")
async def request_page(
    request: Request, recipe: Name, user: User, at: At, token: Token = "", do: Text = "preview",
    urls: Text = "", domains: Text = "", documents: Text = "", lift: Text = "", reason: Text = "",
    requested_by: Text = "", from_crawl: Text = "",
) -> Response:  # fmt: skip
    """Shows what a request would meet, which changes nothing, or triggers the DAG `<recipe>.takedown` with it."""
    asked = {"urls": urls, "domains": domains, "documents": documents, "lift": lift, "reason": reason,
             "requested_by": requested_by or user.get_name(), "from_crawl": from_crawl}  # fmt: skip
    found = await run_in_threadpool(readable, recipe, user)
    if do != "request":
        return await run_in_threadpool(lambda: respond(lambda: takedowns(found, at, user, asked)))
    if await run_in_threadpool(_problem, found, asked):
        return await run_in_threadpool(lambda: respond(lambda: takedowns(found, at, user, asked)))
    conf = {f"takedown.{name}": _lines(text) for name, text in asked.items() if text}
    made = await trigger(request, user, token, f"{recipe}.takedown", {**conf, "takedown.from_crawl": bool(from_crawl)})
    return made.response

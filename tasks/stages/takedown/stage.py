"""Stage `takedown`: a request and all earlier takedowns -> the tombstones in force, and a report of their effects.

Reads the settings, the takedowns in force (`previous`) and, if requested, `takedown.parquet` of the newest crawl cycle
(`warc`). Writes `tombstones.parquet` (`tasks.formats.documents.tombstones`), all tombstones in force after the request,
and `lifted.parquet`, all lifted ones, if there are any. It searches the recipe's current artifacts for documents of the
new tombstones, and writes

    report.json      the request, the affected artifacts and steps, copies elsewhere, and values without documents;
                     for a value that matches no record, the nearest addresses (`nearest`)
    report.html      the same as a page
    found.parquet    the documents by artifact, with sequences, steps and checkpoints (`report.AFFECTED_DOCUMENTS`)

Nothing else is changed: crawl, corpus, plans and running trainings read the tombstones themselves.
"""

import json
import logging
import re
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.documents.tombstones import (
    DOCUMENT,
    DOMAIN,
    FILE,
    LIFTED,
    LIFTED_FILE,
    PREVIOUS,
    TAKEDOWN,
    URL,
    Lift,
    Tombstone,
    Tombstones,
    document_identity,
    read,
    read_all,
    read_lifted,
    write,
)
from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.domain import is_public_suffix
from tasks.formats.web.url import authority, identity
from tasks.stages.takedown import TakedownConfig
from tasks.stages.takedown.nearest import unmatched
from tasks.stages.takedown.report import (
    AFFECTED_DOCUMENTS,
    AffectedArtifact,
    affected_artifacts,
    matched_values,
    page,
    published_copies,
    report_of,
    unfinished,
)

VERSION = 3
WITHDRAWN = "takedown.parquet"
FORM, CRAWL = "form", "crawl"
_ID = re.compile(r"[0-9a-f]{32}")
_MAX_QUOTED = 120
_MOST_WARNINGS = 20
T = TypeVar("T")

log = logging.getLogger("sluice.takedown")


def run(config: TakedownConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the tombstones and the report.

    Raises:
        InputError: a line of the request is invalid, the request is empty, it lifts a value that is not in force, or it
            has `from_crawl` and no cycle has been completed.
    """
    earlier = inputs.many(PREVIOUS) if PREVIOUS in inputs else []
    lifted = _lifts(config, read_all(earlier), str(output.address))
    lifted_values = {(lift.kind, lift.value) for lift in lifted}
    before = [stone for stone in read(earlier) if (stone.kind, stone.value) not in lifted_values]
    requested = _tombstones_of(config, inputs, str(output.address))
    if both := sorted(stone.value for stone in requested if (stone.kind, stone.value) in lifted_values):
        raise InputError(f"takedown.lift: the request also takes down {both[0]}", "remove it from one of the two")
    values_before = {(stone.kind, stone.value) for stone in before}
    new = [stone for stone in requested if (stone.kind, stone.value) not in values_before]
    stones = sorted([*before, *new])
    if "tombstones" not in output.committed:
        with output.part("tombstones") as part:
            part.count_in(len(stones))
            part.count_out(len(stones))
            with part.file(FILE, rows=len(stones)) as file:
                write(file, stones)
            if all_lifted := sorted([*read_lifted(earlier), *lifted]):
                with part.file(LIFTED_FILE) as file:
                    write(file, all_lifted, LIFTED)
    recipe = output.address.name.partition("/")[0]
    if "report" not in output.committed:
        covered = Tombstones.of(new)
        affected = affected_artifacts(output.store, recipe, covered)
        running = unfinished(output.store, recipe)
        published = published_copies(output.store, recipe, covered, Tombstones.of(stones))
        address = str(output.address)
        named = [stone for stone in requested if stone.origin == FORM]
        missing = unmatched(output.store, recipe, named, matched_values(new, affected))
        report = report_of(config, address, requested, new, stones, affected, lifted, running, published, missing)
        _write_report(output, affected, report)
    report = json.loads(output.store.read(f"{output.address.path}/report.json"))
    for entry in report["unmatched"][:_MOST_WARNINGS]:
        near = f"; the nearest: {', '.join(entry['nearest'])}" if entry["nearest"] else ""
        log.warning("%s %s matches no record of %s; it is in force%s", entry["kind"], entry["value"], recipe, near)
    output.log_file("takedown.html", output.store.read(f"{output.address.path}/report.html"))
    return Report(metrics=_metrics(report), note=report["summary"])


def _tombstones_of(config: TakedownConfig, inputs: Inputs, address: str) -> list[Tombstone]:
    """Returns the distinct tombstones of a request."""
    tombstones = {
        (kind, value): Tombstone(kind, value, config.reason, config.requested_by, config.date, FORM, address)
        for kind, value in requested_values(config)
    }
    if config.from_crawl:
        if "warc" not in inputs:
            raise InputError(
                "takedown.from_crawl: no crawl cycle of the recipe has been completed",
                "run its crawl first, or switch this off",
            )
        warc = inputs["warc"]
        # Pages marked by a takedown are in force already, often through their domain.
        withdrawn = pc.field("reason") != TAKEDOWN
        for row in warc.table(WITHDRAWN, ["url", "reason"], withdrawn).to_pylist():
            url = identity(row["url"])
            stone = Tombstone(URL, url, row["reason"], str(warc.address), config.date, CRAWL, address)
            tombstones.setdefault((URL, url), stone)
    elif not tombstones and not any(line.strip() for line in config.lift):
        raise InputError(
            "the takedown is empty", "give at least one URL, domain or document id, or use the crawl's list"
        )
    return list(tombstones.values())


def _lifts(config: TakedownConfig, before: list[Tombstone], address: str) -> list[Lift]:
    """Returns the lifted tombstones; a value may have tombstones of several takedowns."""
    values = values_to_lift(config, {(stone.kind, stone.value) for stone in before})
    return [
        Lift(stone.kind, stone.value, stone.takedown, config.reason, config.requested_by, config.date, address)
        for stone in before
        if (stone.kind, stone.value) in values
    ]


def _write_report(output: Output, affected: list[AffectedArtifact], report: dict[str, Any]) -> None:
    rows = pa.concat_tables([AFFECTED_DOCUMENTS.empty_table(), *(entry.table() for entry in affected)])
    with output.part("report", conserved=False) as part:
        part.write_table("found.parquet", rows)
        part.write("report.json", json.dumps(report, indent=1, ensure_ascii=False).encode() + b"\n")
        part.write("report.html", page(report))


def _metrics(report: dict[str, Any]) -> dict[str, float]:
    return {
        "new": float(len(report["new"])),
        "in_force": float(report["in_force"]),
        "artifacts": float(len(report["artifacts"])),
        "documents": float(report["documents"]),
        "unmatched": float(len(report["unmatched"])),
        "steps": float(sum(artifact.get("steps", 0) for artifact in report["artifacts"])),
    }


class _InvalidLine(ValueError):
    """Cause and remedy of an invalid line of a request."""


def requested_values(config: TakedownConfig) -> dict[tuple[str, str], None]:
    """Returns the distinct (kind, canonical value) of all lines of a request, in order.

    Raises:
        InputError: a line is not a URL, domain or document id; the message names the field and the line.
    """
    fields: list[tuple[str, str, Sequence[str], Callable[[str], str]]] = [
        (URL, "urls", config.urls, _url),
        (DOMAIN, "domains", config.domains, _domain),
        (DOCUMENT, "documents", config.documents, _document),
    ]
    return {
        (kind, value): None
        for kind, name, lines, check in fields
        for value in _values(f"takedown.{name}", lines, check)
    }


def values_to_lift(config: TakedownConfig, in_force: Container[tuple[str, str]]) -> dict[tuple[str, str], None]:
    """Returns the distinct (kind, canonical value) of all tombstones that a request lifts, in order.

    Args:
        config: the request.
        in_force: (kind, canonical value) of the tombstones in force.

    Raises:
        InputError: a line is not a URL, domain or document id, or is not in force; the message names the line.
    """

    def find(text: str) -> tuple[str, str]:
        value = _parse_line(text)
        if value not in in_force:
            raise _InvalidLine("is not in force", "name a value that was taken down; `sluice audit --json` lists all")
        return value

    return dict.fromkeys(_values("takedown.lift", config.lift, find))


def _parse_line(text: str) -> tuple[str, str]:
    if _ID.fullmatch(text.lower()):
        return DOCUMENT, _document(text)
    return (URL, _url(text)) if "/" in text else (DOMAIN, _domain(text))


def _values(name: str, lines: Sequence[str], check: Callable[[str], T]) -> Iterator[T]:
    for number, line in enumerate(lines, 1):
        if text := line.strip():
            try:
                yield check(text)
            except _InvalidLine as wrong:
                cause, remedy = wrong.args
                quoted = "".join(char if char.isprintable() else "?" for char in text[:_MAX_QUOTED])
                quoted += "..." if len(text) > _MAX_QUOTED else ""
                raise InputError(f'{name}, line {number}: "{quoted}" {cause}', remedy) from None


def _url(text: str) -> str:
    url = document_identity(text)
    if url is None:
        raise _InvalidLine(
            "is not an http or https URL, nor the file:// URL of a document",
            "write it as https://host/path or file://source/file, or give the document's id under documents; "
            "`sluice trace` prints both",
        )
    return url


def _domain(text: str) -> str:
    name = text.lower().rstrip(".")
    if "/" in name or (":" in name and not name.endswith("]")):
        raise _InvalidLine("is not a plain host name", "write it without scheme, port and path, such as example.org")
    if "*" in name:
        raise _InvalidLine("is not a host name", "write it without *: a domain includes all names below it")
    url = canonical(f"http://{name}/")
    if not name or url is None or url != f"http://{authority(url)}/":
        raise _InvalidLine("is not a host name", "write it as example.org")
    host = authority(url)
    if is_public_suffix(host):
        raise _InvalidLine("is a public suffix, under which anyone can register", "name individual domains below it")
    return host


def _document(text: str) -> str:
    if not _ID.fullmatch(text.lower()):
        raise _InvalidLine("is not a document id", "an id is 32 hex digits, as `sluice trace` prints it")
    return text.lower()

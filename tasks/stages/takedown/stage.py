"""Stage `takedown`: a request, and all takedowns before it -> the tombstones in force, and a report of what they met.

Reads the settings, the takedowns in force (`previous`) and, where the request says so, `takedown.parquet` of the newest
crawl cycle (`warc`). Writes `tombstones.parquet` (`tasks.formats.documents.tombstones`), all that are in force from now
on, and `lifted.parquet`, all that were lifted, if any ever was. For the new ones it looks through the recipe's
artifacts as they are at that moment, and writes

    report.json      the request, the artifacts and steps that it met, copies elsewhere, and what was not found
    report.html      the same for people
    found.parquet    the documents by artifact, with sequences, steps and checkpoints (`report.FOUND`)

Nothing else is changed: crawl, corpus, plans and running trainings read the tombstones themselves.
"""

import json
import re
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.documents.tombstones import (
    DOCUMENT,
    DOMAIN,
    FILE,
    LIFTED_FILE,
    PREVIOUS,
    TAKEDOWN,
    URL,
    Lift,
    Tombstone,
    Tombstones,
    read,
    read_all,
    read_lifted,
    write,
    write_lifted,
)
from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.domain import is_public_suffix
from tasks.formats.web.url import authority
from tasks.stages.takedown import TakedownConfig
from tasks.stages.takedown.report import FOUND, Affected, affected, page, report_of, unfinished

VERSION = 2
WITHDRAWN = "takedown.parquet"
FORM, CRAWL = "form", "crawl"
_ID = re.compile(r"[0-9a-f]{32}")
_SHOWN = 120
T = TypeVar("T")


def run(config: TakedownConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the tombstones and the report.

    Raises:
        InputError: a line of the request cannot be used, the request names nothing, it lifts what is not in force, or
            it has `from_crawl` and no cycle has been completed.
    """
    earlier = inputs.many(PREVIOUS) if PREVIOUS in inputs else []
    lifted = _lifted(config, read_all(earlier), str(output.address))
    named = {(one.kind, one.value) for one in lifted}
    before = [stone for stone in read(earlier) if (stone.kind, stone.value) not in named]
    asked = _tombstones_of(config, inputs, str(output.address))
    if both := sorted(stone.value for stone in asked if (stone.kind, stone.value) in named):
        raise InputError(f"takedown.lift: the request also takes down {both[0]}", "take it out of one of the two")
    known = {(stone.kind, stone.value) for stone in before}
    new = [stone for stone in asked if (stone.kind, stone.value) not in known]
    stones = sorted([*before, *new])
    if "tombstones" not in output.committed:
        with output.part("tombstones") as part:
            part.count_in(len(stones))
            part.count_out(len(stones))
            with part.file(FILE, rows=len(stones)) as file:
                write(file, stones)
            if all_lifted := sorted([*read_lifted(earlier), *lifted]):
                with part.file(LIFTED_FILE) as file:
                    write_lifted(file, all_lifted)
    recipe = output.address.name.partition("/")[0]
    if "report" not in output.committed:
        covered = Tombstones.of(new)
        met = affected(output.store, recipe, covered)
        running = unfinished(output.store, recipe)
        address = str(output.address)
        report = report_of(config, address, asked, new, len(stones), met, lifted, running)
        _write_report(output, met, report)
    report = json.loads(output.store.read(f"{output.address.path}/report.json"))
    output.log_file("takedown.html", output.store.read(f"{output.address.path}/report.html"))
    return Report(metrics=_metrics(report), note=report["summary"])


def _tombstones_of(config: TakedownConfig, inputs: Inputs, address: str) -> list[Tombstone]:
    """Returns the tombstones of a request, each once."""
    by_form = requested(config)
    found = {
        (kind, value): Tombstone(kind, value, config.reason, config.requested_by, config.date, FORM, address)
        for kind, value in by_form
    }
    if config.from_crawl:
        if "warc" not in inputs:
            raise InputError(
                "takedown.from_crawl: no crawl cycle of the recipe has been completed",
                "run its crawl first, or switch this off",
            )
        warc = inputs["warc"]
        # What a takedown has marked there is in force already, often by its domain.
        withdrawn = pc.field("reason") != TAKEDOWN
        for row in warc.table(WITHDRAWN, ["url", "reason"], withdrawn).to_pylist():
            stone = Tombstone(URL, row["url"], row["reason"], str(warc.address), config.date, CRAWL, address)
            found.setdefault((URL, row["url"]), stone)
    elif not found and not any(line.strip() for line in config.lift):
        raise InputError(
            "the takedown names nothing", "give at least one URL, domain or document id, or take the crawl's list"
        )
    return list(found.values())


def _lifted(config: TakedownConfig, before: list[Tombstone], address: str) -> list[Lift]:
    """Returns what a request lifts: of a value that several takedowns have, the tombstone of each."""
    values = to_lift(config, {(stone.kind, stone.value) for stone in before})
    return [
        Lift(stone.kind, stone.value, stone.takedown, config.reason, config.requested_by, config.date, address)
        for stone in before
        if (stone.kind, stone.value) in values
    ]


def _write_report(output: Output, met: list[Affected], report: dict[str, Any]) -> None:
    rows = pa.concat_tables([FOUND.empty_table(), *(one.table() for one in met)])
    with output.part("report", conserved=False) as part:
        with part.file("found.parquet", rows=rows.num_rows) as file:
            pq.write_table(rows, file, compression="zstd", compression_level=3)
        with part.file("report.json") as file:
            file.write(json.dumps(report, indent=1, ensure_ascii=False).encode() + b"\n")
        with part.file("report.html") as file:
            file.write(page(report))


def _metrics(report: dict[str, Any]) -> dict[str, float]:
    return {
        "new": float(len(report["new"])),
        "in_force": float(report["in_force"]),
        "artifacts": float(len(report["artifacts"])),
        "documents": float(report["documents"]),
        "steps": float(sum(one.get("steps", 0) for one in report["artifacts"])),
    }


class _Wrong(ValueError):
    """Cause and remedy of a line that cannot be used."""


def requested(config: TakedownConfig) -> dict[tuple[str, str], None]:
    """Returns (kind, canonical value) of every line of a request, each once, in their order.

    Raises:
        InputError: a line is no URL, domain or document id; names the field and the line.
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


def to_lift(config: TakedownConfig, in_force: Container[tuple[str, str]]) -> dict[tuple[str, str], None]:
    """Returns (kind, canonical value) of every tombstone that a request lifts, each once, in their order.

    Args:
        config: the request.
        in_force: (kind, canonical value) of what is taken down.

    Raises:
        InputError: a line is no URL, domain or document id, or it is not in force; names the line.
    """

    def find(text: str) -> tuple[str, str]:
        found = _kind_of(text)
        if found not in in_force:
            raise _Wrong("is not in force", "name it as it was taken down; `python -m tasks audit --json` lists all")
        return found

    return dict.fromkeys(_values("takedown.lift", config.lift, find))


def _kind_of(text: str) -> tuple[str, str]:
    if _ID.fullmatch(text.lower()):
        return DOCUMENT, _document(text)
    return (URL, _url(text)) if "/" in text else (DOMAIN, _domain(text))


def _values(name: str, lines: Sequence[str], check: Callable[[str], T]) -> Iterator[T]:
    for number, line in enumerate(lines, 1):
        if text := line.strip():
            try:
                yield check(text)
            except _Wrong as wrong:
                cause, remedy = wrong.args
                shown = "".join(one if one.isprintable() else "?" for one in text[:_SHOWN])
                shown += "..." if len(text) > _SHOWN else ""
                raise InputError(f'{name}, line {number}: "{shown}" {cause}', remedy) from None


def _url(text: str) -> str:
    url = canonical(text)
    if url is None:
        raise _Wrong("is no http or https URL without user name and password", "write it as https://host/path")
    return url


def _domain(text: str) -> str:
    name = text.lower().rstrip(".")
    if "/" in name or (":" in name and not name.endswith("]")):
        raise _Wrong("is no bare host name", "write it without scheme, port and path, such as example.org")
    if "*" in name:
        raise _Wrong("is no host name", "write it without *: all names below a domain go with it")
    url = canonical(f"http://{name}/")
    if not name or url is None or url != f"http://{authority(url)}/":
        raise _Wrong("is no host name", "write it as example.org")
    host = authority(url)
    if is_public_suffix(host):
        raise _Wrong("is a public suffix, under which anyone can register", "name the domains below it one by one")
    return host


def _document(text: str) -> str:
    if not _ID.fullmatch(text.lower()):
        raise _Wrong("is no document id", "an id is 32 hex digits, as `python -m tasks trace` prints it")
    return text.lower()

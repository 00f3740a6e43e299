"""The health of a recipe's crawl: its last cycles, and the errors, domains and hosts of one of them.

Reads the records of `warc`, `fetchlist/` and `crawldb/` of the cycles on the page; of the chosen one `domains.parquet`,
`hosts.parquet` and `robots.parquet`, or the state of a fetch that is running. No fetch log is read.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from fastapi.responses import HTMLResponse

from sluice_ui import charts
from sluice_ui.access import AnyVersion, At, Name, User, readable, respond, router
from sluice_ui.frame import ROOT, Address, Version, badge, link, moment, page
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.core.version_index import VersionIndex
from tasks.run.recipe import Recipe
from tasks.run.runner import open_store
from tasks.stages.crawl.status import SILENT_S, status
from tasks.stages.crawl.storage.crawldb import HOSTS_FILE, NOT_MODIFIED, ROBOTS_FILE, URLS_FILE
from tasks.stages.crawl.storage.fetchlog import DOMAINS_FILE

CYCLES = 12
"""Cycles on the page, the newest ones."""

MOST_ROWS = 2_000
"""Hosts and domains that are read; those with the most requests, of those that match the filter."""

MOST_RULES = 20_000
"""Hosts up to which the robots.txt files of two cycles are compared."""

MOST_URLS = 2_000_000
"""URLs of a crawl DB up to which due times are counted."""

SUMS = ("requests", "pages", "unchanged", "robots_denied", "opted_out", "duplicates", "errors", "bytes")
"""Columns of `domains.parquet` that are summed over a cycle."""

Cycle = Mapping[str, Any]


def crawl(recipe: Recipe, version: str, at: Address) -> str:
    """Returns the page of the crawl, with the details of one cycle: the chosen, or the newest one.

    The query has `host`, a part of the names of the domains and hosts that are shown.

    Raises:
        InputError: the recipe has no crawl, or no such cycle.
    """
    if "crawl" not in recipe.parts:
        raise InputError(f"{recipe.name} does not crawl", "open another recipe")
    store = open_store(recipe)
    begun = set(store.folders(f"{recipe.name}/seeds"))
    known = [name for name in VersionIndex(store, recipe.name).versions() if name in begun]
    if version and version not in known:
        raise InputError(f"{recipe.name} has no cycle {version}", f"cycles: {', '.join(known[:CYCLES]) or 'none yet'}")
    chosen = version or (known[0] if known else "")
    # One more than is shown, for the growth of the oldest.
    cycles = [_cycle(store, recipe.name, name) for name in known[: CYCLES + 1]]
    rows = [_cycle_row(this, before, at, chosen) for this, before in pairwise([*cycles, {}])][:CYCLES]
    one = _one(store, recipe.name, known, chosen, at.query.get("host", "").strip()) if chosen else None
    return page(
        "crawl",
        f"{recipe.name}: crawl",
        at,
        Version(recipe.name, "", "crawl"),
        head=HEAD,
        rows=rows,
        figure=_chart(cycles[:CYCLES]),
        one=one,
        chosen=chosen,
        host=at.query.get("host", ""),
        query={"recipe": recipe.name, "version": chosen},
    )


HEAD = (
    "cycle", "published", "#due at its start", "#requests", "#new", "#changed", "#unchanged", "#duplicates",
    "#refused by robots.txt", "#opted out", "#errors", "#URLs known", "#not fetched yet", "#MB",
)  # fmt: skip
"""Columns of the table of cycles."""


def _cycle(store: Store, recipe: str, version: str) -> Cycle:
    """Returns what the records of a cycle say; sums are missing until it is published."""
    warc = Artifact.find(store, ArtifactId(f"{recipe}/warc", version))
    seeds = Artifact.find(store, ArtifactId(f"{recipe}/seeds", version))
    members = seeds.record.members if seeds else ()
    cycle: dict[str, Any] = {"version": version, "warc": warc}
    for kind, metric in (("fetchlist", "due"), ("crawldb", "captured"), ("crawldb", "unfetched")):
        found = [Artifact.find(store, ArtifactId(f"{recipe}/{kind}/{member}", version)) for member in members]
        if found and all(found):
            cycle[metric] = int(sum(one.record.metrics.get(metric, 0.0) for one in found if one))
            if kind == "crawldb":
                cycle["known"] = sum(one.record.rows_out for one in found if one)
    if warc and DOMAINS_FILE in warc.files():
        table = warc.table(DOMAINS_FILE)
        cycle |= {name: pc.sum(table[name]).as_py() or 0 for name in SUMS if name in table.column_names}
    return cycle


def _cycle_row(cycle: Cycle, before: Cycle, at: Address, chosen: str) -> list[object]:
    """Returns the row of a cycle; `before` is the one that began before it, {} for the first."""
    warc = cycle["warc"]
    version = cycle["version"]
    name = link(version, ROOT + at.path, recipe=at.query["recipe"], version=version)
    new = None
    if warc and "captured" in cycle:
        # A cycle that does not begin with an earlier crawl DB has only new pages.
        continues = before.get("captured", 0) if _continues(warc.store, cycle, before) else 0
        new = max(0, cycle["captured"] - continues)
    changed = None if new is None or "pages" not in cycle else max(0, cycle["pages"] - new)
    return [
        name + (badge("shown", "pale") if version == chosen else ""),
        moment(warc.record.finished) if warc else badge("not published", "bad"),
        cycle.get("due"),
        cycle.get("requests"),
        new,
        changed,
        *(cycle.get(column) for column in ("unchanged", "duplicates", "robots_denied", "opted_out", "errors")),
        cycle.get("known"),
        cycle.get("unfetched"),
        round(warc.record.metrics.get("warc_bytes", 0.0) / 1e6, 1) if warc else None,
    ]


def _continues(store: Store, cycle: Cycle, before: Cycle) -> bool:
    """Returns whether a cycle began with the crawl DB of the one before it."""
    if not before:
        return False
    name = cycle["warc"].address.name.partition("/")[0]
    database = Artifact.find(store, ArtifactId(f"{name}/crawldb/p0", cycle["version"]))
    return database is not None and any(
        ref.address == f"{name}/crawldb/p0@{before['version']}" for ref in database.record.inputs
    )


def _chart(cycles: Sequence[Cycle]) -> str:
    """Returns the figure of the published cycles, oldest first; "" for fewer than two."""
    done = [cycle for cycle in reversed(cycles) if "pages" in cycle]
    if len(done) < 2:
        return ""
    series = [
        (label, [cycle["version"] for cycle in done], [cycle.get(name, 0) for cycle in done])
        for label, name in (
            ("pages with new content", "pages"), ("unchanged", "unchanged"), ("errors", "errors"),
            ("refused or opted out", "robots_denied"),
        )
    ]  # fmt: skip
    return charts.groups(series, "URLs of a cycle")


def _one(store: Store, recipe: str, known: Sequence[str], version: str, host: str) -> dict[str, Any]:
    """Returns the details of a cycle."""
    cycle = status(store, recipe, version)
    members = [partition["member"] for partition in cycle["partitions"]]
    databases = _databases(store, recipe, members, version)
    earlier = known[known.index(version) + 1 :]
    before = _databases(store, recipe, members, earlier[0]) if earlier else []
    warc = Artifact.find(store, ArtifactId(f"{recipe}/warc", version))
    return {
        "running": _running(cycle),
        "live": _live_hosts(cycle, host),
        "errors": _errors(warc),
        "domains": _domains(warc, host),
        "hosts": _hosts(databases, before, host),
        "due": _due(databases),
    }


def _databases(store: Store, recipe: str, members: Sequence[str], version: str) -> list[Artifact]:
    """Returns the crawl DBs of a cycle whose files are not removed."""
    found = (Artifact.find(store, ArtifactId(f"{recipe}/crawldb/{member}", version)) for member in members)
    return [one for one in found if one and store.exists(f"{one.path}/{HOSTS_FILE}")]


def _running(cycle: Cycle) -> list[tuple[str, str, str]]:
    """Returns the figures of the fetches that are running, of all partitions together."""
    live = [one["live"] for one in cycle["partitions"] if one["live"]]
    if not live:
        return []
    silent = max(one["silent_s"] for one in live)

    def total(name: str) -> float:
        return float(sum(one[name] for one in live))

    cards = [
        ("Pages", f"{total('pages'):,.0f}", f"by {len(live)} fetches that are running"),
        ("Requests", f"{total('requests'):,.0f}", f"of {total('budget'):,.0f}"),
        ("Rate", f"{total('recent_urls_per_s'):,.1f}", "URLs per second, lately"),
        ("Queue", f"{total('waiting'):,.0f}", f"URLs on {total('hosts_waiting'):,.0f} hosts"),
        ("Without a page", f"{sum(sum(one['without_a_page'].values()) for one in live):,}", "URLs"),
    ]
    if silent > SILENT_S:
        cards.append(("Silent", f"{silent:,.0f} s", "killed, or the store cannot be reached; a retry continues"))
    return cards


def _live_hosts(cycle: Cycle, part: str) -> list[list[object]]:
    hosts = [host for one in cycle["partitions"] if one["live"] for host in one["live"]["hosts"]]
    return [
        [host["host"], host["state"], host["waiting"], host["requests"], host["cap"], host["delay_s"],
         host["latency_s"], host["failures"], host["next_in_s"]]
        for host in hosts
        if part in host["host"]
    ]  # fmt: skip


def _errors(warc: Artifact | None) -> dict[str, Any] | None:
    """Returns the URLs without a page by reason; None before the cycle is published."""
    if warc is None:
        return None
    counts = {
        name.removeprefix("errors."): int(count)
        for name, count in warc.record.metrics.items()
        if name.startswith("errors.")
    }
    rows = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    figure = charts.bars([name for name, _ in rows[:15]], [count for _, count in rows[:15]], "URLs") if rows else ""
    return {"rows": [list(row) for row in rows], "figure": figure, "count": sum(counts.values())}


def _domains(warc: Artifact | None, part: str) -> dict[str, Any]:
    if warc is None or DOMAINS_FILE not in warc.files():
        return {"rows": [], "more": 0}
    columns = ("domain", "hosts", "requests", "pages", "unchanged", "robots_denied", "opted_out", "duplicates",
               "errors", "main_reason", "bytes", "slowest_s", "traps")  # fmt: skip
    table, more = _largest(warc.table(DOMAINS_FILE), "domain", part)
    rows = [[row.get(name) for name in columns] for row in table.to_pylist()]
    shown = [[*row[:10], round((row[10] or 0) / 1e6, 2), round(row[11] or 0, 3), row[12]] for row in rows]
    return {"rows": shown, "more": more}


def _largest(table: pa.Table, name: str, part: str) -> tuple[pa.Table, int]:
    """Returns the rows whose name contains `part`, those with most requests first, and how many are left out."""
    if part:
        table = table.filter(pc.match_substring(table[name], part))
    table = table.sort_by([("requests", "descending"), (name, "ascending")])
    return table.slice(0, MOST_ROWS), max(0, table.num_rows - MOST_ROWS)


def _hosts(databases: Sequence[Artifact], before: Sequence[Artifact], part: str) -> dict[str, Any]:
    if not databases:
        return {"rows": [], "more": 0}
    table, more = _largest(pa.concat_tables([one.table(HOSTS_FILE) for one in databases]), "host", part)
    rules, earlier = _rules(databases), _rules(before)
    now = datetime.now(UTC)
    rows: list[list[object]] = []
    for row in table.to_pylist():
        paused = row["backoff_until"]
        rows.append(
            [row["host"], row["requests"], row["pages"], row["errors"], row["failures"],
             moment(paused) if paused and paused > now else "", _seconds(row["latency_s"]),
             _seconds(row["crawl_delay_s"]), row["traps"], _robots(row["host"], rules, earlier)]
        )  # fmt: skip
    return {"rows": rows, "more": more}


def _rules(databases: Sequence[Artifact]) -> dict[str, tuple[str, bytes, dict[str, bytes]]] | None:
    """Returns status, robots.txt, and the files with terms by URL, by host; None if there are too many, or none."""
    totals = [one.total(ROBOTS_FILE) for one in databases]
    if not any(total.files for total in totals) or sum(total.rows for total in totals) > MOST_RULES:
        return None
    rows = [row for one in databases for row in one.table(ROBOTS_FILE).to_pylist()]
    return {row["host"]: (row["status"], row["body"], dict(row["files"])) for row in rows}


def _robots(host: str, rules: Mapping[str, Any] | None, earlier: Mapping[str, Any] | None) -> object:
    """Returns the state of a host's robots.txt, and whether it or a file with terms changed since the cycle before."""
    if not rules or host not in rules:
        return ""
    state = {"ok": "read", "missing": "none"}.get(rules[host][0], rules[host][0])
    if earlier and host in earlier and earlier[host][1:] != rules[host][1:]:
        return badge(f"{state}, changed", "bad")
    return state


def _due(databases: Sequence[Artifact]) -> list[tuple[str, str, str]]:
    """Returns how many URLs are due, and when the next one is; [] for a crawl DB that is too large to count."""
    if not databases or sum(one.record.rows_out for one in databases) > MOST_URLS:
        return []
    table = pa.concat_tables([one.table(URLS_FILE, ["next_due", "status"]) for one in databases])
    due, now = table["next_due"], datetime.now(UTC)
    waiting = due.filter(pc.less_equal(due, pa.scalar(now, due.type)))
    later = due.filter(pc.greater(due, pa.scalar(now, due.type)))
    unchanged = pc.sum(pc.equal(table["status"], NOT_MODIFIED)).as_py() or 0
    cards = [
        ("URLs known", f"{table.num_rows:,}", f"{unchanged:,} of them unchanged at their last visit"),
        ("Due now", f"{len(waiting):,}", "URLs that the next cycle may fetch"),
    ]
    if len(later):
        cards.append(("Next due", f"{pc.min(later).as_py():%Y-%m-%d %H:%M}", "UTC, the first of the others"))
    return cards


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


routes = router()


@routes.get("/crawl")
def crawl_page(recipe: Name, user: User, at: At, version: AnyVersion = "") -> HTMLResponse:
    """The crawl of a recipe."""
    return respond(lambda: crawl(readable(recipe, user), version, at))

"""How far a crawl cycle is: its stages by partition, and queues, rates and back-offs of fetches under way.

Reads the records of the cycle's artifacts and, of fetches that are not committed, the state that they write now and
again (`frontier.live`). Sends no requests.
"""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.ledger import newest
from tasks.core.store import Store
from tasks.stages.crawl.frontier import live

Found = dict[str, Any]

SILENT_S = 60.0
"""A fetch that has not written its state for so long was killed, or does not reach the store."""

_ONCE = (("inject", "seeds"), ("rank", "ranks"), ("publish", "warc"))
_MAPPED = (("generate", "fetchlist"), ("fetch", "segment"), ("render", "rendered"), ("update", "crawldb"))
_AT_ONCE = 32
_SHOWN_REASONS = 3


def status(store: Store, recipe: str, version: str = "", now: datetime | None = None) -> Found:
    """Returns how far a cycle is.

    Args:
        store: the store of the artifacts.
        recipe: name of the recipe.
        version: the cycle; "": the one that was begun last.
        now: the moment to judge for; by default this one.

    Returns:
        {recipe, version, stages: {inject, rank, publish: time it was done, or None}, partitions: [{member, stages:
        {generate, fetch, render, update: the same}, done: {pages, hosts, note} of a fetch that is done, or None,
        live: the state of one that is not (`live.state_of`) with `silent_s`, seconds since it was written, or None}]}.

    Raises:
        InputError: no cycle was begun.
    """
    now = now or datetime.now(UTC)
    name = f"{recipe}/seeds"
    seeds = Artifact.find(store, ArtifactId(name, version)) if version else newest(store, name)
    if seeds is None:
        which = f"{recipe}@{version}" if version else f"of {recipe}"
        raise InputError(
            f"no cycle {which} is in {store.root}", "run `python -m tasks inject`, or name another version"
        )
    version, members = seeds.address.version, seeds.record.members
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        once = pool.map(
            lambda kind: Artifact.find(store, ArtifactId(f"{recipe}/{kind}", version)), dict(_ONCE).values()
        )
        stages = {stage: _done(found) for (stage, _), found in zip(_ONCE, once, strict=True)}
        partitions = list(pool.map(lambda member: _partition(store, recipe, member, version, now), members))
    return {"recipe": recipe, "version": version, "stages": stages, "partitions": partitions}


def _partition(store: Store, recipe: str, member: str, version: str, now: datetime) -> Found:
    addresses = {stage: ArtifactId(f"{recipe}/{kind}/{member}", version) for stage, kind in _MAPPED}
    made = {stage: Artifact.find(store, address) for stage, address in addresses.items()}
    segment, state = made["fetch"], None
    if segment is None and (state := live.read(store, addresses["fetch"])) is not None:
        state["silent_s"] = round((now - datetime.fromisoformat(state["at"])).total_seconds(), 1)
    done = None
    if segment is not None:
        record = segment.record
        done = {"pages": record.rows_out, "hosts": int(record.metrics.get("hosts", 0)), "note": record.note}
    return {"member": member, "stages": {stage: _done(one) for stage, one in made.items()}, "done": done, "live": state}


def _done(artifact: Artifact | None) -> datetime | None:
    return artifact.record.finished if artifact is not None else None


def render(found: Found, most: int) -> str:
    """Returns the text of what `status` returned, with at most so many hosts."""
    lines = [f"{found['recipe']}@{found['version']}", f"  {_stages(found['stages'])}"]
    for one in found["partitions"]:
        lines.append(f"  {one['member']:<5} {_stages(one['stages'])}")
        if one["live"]:
            lines += [f"        {line}" for line in _running(one["live"])]
        elif one["done"]:
            lines.append(f"        {one['done']['note']}")
    hosts = [
        {**host, "in": one["member"]} for one in found["partitions"] if one["live"] for host in one["live"]["hosts"]
    ]
    hosts.sort(key=lambda host: (host["state"] == live.THROUGH, -host["waiting"], host["host"]))
    return "\n".join([*lines, *_table(hosts[:most])])


def _stages(stages: dict[str, datetime | None]) -> str:
    return ", ".join(f"{name} {f'done {at:%H:%M:%S}' if at else 'not done'}" for name, at in stages.items())


def _running(state: Found) -> list[str]:
    by = f"{state['by']['host']}, process {state['by']['pid']}"
    silent = state["silent_s"]
    since = f"fetching since {datetime.fromisoformat(state['begun']):%Y-%m-%d %H:%M:%S} UTC on {by}"
    if silent > SILENT_S:
        since += f"; SILENT for {silent:,.0f} s: it was killed, or does not reach the store; a retry goes on from there"
    rates = f"{state['urls_per_s']:.1f} URLs/s, lately {state['recent_urls_per_s']:.1f}"
    reasons = state["without_a_page"]
    shown = ", ".join(f"{reason} {count:,}" for reason, count in list(reasons.items())[:_SHOWN_REASONS])
    lines = [
        since,
        f"{state['requests']:,} of {state['budget']:,} requests, {state['pages']:,} pages, {rates}",
        f"{state['waiting']:,} URLs on {state['hosts_waiting']:,} hosts wait, {state['visits']:,} are visited",
    ]
    if reasons:
        lines.append(f"{sum(reasons.values()):,} URLs without a page: {shown}")
    if state["buffered"]:
        lines.append(state["buffered"])
    return [*lines, "hosts: " + ", ".join(f"{count:,} {name}" for name, count in state["states"].items())]


def _table(hosts: list[Found]) -> list[str]:
    if not hosts:
        return []
    rows = [("host", "in", "state", "waiting", "requests", "delay", "answers", "failures", "next")]
    for one in hosts:
        answers = "" if one["latency_s"] is None else f"{one['latency_s']:.2f} s"
        wait = f"in {one['next_in_s']:,.0f} s" if one["next_in_s"] >= 1 else ""
        counts = (f"{one['waiting']:,}", f"{one['requests']:,} of {one['cap']:,}", f"{one['delay_s']:g} s", answers)
        rows.append((one["host"], one["in"], one["state"], *counts, str(one["failures"] or ""), wait))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "",
        *("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows),
    ]

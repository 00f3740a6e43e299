"""Progress of a crawl cycle: reports of a running fetch, and the status of all stages.

A running fetch writes log lines, live metrics in MLflow and alerts about pages without links (`FetchProgress`). Every
five seconds it writes the state of its queues, rates and back-offs (`StateWriter`) to `.live.json` beside the
unfinished artifact; the file has the state of the last attempt. It is not part of the artifact: the commit removes it,
and a fetch never reads it. If it cannot be written, the fetch continues.

`status` reads the records of the cycle's artifacts, and that state for fetches that are not committed. It sends no
requests to sites.
"""

import asyncio
import contextlib
import heapq
import json
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError, SluiceError
from tasks.core.ledger import at_version
from tasks.core.stage import Output
from tasks.core.store import Store
from tasks.core.terminal import table_lines
from tasks.stages.crawl.storage.fetchlog import CAPTURED, NO_SITEMAP, Outcome

if TYPE_CHECKING:  # a reader of the status, such as the API server, has no use for the parsers that these import
    from tasks.stages.crawl.frontier.order import UrlOrder
    from tasks.stages.crawl.frontier.queues import HostQueue
    from tasks.stages.crawl.hosts.politeness import HostState, Politeness
    from tasks.stages.crawl.policy import Policy

# Airflow sends the lines of this logger as alerts.
alerts = logging.getLogger("sluice.alerts")

log = logging.getLogger("sluice.crawl")

LIVE_FILE = ".live.json"
EVERY_S = 5.0
"""Minimum seconds between two writes of the state."""
MAX_HOSTS = 200
"""Number of hosts listed by queue length, and of further hosts that are paused or skipped."""

SILENT_S = 60.0
"""A fetch whose state is older than this number of seconds was killed, or cannot reach the store."""

# States of a host; the first that applies counts.
VISITED = "visited"
PAUSED = "paused"
BACKED_OFF = "backed off"
RESTING = "resting"
READY = "ready"
HELD_UP = "held up"  # it waits until other hosts have finished the round
THROUGH = "through"

_LOG_EVERY_S = 1.0
_METRICS_EVERY_S = 15.0
_MAX_REASONS = _MAX_SLOWEST = 3

_PATIENCE_S = 5.0
# Maximum share of CPU time for the state: with very many hosts it is written less often.
_CPU_SHARE = 0.01

_ONCE = (("inject", "seeds"), ("rank", "ranks"), ("publish", "warc"))
_MAPPED = (("generate", "fetchlist"), ("fetch", "segment"), ("render", "rendered"), ("update", "crawldb"))
_AT_ONCE = 32

FetchState = dict[str, Any]
"""See `state_of`."""

CycleStatus = dict[str, Any]
"""See `status`."""


class FetchProgress:
    """Counts outcomes and reports them.

    Args:
        output: the artifact being written.
        order: the queues.

    Attributes:
        captured: number of stored pages, including those of earlier attempts of the task.
        fetched: number of URLs tried by this attempt.
        errors: number of URLs without a page, by reason.
        hosts: hosts with a tried URL.
        unread: number of pages whose links could not be read.
    """

    def __init__(self, output: Output, order: "UrlOrder") -> None:
        self._output = output
        self._order = order
        self._begin = time.monotonic()
        self._logged_at = self._sent = 0.0
        self.captured = 0
        self.fetched = 0
        self.errors: Counter[str] = Counter()
        self.hosts: set[str] = set()
        self.unread = 0

    @property
    def rate(self) -> float:
        """URLs tried per second by this attempt."""
        return self.fetched / max(time.monotonic() - self._begin, 0.001)

    def count(self, outcome: Outcome) -> None:
        """Counts an outcome."""
        self.hosts.add(outcome.host)
        if outcome.unread:
            self._note_unread(outcome)
        if outcome.status in CAPTURED:
            self.captured += 1
        elif outcome.reason not in ("redirect", NO_SITEMAP):
            self.errors[outcome.reason] += 1

    def report(self, politeness: "Politeness", buffered: str) -> None:
        """Reports the progress of the fetch, at most once a second.

        Args:
            politeness: the hosts' clocks.
            buffered: text on captures that wait for the store, or "".
        """
        now = time.monotonic()
        if now - self._logged_at < _LOG_EVERY_S:
            return
        self._logged_at = now
        spent, (urls, hosts) = self._order.spent, self._order.waiting
        line = f"{self.captured} pages, {self.rate:.1f} URLs/s, {urls} URLs on {hosts} hosts waiting"
        self._output.progress(spent, self._order.budget, f"{line}{self._errors()}{_slowest(politeness)}{buffered}")
        if now - self._sent > _METRICS_EVERY_S:
            self._sent = now
            live = {"live.urls_per_s": self.rate, "live.pages": self.captured, "live.waiting": urls}
            self._output.log_metrics(
                spent,
                {
                    **live,
                    "live.errors": self.errors.total(),
                    "live.hosts_waiting": hosts,
                    "live.links_unread": self.unread,
                },
            )

    def _note_unread(self, outcome: Outcome) -> None:
        self.unread += 1
        # Alerts for the 1st, 10th, 100th ... page only.
        if self.unread == 10 ** (len(str(self.unread)) - 1):
            text = "[%s] alert: links_unread at page %d kept without its links, %s: %s"
            alerts.warning(text, self._output.address, self.unread, outcome.url, outcome.unread)

    def finish(self) -> None:
        """Reports the end of the fetch."""
        spent = self._order.spent
        self._output.progress(spent, spent, f"{self.captured} pages{self._errors()}")

    def _errors(self) -> str:
        if not self.errors:
            return ""
        reasons = ", ".join(f"{reason} {count}" for reason, count in self.errors.most_common(_MAX_REASONS))
        more = ", ..." if len(self.errors) > _MAX_REASONS else ""
        return f", {self.errors.total()} without a page ({reasons}{more})"


def _slowest(politeness: "Politeness") -> str:
    slow = [f"{host} {seconds:.1f} s" for host, seconds in politeness.slowest(_MAX_SLOWEST) if seconds >= 1.0]
    return f", slowest: {', '.join(slow)}" if slow else ""


class StateWriter:
    """Writes the state of one attempt to the store.

    Args:
        output: the artifact being written.
        state: returns the current state (`state_of`).
    """

    def __init__(self, output: Output, state: Callable[[], FetchState]) -> None:
        self._output = output
        # A store that does not answer must not delay a task that has to stop.
        self._store = Store(output.store.root, brief=True)
        self._state = state
        self._begun = datetime.now(UTC)
        # When the state was last made (monotonic clock), and the number of URLs tried by then.
        self._last = (time.monotonic(), 0)
        self._failing = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Writes the state periodically while the context is open."""
        ended = asyncio.Event()
        task = asyncio.ensure_future(self._run(ended))
        try:
            yield
        finally:
            ended.set()
            # Not cancelled at once: a write under way could end after the artifact was committed.
            await asyncio.wait({task}, timeout=_PATIENCE_S)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self, ended: asyncio.Event) -> None:
        while not ended.is_set():
            begin = time.process_time()
            state = self._serialize()
            pause = max(EVERY_S, (time.process_time() - begin) / _CPU_SHARE)
            await asyncio.to_thread(self._write, state)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), pause)

    def _serialize(self) -> bytes:
        state, (last_time, last_tried) = self._state(), self._last
        self._last = (time.monotonic(), state["tried"])
        process = {"attempt": self._output.attempt, "host": socket.gethostname(), "pid": os.getpid()}
        head = {"begun": self._begun.isoformat(), "at": datetime.now(UTC).isoformat(), "by": process}
        rate = (state["tried"] - last_tried) / max(time.monotonic() - last_time, 0.001)
        return json.dumps({**head, "recent_urls_per_s": round(rate, 2), **state}).encode()

    def _write(self, state: bytes) -> None:
        try:
            with self._store.write(f"{self._output.address.path}/{LIVE_FILE}") as file:
                file.write(state)
        except (SluiceError, OSError) as error:
            if not self._failing:
                log.warning("[%s] cannot write the state for `status`: %s", self._output.address, error)
            self._failing = True
        else:
            self._failing = False


def read_state(store: Store, address: ArtifactId) -> FetchState | None:
    """Returns the last state of the fetch that writes `address`, or None."""
    try:
        state: FetchState = json.loads(store.read(f"{address.path}/{LIVE_FILE}"))
    except FileNotFoundError:
        return None
    return state


def state_of(
    progress: FetchProgress,
    order: "UrlOrder",
    politeness: "Politeness",
    policy: "Policy",
    visited: set[str],
    buffered: str,
) -> FetchState:
    """Returns the state of a fetch.

    Args:
        progress: counts of the fetch.
        order: the queues.
        politeness: the hosts' clocks.
        policy: settings of hosts.
        visited: hosts that are being visited.
        buffered: text on captures that wait for the store, or "".

    Returns:
        {requests, budget, pages, tried, urls_per_s, waiting, hosts_waiting, visits, without_a_page: {reason: URLs},
        buffered, states: {state: hosts}, hosts: [{host, state, waiting, requests, cap, delay_s, latency_s, failures,
        next_in_s}]}. Times are in seconds; `latency_s` is None before the first response. Hosts are sorted by waiting
        URLs, at most 2 x MAX_HOSTS of them.
    """
    available = set(order.available)
    states = [
        (len(queue) + queue.in_flight, name, queue, _state(name, queue, politeness, policy, visited, available))
        for name, queue in order.queues()
    ]
    listed = dict.fromkeys(heapq.nlargest(MAX_HOSTS, states, key=_largest))
    blocked = (row for row in states if row[-1] not in (VISITED, RESTING, READY, HELD_UP, THROUGH))
    listed |= dict.fromkeys(heapq.nlargest(MAX_HOSTS, blocked, key=_largest))
    rows = sorted(listed, key=lambda row: (-row[0], row[1]))
    waiting, hosts_waiting = order.waiting
    return {
        "requests": order.spent,
        "budget": order.budget,
        "pages": progress.captured,
        "tried": progress.fetched,
        "urls_per_s": round(progress.rate, 2),
        "waiting": waiting,
        "hosts_waiting": hosts_waiting,
        "visits": len(visited),
        "without_a_page": dict(progress.errors.most_common()),
        "buffered": buffered.strip(", "),
        "states": dict(sorted(Counter(state for *_, state in states).items())),
        "hosts": [_row(name, queue, state, politeness) for _, name, queue, state in rows],
    }


def _largest(row: tuple[int, str, "HostQueue", str]) -> tuple[int, str]:
    return row[0], row[1]


def _row(name: str, queue: "HostQueue", state: str, politeness: "Politeness") -> dict[str, Any]:
    host = politeness.hosts().get(name)
    latency = None if host is None else host.latency_s
    return {
        "host": name,
        "state": state,
        "waiting": len(queue) + queue.in_flight,
        "requests": queue.cap - queue.remaining,
        "cap": queue.cap,
        "delay_s": round(politeness.delay_s(name), 3),
        "latency_s": None if latency is None else round(latency, 3),
        "failures": 0 if host is None else host.failures,
        "next_in_s": round(_wait(host), 1),
    }


def _wait(host: "HostState | None") -> float:
    return 0.0 if host is None else max(0.0, host.next_at - time.monotonic())


def _state(
    name: str, queue: "HostQueue", politeness: "Politeness", policy: "Policy", visited: set[str], available: set[str]
) -> str:
    host = politeness.hosts().get(name)
    if skip_reason := policy.skip_reason(name) or (host.skip_reason if host is not None else ""):
        return skip_reason
    if policy.pauses(name):
        return PAUSED
    if name in visited:
        return VISITED
    if not (queue or queue.in_flight):
        return THROUGH
    if host is not None and _wait(host):
        return BACKED_OFF if host.failures else RESTING
    return READY if name in available or queue.in_flight else HELD_UP


def status(store: Store, recipe: str, version: str = "", now: datetime | None = None) -> CycleStatus:
    """Returns the status of a cycle.

    Args:
        store: the store of the artifacts.
        recipe: name of the recipe.
        version: version of the cycle; "": the one that was begun last.
        now: the time from which `silent_s` is computed; the current time by default.

    Returns:
        {recipe, version, stages: {inject, rank, publish: time it was done, or None}, partitions: [{member, stages:
        {generate, fetch, render, update: the same}, done: {pages, hosts, note} of a committed fetch, or None,
        live: the state of another one (`state_of`) with `silent_s`, seconds since it was written, or None}]}.

    Raises:
        InputError: there is no such cycle.
    """
    now = now or datetime.now(UTC)
    seeds = at_version(store, f"{recipe}/seeds", version)
    if seeds is None:
        cycle = f"{recipe}@{version}" if version else f"of {recipe}"
        raise InputError(f"no cycle {cycle} is in {store.root}", "run `sluice inject`, or name another version")
    version, members = seeds.address.version, seeds.record.members
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        artifacts = pool.map(
            lambda kind: Artifact.find(store, ArtifactId(f"{recipe}/{kind}", version)), dict(_ONCE).values()
        )
        stages = {stage: _done(artifact) for (stage, _), artifact in zip(_ONCE, artifacts, strict=True)}
        partitions = list(pool.map(lambda member: _partition(store, recipe, member, version, now), members))
    return {"recipe": recipe, "version": version, "stages": stages, "partitions": partitions}


def _partition(store: Store, recipe: str, member: str, version: str, now: datetime) -> CycleStatus:
    addresses = {stage: ArtifactId(f"{recipe}/{kind}/{member}", version) for stage, kind in _MAPPED}
    artifacts = {stage: Artifact.find(store, address) for stage, address in addresses.items()}
    segment, state = artifacts["fetch"], None
    if segment is None and (state := read_state(store, addresses["fetch"])) is not None:
        state["silent_s"] = round((now - datetime.fromisoformat(state["at"])).total_seconds(), 1)
    done = None
    if segment is not None:
        record = segment.record
        done = {"pages": record.rows_out, "hosts": int(record.metrics.get("hosts", 0)), "note": record.note}
    stages = {stage: _done(artifact) for stage, artifact in artifacts.items()}
    return {"member": member, "stages": stages, "done": done, "live": state}


def _done(artifact: Artifact | None) -> datetime | None:
    return artifact.record.finished if artifact is not None else None


def render(cycle: CycleStatus, max_hosts: int) -> str:
    """Returns the result of `status` as text, with a table of at most `max_hosts` hosts."""
    lines = [f"{cycle['recipe']}@{cycle['version']}", f"  {_stages(cycle['stages'])}"]
    hosts = []
    for partition in cycle["partitions"]:
        lines.append(f"  {partition['member']:<5} {_stages(partition['stages'])}")
        if partition["live"]:
            lines += [f"        {line}" for line in _running(partition["live"])]
            hosts += [{**host, "in": partition["member"]} for host in partition["live"]["hosts"]]
        elif partition["done"]:
            lines.append(f"        {partition['done']['note']}")
    hosts.sort(key=lambda host: (host["state"] == THROUGH, -host["waiting"], host["host"]))
    return "\n".join([*lines, *_table(hosts[:max_hosts])])


def _stages(stages: dict[str, datetime | None]) -> str:
    return ", ".join(f"{name} {f'done {at:%H:%M:%S}' if at else 'not done'}" for name, at in stages.items())


def _running(state: CycleStatus) -> list[str]:
    by = f"{state['by']['host']}, process {state['by']['pid']}"
    silent = state["silent_s"]
    since = f"fetching since {datetime.fromisoformat(state['begun']):%Y-%m-%d %H:%M:%S} UTC on {by}"
    if silent > SILENT_S:
        since += f"; SILENT for {silent:,.0f} s: it was killed, or cannot reach the store; a retry continues from there"
    rates = f"{state['urls_per_s']:.1f} URLs/s, lately {state['recent_urls_per_s']:.1f}"
    reasons = state["without_a_page"]
    counts = ", ".join(f"{reason} {count:,}" for reason, count in list(reasons.items())[:_MAX_REASONS])
    lines = [
        since,
        f"{state['requests']:,} of {state['budget']:,} requests, {state['pages']:,} pages, {rates}",
        f"{state['waiting']:,} URLs on {state['hosts_waiting']:,} hosts wait, {state['visits']:,} are visited",
    ]
    if reasons:
        lines.append(f"{sum(reasons.values()):,} URLs without a page: {counts}")
    if state["buffered"]:
        lines.append(state["buffered"])
    return [*lines, "hosts: " + ", ".join(f"{count:,} {name}" for name, count in state["states"].items())]


def _table(hosts: list[CycleStatus]) -> list[str]:
    if not hosts:
        return []
    rows = [("host", "in", "state", "waiting", "requests", "delay", "answers", "failures", "next")]
    for host in hosts:
        latency = "" if host["latency_s"] is None else f"{host['latency_s']:.2f} s"
        wait = f"in {host['next_in_s']:,.0f} s" if host["next_in_s"] >= 1 else ""
        requests = f"{host['requests']:,} of {host['cap']:,}"
        counts = (f"{host['waiting']:,}", requests, f"{host['delay_s']:g} s", latency)
        rows.append((host["host"], host["in"], host["state"], *counts, str(host["failures"] or ""), wait))
    return ["", *table_lines(rows)]

"""Stage `fetch`: fetches one partition of the crawl into WARC files, in one process with one event loop.

Reads the seeds and the takedowns of the cycle (for the scope), the partition's fetch list, the sizes of all fetch lists
(for its share of the requests), the hosts file, and the Bloom filter of the previous crawl DB. Writes parts, each with
one WARC file, its CDXJ index, its log and its links, a part with the state of the hosts
(`tasks.stages.crawl.storage.fetchlog`), and a last one with the targets of all links by partition
(`tasks.stages.crawl.storage.targets`).

The state of the hosts is the end of the fetch: if it is committed, a retry requests nothing, and writes the targets of
the pages that are there.

This module connects the components of a fetch: `frontier.order` decides which URL of a host is next,
`frontier.scheduler` decides when, and `visit` tries it.

A retry reads the outcomes of the attempts before it, and replays them without requests. The order of URLs is a function
of the fetch list and of outcomes, independent of time, so the replay restores the state of the interrupted attempt.
"""

import asyncio
import contextlib
import gc
import logging
import signal
import threading
import time
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence

import uvloop

from tasks.core import parquet
from tasks.core.artifact import Artifact, PartRecord
from tasks.core.engine import Engine
from tasks.core.errors import InputError, TransientError
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.documents.tombstones import tombstones_of
from tasks.formats.web.domain import owner_of
from tasks.formats.web.url import key
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.frontier.order import UrlOrder
from tasks.stages.crawl.frontier.queues import HostPlan
from tasks.stages.crawl.frontier.scheduler import WAITING, Scheduler
from tasks.stages.crawl.hosts.clocks import CooldownStore
from tasks.stages.crawl.hosts.politeness import Politeness
from tasks.stages.crawl.hosts.rules import HostRules
from tasks.stages.crawl.http.client import VERSION as CLIENT_VERSION
from tasks.stages.crawl.http.client import Client
from tasks.stages.crawl.http.connection import socket_budget
from tasks.stages.crawl.http.signature import request_signer
from tasks.stages.crawl.inject import number_of, scope_of
from tasks.stages.crawl.page.parser import PageParser
from tasks.stages.crawl.page.reading import Reader
from tasks.stages.crawl.policy import HOST_DENIED, Policy
from tasks.stages.crawl.status import FetchProgress, FetchState, StateWriter, state_of
from tasks.stages.crawl.storage import crawldb, fetchlist, fetchlog
from tasks.stages.crawl.storage.crawldb import KnownUrls
from tasks.stages.crawl.storage.fetchlog import Outcome
from tasks.stages.crawl.storage.segment import LINK, LOG, ORDER, SegmentWriter
from tasks.stages.crawl.storage.spool import Spool
from tasks.stages.crawl.storage.targets import write_targets
from tasks.stages.crawl.visit import Visitor

VERSION = 9

log = logging.getLogger("sluice.crawl")

# Time to upload what is buffered after SIGTERM, which SIGKILL follows soon.
_STOP_DRAIN_S = 10.0

_REMEDIES = {
    "dns": "check the spelling of the host and this machine's name server",
    "connect": "check that the site is up and that this machine may reach it (firewall, proxy)",
    "timeout": "check that the site is up, or raise [crawl] timeout_s",
    "tls": "the site's certificate is not valid for it; use its correct address",
    "robots_unavailable": "the site's robots.txt does not answer, so nothing may be fetched; try again later",
    "robots_denied": "the site's robots.txt forbids the seeds; choose others or request permission from the site",
    "private_address": "the name resolves to an internal address; use a public host",
    "noindex": "the page opts out of indexing; choose another seed",
    "ai_optout": "the site opts out of AI training; choose other seeds or request permission from the site",
    HOST_DENIED: "the hosts file denies it; remove the entry, or choose other seeds",
    "mime": "the seed is of a content type that is not in [crawl] mime_types",
}


def run(config: CrawlConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Crawls the partition named by `output.member`.

    Raises:
        InputError: no page could be fetched although the partition has seeds.
        TransientError: the task received SIGTERM; a retry continues from the committed parts.
    """
    if fetchlog.HOSTS_PART not in output.committed:
        _fetch(config, inputs, output)
        gc.collect()  # the frontier has reference cycles, and the query of the targets needs its memory
    write_targets(output, config.max_depth)
    return _report(output)


def _fetch(config: CrawlConfig, inputs: Inputs, output: Output) -> None:
    task = FetchTask(config, inputs, output)
    with _rare_collections(), contextlib.closing(asyncio.Runner(loop_factory=uvloop.new_event_loop)) as runner:
        runner.run(task.work())


def _report(output: Output) -> Report:
    parts = output.committed.values()
    pages = sum(part.rows_out for part in parts)
    reasons = sum((Counter(part.rejected) for part in parts), Counter())
    errors = reasons.total() - reasons["redirect"] - reasons[fetchlog.NO_SITEMAP]
    hosts = output.committed[fetchlog.HOSTS_PART].metrics["hosts"]
    return Report(note=f"{pages} pages of {hosts:.0f} hosts, {errors} URLs without a page")


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Makes garbage collections rarer: with this many live objects they take a tenth of the time."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


class FetchTask:
    """One fetch task: replays the parts of earlier attempts, then fetches the remaining URLs."""

    def __init__(self, config: CrawlConfig, inputs: Inputs, output: Output) -> None:
        self._output = output
        self._time_box_s = config.time_box_s
        self._first_cycle = inputs.get("previous") is None
        listed, number = inputs["fetchlist"], number_of(output.member)
        start = list(map(fetchlist.candidate, listed.table(fetchlist.URLS_FILE).to_pylist()))
        self._seed_hosts = sorted({candidate.link.host for candidate in start if candidate.seed})
        hosts = listed.table(fetchlist.HOSTS_FILE).to_pylist()
        scope = scope_of(config, inputs["seeds"], tombstones_of(inputs))
        signer, sockets = request_signer(config.signature), socket_budget(config.concurrency + WAITING)
        policy = self._policy = Policy.of(config, listed)
        policy.load_credentials(lambda host: owner_of(host) % config.partitions == number)
        plans = {row["host"]: HostPlan(row["score"], row["cap"]) for row in hosts}
        budget, known = _budget(config, inputs.many("fetchlists"), output.member), _known(inputs.get("previous"))
        order = self._order = UrlOrder(config, number, budget, scope, start, plans, known, policy)
        self._clocks = CooldownStore(output)
        politeness = self._politeness = Politeness(config, self._clocks, policy)
        politeness.load(map(fetchlog.clock_of, hosts))
        client = self._client = Client(config, begin=politeness.begin, policy=policy, sockets=sockets, signer=signer)
        rules = self._rules = HostRules(client, politeness, config)
        rules.load(fetchlog.rules_of(listed.table(fetchlist.ROBOTS_FILE)))
        self._parser = PageParser(config.user_agent)
        reader = Reader(config, self._parser, scope, rules.sitemaps, order.traps.note, rules.licensing)
        self._spool = Spool(output, config.buffer_bytes, ORDER)
        segment = self._segment = SegmentWriter(self._spool, config, f"{config.user_agent}/{CLIENT_VERSION}")
        progress = self._progress = FetchProgress(output, order)
        deadline = time.monotonic() + config.time_box_s
        self._visitor = Visitor(
            config, client, politeness, rules, reader, order, segment, policy, progress, deadline=deadline
        )
        self._scheduler = Scheduler(
            order,
            politeness,
            self._visitor.visit,
            concurrency=config.concurrency,
            max_visits=sockets.visits,
            deadline=deadline,
        )
        self._stopped = False

    async def work(self) -> None:
        """Fetches until the end, the deadline or a signal, and commits the captures and the state of the hosts."""
        try:
            with self._on_signal():
                await self._crawl()
            await self._end()
        except BaseException as error:
            self._segment.abandon(error)
            raise

    async def _crawl(self) -> None:
        try:
            async with self._policy.watch(self._adjust), StateWriter(self._output, self._state).running(), self._client:
                resume(logged_outcomes(self._output, self._spool), self._order, self._visitor)
                self._adjust()
                whole = await self._scheduler.run()
                if not whole and not self._stopped:
                    log.info("the time box of %g s is over; the rest waits for the next cycle", self._time_box_s)
        finally:
            self._clocks.close()
            await self._parser.close()

    def _adjust(self) -> None:
        """Applies changes of the hosts file."""
        self._politeness.adjust()
        self._order.lower_caps()
        self._scheduler.retime()

    def _state(self) -> FetchState:
        visited, buffered = self._scheduler.visited, self._segment.buffered
        return state_of(self._progress, self._order, self._politeness, self._policy, visited, buffered)

    async def _end(self) -> None:
        if self._stopped:
            if self._segment.holds_captures:
                self._segment.commit()
            await self._segment.close(_STOP_DRAIN_S)
            raise TransientError(
                f"the crawl of {self._output.address} was stopped; {self._progress.captured} pages are committed",
                "run it again to continue from there",
            )
        # In later cycles an outage of the site does not mean that the recipe is wrong.
        if self._first_cycle and self._seed_hosts and not self._progress.captured:
            raise self._no_page_error()
        if self._segment.holds_rows or not self._segment.holds_parts:
            self._segment.commit()
        await self._segment.close()
        with self._output.part(fetchlog.HOSTS_PART) as part:
            fetchlog.write_hosts(part, self._politeness.rows(), self._rules.rows(), self._order.traps.scores())
            self._policy.write(part)
            for name, value in self._metrics().items():
                part.metric(name, value)
        self._progress.finish()

    def _metrics(self) -> dict[str, float]:
        return {
            "urls_per_s": self._progress.rate,
            "hosts": float(len(self._progress.hosts)),
            "links_let_go": float(self._order.dropped),
            **self._segment.metrics(),
        }

    def _no_page_error(self) -> InputError:
        errors = self._progress.errors.most_common(4) or [("no response in time", 0)]
        counts = ", ".join(f"{reason} x {count}" if count else reason for reason, count in errors)
        hosts = self._seed_hosts
        names = ", ".join(hosts[:5]) + (f" and {len(hosts) - 5} more" if len(hosts) > 5 else "")
        return InputError(
            f"not one page could be fetched from {names} ({counts})",
            _REMEDIES.get(errors[0][0], "open the seeds in a browser, and correct [crawl] seeds"),
        )

    @contextlib.contextmanager
    def _on_signal(self) -> Iterator[None]:
        """Handles SIGTERM and Ctrl-C: the fetch ends, and the open file is closed and committed."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        for number in before:
            loop.add_signal_handler(number, self._stop)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler or signal.SIG_DFL)

    def _stop(self) -> None:
        self._stopped = True
        self._scheduler.stop()


def resume(parts: Iterable[list[Outcome]], order: UrlOrder, visitor: Visitor) -> None:
    """Replays the outcomes of earlier attempts, with one part in memory at a time.

    Args:
        parts: see `logged_outcomes`.
        order: the order of URLs, which the outcomes advance.
        visitor: replays outcomes. Outcomes of URLs whose turn has not come are replayed when they are visited.
    """
    for part in parts:
        outcomes = {outcome.key: outcome for outcome in part}
        # For each of its hosts, a part contains the next URLs in order, so hosts can be replayed one after another. A
        # host that waits for others becomes available again when they have finished the round.
        hosts = list(dict.fromkeys(outcome.host for outcome in part))
        while hosts:
            host = hosts.pop()
            while key(order.peek(host)) in outcomes and (candidate := order.take(host)) is not None:
                visitor.replay(candidate, outcomes.pop(key(candidate.url)))
            hosts += order.newly_available()
        visitor.expect(outcomes.values())
    visitor.log_refused()


def logged_outcomes(output: Output, spool: Spool) -> Iterator[list[Outcome]]:
    """Yields the outcomes of earlier attempts of the task, by part, in the order in which the parts were closed.

    Parts in the store come first, then those in the local buffer of this machine, which are queued for upload.
    """
    urls: set[str] = set()
    for _, record in sorted(output.committed.items()):
        stored = {path: output.store.read(f"{output.address.path}/{path}") for path in _logs(record)}
        outcomes = _outcomes(stored)
        urls.update(outcome.url for outcome in outcomes)
        yield outcomes
    for closed in spool.buffer.take_over_parts():
        outcomes = _outcomes({path: (closed.folder / path).read_bytes() for path in _logs(closed.record)})
        # The part is already stored: the task continued elsewhere, or was killed before it removed the local copy.
        if not urls.isdisjoint(outcome.url for outcome in outcomes):
            closed.remove()
            continue
        log.info("[%s] %d URLs are in the local buffer %s", output.address, len(outcomes), closed.folder)
        spool.put(closed)
        urls.update(outcome.url for outcome in outcomes)
        yield outcomes


def _logs(record: PartRecord) -> list[str]:
    return [entry.path for entry in record.files if entry.path.startswith((LOG, LINK))]


def _outcomes(files: dict[str, bytes]) -> list[Outcome]:
    tables = {
        folder: parquet.from_bytes(data)
        for folder in (LOG, LINK)
        for path, data in files.items()
        if path.startswith(folder)
    }
    return fetchlog.from_tables(tables[LOG], tables[LINK]) if LOG in tables else []


def _budget(config: CrawlConfig, lists: Sequence[Artifact], member: str) -> int:
    """Returns the number of requests that the partition may make: its share of `max_pages`."""
    sizes = {fetch_list.record.member: fetch_list.record.rows_out for fetch_list in lists}
    return fetchlist.shares(config.max_pages, sizes)[member]


def _known(previous: Artifact | None) -> Container[bytes]:
    return KnownUrls.from_bytes(previous.read(crawldb.KNOWN_FILE)) if previous else frozenset()

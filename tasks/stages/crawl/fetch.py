"""Stage `fetch`: fetches one partition of the crawl into WARC files, in one process with one event loop.

Reads the seeds and the takedowns of the cycle (for the scope), the partition's fetch list, the sizes of all fetch lists
(for its share of the requests), the hosts file, and the Bloom filter of the previous crawl DB. Writes parts, each with
one WARC file, its CDXJ index, its log and its links, and a final part with the state of the hosts
(`tasks.stages.crawl.storage.fetchlog`).

This module connects the components of a fetch: `frontier.order` decides which URL of a host is next,
`frontier.scheduler` decides when, `visit` tries it, and `resume` replays the outcomes of interrupted attempts.
"""

import asyncio
import contextlib
import gc
import logging
import signal
import threading
import time
from collections.abc import Container, Iterator, Sequence

import uvloop

from tasks.core.artifact import Artifact
from tasks.core.engine import Engine
from tasks.core.errors import InputError, TransientError
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.documents.tombstones import tombstones_of
from tasks.formats.web.domain import owner_of
from tasks.formats.web.url import authority
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.frontier.order import UrlOrder
from tasks.stages.crawl.frontier.queues import HostPlan
from tasks.stages.crawl.frontier.scheduler import WAITING, Scheduler
from tasks.stages.crawl.hosts.clocks import CooldownStore
from tasks.stages.crawl.hosts.politeness import HostClock, Politeness
from tasks.stages.crawl.hosts.rules import HostRobots, HostRules
from tasks.stages.crawl.http.client import VERSION as CLIENT_VERSION
from tasks.stages.crawl.http.client import Client
from tasks.stages.crawl.http.connection import socket_budget
from tasks.stages.crawl.inject import number_of, scope_of
from tasks.stages.crawl.page.parser import PageParser
from tasks.stages.crawl.page.reading import Reader
from tasks.stages.crawl.policy import HOST_DENIED, Policy
from tasks.stages.crawl.resume import logged_outcomes, resume
from tasks.stages.crawl.status import FetchProgress, FetchState, StateWriter, state_of
from tasks.stages.crawl.storage import crawldb, fetchlist, fetchlog
from tasks.stages.crawl.storage.crawldb import KnownUrls
from tasks.stages.crawl.storage.segment import ORDER, SegmentWriter
from tasks.stages.crawl.storage.spool import Spool
from tasks.stages.crawl.visit import Visitor

VERSION = 7

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
    HOST_DENIED: "the hosts file denies it; remove the entry, or choose other seeds",
    "mime": "the seed is of a content type that is not in [crawl] mime_types",
}


def run(config: CrawlConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Crawls the partition named by `output.member`.

    Raises:
        InputError: no page could be fetched although the partition has seeds.
        TransientError: the task received SIGTERM; a retry continues from the committed parts.
    """
    task = FetchTask(config, inputs, output)
    with _rare_collections(), contextlib.closing(asyncio.Runner(loop_factory=uvloop.new_event_loop)) as runner:
        runner.run(task.work())
    return task.report()


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
        self._config = config
        self._sockets = socket_budget(config.concurrency + WAITING)
        self._output = output
        self._first_cycle = inputs.get("previous") is None
        self._listed = inputs["fetchlist"]
        self._start = fetchlist.candidates(self._listed.table(fetchlist.URLS_FILE))
        self._scope = scope_of(config, inputs["seeds"], tombstones_of(inputs))
        self._hosts = self._listed.table(fetchlist.HOSTS_FILE).to_pylist()
        self._policy = Policy.of(config, self._listed)
        number = number_of(output.member)
        self._policy.load_credentials(lambda host: owner_of(host) % config.partitions == number)
        self._order = UrlOrder(
            config,
            number,
            _budget(config, inputs.many("fetchlists"), output.member),
            self._scope,
            self._start,
            {row["host"]: HostPlan(row["score"], row["cap"]) for row in self._hosts},
            _known(inputs.get("previous")),
            self._policy,
        )
        self._spool = Spool(output, config.buffer_bytes, ORDER)
        self._segment = SegmentWriter(self._spool, config, f"{config.user_agent}/{CLIENT_VERSION}")
        self._scheduler: Scheduler | None = None
        self._host_rows: tuple[list[HostClock], list[HostRobots]] = ([], [])
        self._begin = time.monotonic()
        self._stopped = False
        self._progress = FetchProgress(output, self._order)

    async def work(self) -> None:
        """Fetches until the end, the deadline or a signal, and commits the result."""
        try:
            with self._on_signal():
                await self._crawl()
            await self._end()
        except BaseException as error:
            self._segment.abandon(error)
            raise

    def report(self) -> Report:
        """Returns the final report of the stage."""
        progress = self._progress
        pages = sum(record.rows_out for record in self._output.committed.values())
        return Report(
            {
                "urls_per_s": progress.rate,
                "hosts": float(len(progress.hosts)),
                "links_let_go": float(self._order.dropped),
                **self._segment.metrics(),
            },
            note=f"{pages} pages of {len(progress.hosts)} hosts, {progress.errors.total()} URLs without a page",
        )

    async def _crawl(self) -> None:
        config = self._config
        clocks = CooldownStore(self._output)
        politeness = self._politeness = Politeness(config, clocks, self._policy)
        politeness.load(map(fetchlog.clock_of, self._hosts))
        parser = PageParser(config.user_agent)
        client = Client(config, begin=politeness.begin, policy=self._policy, sockets=self._sockets)
        async with self._policy.watch(self._adjust), StateWriter(self._output, self._state).running(), client:
            rules = HostRules(
                client,
                politeness,
                config.user_agent,
                config.max_backoff_s,
                ai_optout="robots" in config.ai_optouts,
                tdm="tdm" in config.ai_optouts,
            )
            rules.load(fetchlog.rules_of(self._listed.table(fetchlist.ROBOTS_FILE)))
            reader = Reader(config, parser, self._scope, rules.sitemaps, self._order.traps.note)
            deadline = self._begin + config.time_box_s
            visitor = Visitor(
                config,
                client,
                politeness,
                rules,
                reader,
                self._order,
                self._segment,
                self._policy,
                self._progress,
                deadline=deadline,
            )
            self._scheduler = Scheduler(
                self._order,
                politeness,
                visitor.visit,
                concurrency=config.concurrency,
                max_visits=self._sockets.visits,
                deadline=deadline,
            )
            try:
                resume(logged_outcomes(self._output, self._spool), self._order, visitor)
                self._adjust()
                whole = await self._scheduler.run()
                if not whole and not self._stopped:
                    log.info("the time box of %g s is over; the rest waits for the next cycle", config.time_box_s)
            finally:
                clocks.close()
                await parser.close()
                self._host_rows = (politeness.rows(), rules.rows())

    def _adjust(self) -> None:
        """Applies changes of the hosts file."""
        self._politeness.adjust()
        self._order.lower_caps()
        if self._scheduler is not None:
            self._scheduler.retime()

    def _state(self) -> FetchState:
        visited = self._scheduler.visited if self._scheduler is not None else set()
        return state_of(self._progress, self._order, self._politeness, self._policy, visited, self._segment.buffered)

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
        has_seeds = any(candidate.seed for candidate in self._start)
        if self._first_cycle and has_seeds and not self._progress.captured:
            raise self._no_page_error()
        if self._segment.holds_rows or not self._segment.holds_parts:
            self._segment.commit()
        await self._segment.close()
        if fetchlog.HOSTS_PART not in self._output.committed:
            with self._output.part(fetchlog.HOSTS_PART) as part:
                fetchlog.write_hosts(part, *self._host_rows, self._order.traps.scores())
                self._policy.write(part)
        self._progress.finish()

    def _no_page_error(self) -> InputError:
        errors = self._progress.errors.most_common(4) or [("no response in time", 0)]
        counts = ", ".join(f"{reason} x {count}" if count else reason for reason, count in errors)
        hosts = sorted({authority(candidate.url) for candidate in self._start if candidate.seed})
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
        if self._scheduler is not None:
            self._scheduler.stop()


def _budget(config: CrawlConfig, lists: Sequence[Artifact], member: str) -> int:
    """Returns the number of requests that the partition may make: its share of `max_pages`."""
    sizes = {fetch_list.record.member: fetch_list.record.rows_out for fetch_list in lists}
    return fetchlist.shares(config.max_pages, sizes)[member]


def _known(previous: Artifact | None) -> Container[bytes]:
    return KnownUrls.from_bytes(previous.read(crawldb.KNOWN_FILE)) if previous else frozenset()

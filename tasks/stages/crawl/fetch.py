"""Stage `fetch`: fetches one partition of the crawl into WARC files.

Reads the seeds and the takedowns of the cycle (for the scope), the partition's fetch list, the sizes of all fetch lists
(for its share of the requests), the hosts file (for denied hosts) and the Bloom filter of the previous crawl DB. Writes
parts of one WARC file, its CDXJ index, its log and its links each, and at the end one part with the state of the hosts
(`tasks.stages.crawl.storage.fetchlog`). One process, one event loop.

This module builds the parts of a fetch and runs them: `frontier.order` decides which URL of a host is next,
`frontier.scheduler` when, `visit` tries it, and `resume` replays what an interrupted attempt has done.
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

VERSION = 6

log = logging.getLogger("sluice.crawl")

# After SIGTERM a SIGKILL follows soon.
_STOP_DRAIN_S = 10.0

_REMEDIES = {
    "dns": "check the spelling of the host and this machine's name server",
    "connect": "check that the site is up and that this machine may reach it (firewall, proxy)",
    "timeout": "check that the site is up, or raise [crawl] timeout_s",
    "tls": "the site's certificate is not valid for it; use its correct address",
    "robots_unavailable": "the site's robots.txt does not answer, so nothing may be fetched; try again later",
    "robots_denied": "the site's robots.txt forbids it; choose other seeds or ask the site for permission",
    "private_address": "the name leads to an internal address; use a public host",
    "noindex": "the page asks not to be kept; choose another seed",
    HOST_DENIED: "the hosts file denies it; lift that, or choose other seeds",
    "mime": "the seed is of a content type that is not in [crawl] mime_types",
}


def run(config: CrawlConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Crawls the partition named by `output.member`.

    Raises:
        InputError: not one page could be fetched although the partition has seeds.
        TransientError: the task got SIGTERM; committed parts are kept, and a retry resumes from there.
    """
    crawl = FetchTask(config, inputs, output)
    with _rare_collections(), contextlib.closing(asyncio.Runner(loop_factory=uvloop.new_event_loop)) as runner:
        runner.run(crawl.work())
    return crawl.report()


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Lowers the frequency of garbage collections: with this many live objects they take a tenth of all time."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


class FetchTask:
    """One fetch task: replays what earlier attempts have closed, then fetches the rest."""

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
        self._learned: tuple[list[HostClock], list[HostRobots]] = ([], [])
        self._begin = time.monotonic()
        self._stopped = False
        self._progress = FetchProgress(output, self._order)

    async def work(self) -> None:
        """Runs the crawl to its end, its deadline or a signal, and commits what there is."""
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
                self._learned = (politeness.rows(), rules.rows())

    def _adjust(self) -> None:
        """Takes over what operators have changed in the hosts file."""
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
                f"the crawl of {self._output.address} was told to stop; {self._progress.captured} pages are committed",
                "run it again to go on from there",
            )
        # Later on, a bad day of a site is no wrong recipe.
        first = self._first_cycle and any(candidate.seed for candidate in self._start)
        if first and not self._progress.captured:
            raise self._nothing_fetched()
        if self._segment.holds_rows or not self._segment.holds_parts:
            self._segment.commit()
        await self._segment.close()
        if fetchlog.HOSTS_PART not in self._output.committed:
            with self._output.part(fetchlog.HOSTS_PART) as part:
                fetchlog.write_hosts(part, *self._learned, self._order.traps.scores())
                self._policy.write(part)
        self._progress.finish()

    def _nothing_fetched(self) -> InputError:
        reason, _ = self._progress.errors.most_common(1)[0] if self._progress.errors else ("no answer in time", 0)
        seeds = sorted({authority(candidate.url) for candidate in self._start if candidate.seed})
        shown = ", ".join(seeds[:5]) + (f" and {len(seeds) - 5} more" if len(seeds) > 5 else "")
        why = ", ".join(f"{name} x {count}" for name, count in self._progress.errors.most_common(4))
        return InputError(
            f"not one page could be fetched from {shown} ({why or reason})",
            _REMEDIES.get(reason, "open the seeds in a browser, and correct [crawl] seeds"),
        )

    @contextlib.contextmanager
    def _on_signal(self) -> Iterator[None]:
        """Lets SIGTERM and Ctrl-C end the crawl in good order: the open file is closed and committed."""
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
    """Returns the requests that the partition may make: its share of the cycle's."""
    return fetchlist.shares(config.max_pages, {one.record.member: one.record.rows_out for one in lists})[member]


def _known(previous: Artifact | None) -> Container[bytes]:
    return KnownUrls.from_bytes(previous.read(crawldb.KNOWN_FILE)) if previous else frozenset()

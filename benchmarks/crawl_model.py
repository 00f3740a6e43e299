"""A model of a large crawl: its inputs, and one partition's hosts played through cycles.

Hosts are of very different size (Zipf); each is asked by one request at a time, with a pause, within a time box and the
caps of the recipe, whatever the others do. Simplified: all URLs are known from the start and count alike; every host is
a domain of its own; a cycle lasts as long as its slowest host, the process's CPU, its places for requests, or its
silent hosts take. Deterministic.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.frontier.scheduler import PROMPT_S, WAITING
from tasks.stages.crawl.hosts.rules import TRIES
from tasks.stages.crawl.storage.crawldb import DAY_S, FIRST_INTERVAL_S, MAX_FAILS

RESULTS = Path(__file__).with_name("results")
MOST_PARTITIONS = 1024
_DEFAULT = {name: one.default for name, one in CrawlConfig.model_fields.items()}
Floats = NDArray[np.float64]


def _measured(name: str, path: Sequence[str | int], otherwise: float) -> float:
    """Returns a figure of a benchmark's result; `otherwise` where the benchmark was not run."""
    try:
        value = json.loads((RESULTS / name).read_text())
        for key in path:
            value = value[key]
        return float(value)
    except (OSError, LookupError, ValueError):
        return otherwise


def _of(value: float, text: str) -> Any:
    return field(default=value, metadata={"help": text})


@dataclass(frozen=True)
class Plan:
    """The inputs; every one is an option of the command."""

    pages: float = _of(10e9, "pages to capture")
    days: float = _of(30, "in so many days")
    cycles_per_day: float = _of(1, "crawl cycles a day")
    known: float = _of(2, "URLs known per page captured, at the end")
    urls_per_partition: float = _of(10e6, "URLs of the crawl DB in one partition")
    # Measured by benchmarks of this repository.
    pages_per_cpu_s: float = _of(
        _measured("crawl.json", ("pages_per_cpu_second", "sluice"), 700), "fetch, on loopback without TLS"
    )
    generate_cpu_s: float = _of(
        _measured("crawldb.json", ("sizes", -1, "generate", "cpu_s"), 6), "generate, per 10 M URLs"
    )
    update_cpu_s: float = _of(_measured("crawldb.json", ("sizes", -1, "update", "cpu_s"), 16), "update, per 10 M URLs")
    # Not measured here.
    left_on_the_web: float = _of(0.5, "share of that rate left with TLS, real names and errors")
    wire_bytes: float = _of(35e3, "received per page, with heads and what is not kept")
    warc_bytes: float = _of(30e3, "of WARC per page")
    link_bytes: float = _of(500, "of links/ per page")
    log_bytes: float = _of(500, "of log/ and index/ per page")
    db_bytes: float = _of(70, "of the crawl DB per URL, its filter included")
    pages_per_file: float = _of(float(_DEFAULT["warc_pages_per_file"]), "[crawl] warc_pages_per_file")
    requests_per_task: float = _of(40, "requests to the store of a small stage")
    core_hour: float = _of(0.04, "price of a core for an hour")
    tb_month: float = _of(23, "price of a TB for a month")
    puts_1000: float = _of(0.005, "price of 1,000 writes")
    gets_1000: float = _of(0.0004, "price of 1,000 reads")
    tb_in: float = _of(0, "price of a TB received")
    # The web of one partition.
    zipf: float = _of(1, "a host of rank r has a share of 1 / r**zipf of the URLs")
    smallest: float = _of(5, "URLs of the smallest host")
    largest: float = _of(1e6, "URLs of the largest host")
    latency_s: float = _of(0.4, "median answer time (log-normal, sigma 0.8)")
    slow: float = _of(0.02, "share of hosts with a Crawl-delay")
    slow_s: float = _of(10, "that Crawl-delay")
    silent: float = _of(0.03, "share of hosts that take connections and never answer")
    # The recipe.
    delay_s: float = _of(float(_DEFAULT["delay_s"]), "[crawl] delay_s")
    latency_factor: float = _of(float(_DEFAULT["latency_factor"]), "[crawl] latency_factor")
    timeout_s: float = _of(float(_DEFAULT["timeout_s"]), "[crawl] timeout_s")
    max_backoff_s: float = _of(float(_DEFAULT["max_backoff_s"]), "[crawl] max_backoff_s")
    time_box_s: float = _of(6 * 3600.0, "[crawl] time_box_s")
    per_host: float = _of(float(_DEFAULT["max_pages_per_host"]), "[crawl] max_pages_per_host")
    concurrency: float = _of(1024, "[crawl] concurrency")
    seed: float = _of(1, "of the random numbers")

    @property
    def partitions(self) -> int:
        """Partitions for the known URLs; no more than a recipe may have."""
        return min(math.ceil(self.pages * self.known / self.urls_per_partition), MOST_PARTITIONS)

    @property
    def urls(self) -> float:
        """URLs of one partition at the end."""
        return self.pages * self.known / self.partitions

    @property
    def cycles(self) -> int:
        """Cycles of the whole crawl."""
        return max(1, round(self.days * self.cycles_per_day))

    @property
    def budget(self) -> float:
        """Pages that a partition has to bring in one cycle."""
        return self.pages / self.cycles / self.partitions

    @property
    def rate(self) -> float:
        """Pages per second that one fetch process, on one core, can take."""
        return self.pages_per_cpu_s * self.left_on_the_web


@dataclass
class Hosts:
    """The hosts of one partition; times in seconds."""

    left: Floats
    latency: Floats
    pause: Floats
    cap: Floats
    silent: NDArray[np.bool_]
    due: Floats
    fails: Floats

    @classmethod
    def drawn(cls, plan: Plan) -> "Hosts":
        """Returns hosts that have the partition's URLs together."""
        rng = np.random.default_rng(int(plan.seed))
        sizes: list[Floats] = []
        while sum(one.sum() for one in sizes) < plan.urls:
            drawn = plan.smallest * (1 - rng.random(1000)) ** -plan.zipf
            sizes.append(np.floor(np.minimum(drawn, plan.largest)))
        left = np.concatenate(sizes)
        count = len(left)
        latency = plan.latency_s * np.exp(0.8 * rng.standard_normal(count))
        asked = np.where(rng.random(count) < plan.slow, plan.slow_s, 0.0)
        return cls.of(plan, left, latency, asked, rng.random(count) < plan.silent)

    @classmethod
    def of(
        cls, plan: Plan, left: Floats, latency: Floats, asked: Floats, silent: NDArray[np.bool_] | None = None
    ) -> "Hosts":
        """Returns hosts with so many URLs `left`, such answer times, and the Crawl-delays that they ask for."""
        count = len(left)
        pause = np.maximum(np.maximum(plan.delay_s, asked), plan.latency_factor * latency)
        fits = np.maximum(1, np.floor(plan.time_box_s / np.maximum(plan.delay_s, asked)))
        mute = np.zeros(count, dtype=bool) if silent is None else silent
        return cls(left, latency, pause, np.minimum(fits, plan.per_host), mute, np.zeros(count), np.zeros(count))


@dataclass
class Cycle:
    """What one cycle came to."""

    pages: float = 0
    seconds: float = 0
    hosts: int = 0
    bound: str = "no page left"


def cycle(plan: Plan, hosts: Hosts, budget: float, day: float = 0) -> Cycle:
    """Plays one cycle; takes what it fetches from `hosts`.

    Args:
        plan: the inputs.
        hosts: of the partition.
        budget: requests that the task may make.
        day: of the crawl; a silent host is tried again when it is due.
    """
    listed = np.where(hosts.due <= day, np.minimum(hosts.left, hosts.cap), 0)
    mute = hosts.silent & (listed > 0)
    # What silent hosts cannot use, others get.
    chosen = _within(np.where(mute, 0, listed), budget)
    asked = chosen > 0
    if not (asked | mute).any():
        return Cycle()
    # The first turn of a host is for its robots.txt.
    turns = np.floor(plan.time_box_s / (hosts.latency + hosts.pause)) - 1
    want = np.where(asked, np.minimum(chosen, np.clip(turns, 0, None)), 0)
    work = max(_process(plan, hosts, want + asked).values())
    if work > plan.time_box_s:
        want = _within(want, np.floor(want.sum() * plan.time_box_s / work))
    bounds = {
        "slowest host": float(((want + asked) * (hosts.latency + hosts.pause)).max()),
        "silent hosts": math.ceil(mute.sum() / (WAITING + plan.concurrency)) * silence(plan),
        **_process(plan, hosts, want + asked),
    }
    bound = max(bounds, key=lambda name: bounds[name])
    hosts.left -= want
    hosts.fails[mute] += 1
    again = np.where(hosts.fails < MAX_FAILS, 2 ** (hosts.fails - 1), FIRST_INTERVAL_S / DAY_S)
    hosts.due[mute] = day + again[mute]
    seconds = min(bounds[bound], plan.time_box_s)
    return Cycle(float(want.sum()), seconds, int((want > 0).sum()), bound)


def _process(plan: Plan, hosts: Hosts, asks: Floats) -> dict[str, float]:
    """Returns the seconds that a fetch process needs for its requests, by what they need."""
    placed = np.minimum(hosts.latency, PROMPT_S)  # a request that lasts longer gives its place up
    return {"CPU": float(asks.sum()) / plan.rate, "places": float((asks * placed).sum()) / plan.concurrency}


def _within(want: Floats, room: float) -> Floats:
    """Cuts a fetch list to the budget as `shares` does: the first page of every host, then the second, and so on."""
    if want.sum() <= room:
        return want
    low, high = 0, int(want.max())
    while high - low > 1:  # the pages that every host gets: as many as there is room for
        middle = (low + high) // 2
        low, high = (middle, high) if np.minimum(want, middle).sum() <= room else (low, middle)
    level = low
    taken = np.minimum(want, level)
    more = np.flatnonzero(want > level)[: int(room - taken.sum())]
    taken[more] += 1
    return taken


def silence(plan: Plan) -> float:
    """Seconds that a silent host takes: tries of its robots.txt, and the pauses between them."""
    return TRIES * plan.timeout_s + (TRIES - 1) * max(plan.max_backoff_s, plan.latency_factor * plan.timeout_s)

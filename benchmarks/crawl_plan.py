"""Resources of a large crawl: partitions, tasks, cores, network, storage, requests, cost; and the limits set by hosts.

    python -m benchmarks.crawl_plan --pages 10e9 --days 30

Prints tables: arithmetic on measured unit costs (`crawl.json` and `crawldb.json` if they exist) and on assumed
inputs (sizes of pages, prices); partitions x concurrency, with pages per second and requests; then a simulation of one
partition over the cycles. A minute.

The model: host sizes follow a Zipf distribution. Each host gets one request at a time, with a pause, within a time box
and the caps of the recipe, independently of the others. Simplifications: all URLs are known from the start and equal;
every host is a domain; the length of a cycle is the maximum over its slowest host, the process's CPU, its request
slots, and its silent hosts. Deterministic.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import last, parser
from tasks.core.pages import table
from tasks.core.stage_spec import MOST_MEMBERS
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.frontier.scheduler import PROMPT_S, WAITING
from tasks.stages.crawl.hosts.rules import TRIES
from tasks.stages.crawl.storage.crawldb import DAY_S, FIRST_INTERVAL_S, MAX_FAILS

LISTED_BYTES = 900
"""Memory of a fetch task per URL of its fetch list."""
_DEFAULT = {name: one.default for name, one in CrawlConfig.model_fields.items()}
Floats = NDArray[np.float64]


def _measured(name: str, path: Sequence[str | int], otherwise: float) -> float:
    """Returns a figure of a benchmark's result, or `otherwise` if the benchmark was not run."""
    value: Any = last(name)
    try:
        for key in path:
            value = value[key]
        return float(value)
    except LookupError:
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
        _measured("crawl", ("pages_per_cpu_second", "sluice"), 700), "fetch, on loopback without TLS"
    )
    generate_cpu_s: float = _of(_measured("crawldb", ("sizes", -1, "generate", "cpu_s"), 6), "generate, per 10 M URLs")
    update_cpu_s: float = _of(_measured("crawldb", ("sizes", -1, "update", "cpu_s"), 16), "update, per 10 M URLs")
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
        return min(math.ceil(round(self.pages * self.known / self.urls_per_partition, 6)), MOST_MEMBERS)

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
        """Pages that a partition must fetch in one cycle."""
        return self.pages / self.cycles / self.partitions

    @property
    def rate(self) -> float:
        """Pages per second of one fetch process on one core."""
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
        """Returns hosts with the partition's total number of URLs."""
        rng = np.random.default_rng(int(plan.seed))
        sizes: list[Floats] = []
        while sum(one.sum() for one in sizes) < plan.urls:
            drawn = plan.smallest * (1 - rng.random(1000)) ** -plan.zipf
            sizes.append(np.floor(np.minimum(drawn, plan.largest)))
        left = np.concatenate(sizes)
        count = len(left)
        latency = plan.latency_s * np.exp(0.8 * rng.standard_normal(count))
        delays = np.where(rng.random(count) < plan.slow, plan.slow_s, 0.0)
        return cls.of(plan, left, latency, delays, rng.random(count) < plan.silent)

    @classmethod
    def of(
        cls, plan: Plan, left: Floats, latency: Floats, delays: Floats, silent: NDArray[np.bool_] | None = None
    ) -> "Hosts":
        """Returns hosts with so many URLs `left`, such answer times, and the Crawl-delays of their robots.txt."""
        count = len(left)
        pause = np.maximum(np.maximum(plan.delay_s, delays), plan.latency_factor * latency)
        fits = np.maximum(1, np.floor(plan.time_box_s / np.maximum(plan.delay_s, delays)))
        mute = np.zeros(count, dtype=bool) if silent is None else silent
        return cls(left, latency, pause, np.minimum(fits, plan.per_host), mute, np.zeros(count), np.zeros(count))


@dataclass(frozen=True)
class Requests:
    """Requests to the store in the whole crawl.

    Attributes:
        put: files, and records of parts and artifacts.
        get: index, links and logs, by publish and the update of their partition; by each fetch also the records of all
            fetch lists; by each update the record, the manifest and the targets that it owns of all segments, and the
            records of all rendered pages (without rendering they have no targets, so no manifest is read).
        head: of each file that is opened as a table.
    """

    put: float
    get: float
    head: float

    @classmethod
    def of(cls, plan: Plan) -> "Requests":
        """Returns the requests of a plan."""
        files, parts = plan.pages / plan.cycles / plan.pages_per_file, plan.partitions
        put = 5 * files + parts * 4 * plan.requests_per_task + parts**2
        return cls(*(plan.cycles * one for one in (put, 4 * files + 5 * parts**2, 3 * files + parts**2)))


@dataclass
class Cycle:
    """The result of one cycle."""

    pages: float = 0
    seconds: float = 0
    hosts: int = 0
    bound: str = "no page left"


def cycle(plan: Plan, hosts: Hosts, budget: float, day: float = 0) -> Cycle:
    """Simulates one cycle; removes the fetched URLs from `hosts`.

    Args:
        plan: the inputs.
        hosts: of the partition.
        budget: requests that the task may make.
        day: of the crawl; a silent host is tried again when it is due.
    """
    listed = np.where(hosts.due <= day, np.minimum(hosts.left, hosts.cap), 0)
    mute = hosts.silent & (listed > 0)
    # The share of silent hosts is given to others.
    chosen = _within(np.where(mute, 0, listed), budget)
    chosen_hosts = chosen > 0
    if not (chosen_hosts | mute).any():
        return Cycle()
    # The first turn of a host is for its robots.txt.
    turns = np.floor(plan.time_box_s / (hosts.latency + hosts.pause)) - 1
    want = np.where(chosen_hosts, np.minimum(chosen, np.clip(turns, 0, None)), 0)
    work = max(_process(plan, hosts, want + chosen_hosts).values())
    if work > plan.time_box_s:
        want = _within(want, np.floor(want.sum() * plan.time_box_s / work))
    bounds = {
        "slowest host": float(((want + chosen_hosts) * (hosts.latency + hosts.pause)).max()),
        "silent hosts": math.ceil(mute.sum() / (WAITING + plan.concurrency)) * silence(plan),
        **_process(plan, hosts, want + chosen_hosts),
    }
    bound = max(bounds, key=lambda name: bounds[name])
    hosts.left -= want
    hosts.fails[mute] += 1
    again = np.where(hosts.fails < MAX_FAILS, 2 ** (hosts.fails - 1), FIRST_INTERVAL_S / DAY_S)
    hosts.due[mute] = day + again[mute]
    seconds = min(bounds[bound], plan.time_box_s)
    return Cycle(float(want.sum()), seconds, int((want > 0).sum()), bound)


def _process(plan: Plan, hosts: Hosts, requests: Floats) -> dict[str, float]:
    """Returns the seconds that a fetch process needs for its requests, by resource."""
    placed = np.minimum(hosts.latency, PROMPT_S)  # a request that lasts longer releases its slot
    return {"CPU": float(requests.sum()) / plan.rate, "places": float((requests * placed).sum()) / plan.concurrency}


def _within(want: Floats, room: float) -> Floats:
    """Truncates a fetch list to the budget like `shares`: the first page of every host, then the second, and so on."""
    if want.sum() <= room:
        return want
    low, high = 0, int(want.max())
    while high - low > 1:  # the largest number of pages that every host can get
        middle = (low + high) // 2
        low, high = (middle, high) if np.minimum(want, middle).sum() <= room else (low, middle)
    level = low
    taken = np.minimum(want, level)
    more = np.flatnonzero(want > level)[: int(room - taken.sum())]
    taken[more] += 1
    return taken


def silence(plan: Plan) -> float:
    """Seconds spent on a silent host: tries of its robots.txt, and the pauses between them."""
    return TRIES * plan.timeout_s + (TRIES - 1) * max(plan.max_backoff_s, plan.latency_factor * plan.timeout_s)


def arithmetic(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Yields (what, how much, how it is computed)."""
    pages_per_s = plan.pages / (plan.days * 86400)
    parts, per_cycle = plan.partitions, plan.pages / plan.cycles
    db_tb = plan.pages * plan.known * plan.db_bytes / 1e12
    yield "pages per second, on the average", f"{pages_per_s:,.0f}", "pages / days"
    yield "URLs known at the end", f"{plan.pages * plan.known / 1e9:,.1f} G", "pages x known"
    at_most = " (as many as a recipe may have)" if parts == MOST_MEMBERS else ""
    yield "partitions", f"{parts:,}{at_most}", f"{plan.urls / 1e6:,.1f} M URLs each at the end"
    yield "Airflow task instances per cycle", f"{4 * parts + 3:,}", "generate, fetch, render, update each; 3 more"
    yield "pages per cycle", f"{per_cycle / 1e6:,.0f} M", f"{plan.cycles} cycles"
    yield "pages per fetch task", f"{plan.budget:,.0f}", "pages per cycle / partitions"
    cores = pages_per_s / plan.rate
    yield "cores busy with fetching, on the average", f"{cores:,.0f}", f"{plan.rate:,.0f} pages per second each"
    fetching = plan.pages / plan.rate / 3600
    generated, updated = (
        plan.cycles * plan.pages * plan.known / 2 / 10e6 * one / 3600
        for one in (plan.generate_cpu_s, plan.update_cpu_s)
    )
    yield "CPU-hours of fetch", f"{fetching:,.0f}", "pages / rate"
    yield (
        "CPU-hours of generate and update",
        f"{generated + updated:,.0f}",
        "the DB grows evenly: half of it, each cycle",
    )
    yield "network, received", f"{pages_per_s * plan.wire_bytes * 8 / 1e9:,.1f} Gbit/s", "on the average"
    yield (
        "WARC",
        f"{plan.pages * plan.warc_bytes / 1e12:,.0f} TB",
        f"{plan.pages / plan.pages_per_file / 1e6:,.1f} M files",
    )
    yield "logs, index, links", f"{plan.pages * (plan.log_bytes + plan.link_bytes) / 1e12:,.1f} TB", ""
    yield "crawl DB, one generation", f"{db_tb:,.2f} TB", "at the end"
    kept = plan.cycles * db_tb / 2
    yield "crawl DB, all generations", f"{kept:,.1f} TB", "unless `gc` removes old ones"
    link_tb = per_cycle * plan.link_bytes / 1e12
    yield "links read by all updates of a cycle", f"{2 * link_tb:,.2f} TB", "its own, and targets: at most as much"
    yield "files of targets opened by one update", f"{parts:,.0f}", "one of each segment"
    yield "crawl DB read by publish, each cycle", f"{db_tb:,.2f} TB", "to count URLs by status; at the end"
    requests = Requests.of(plan)
    yield "PUT requests to the store", f"{requests.put / 1e6:,.0f} M", "5 per WARC file, and those of the tasks"
    per_task = "of each partition, a fetch reads a record; an update two, a manifest and targets"
    yield "GET requests", f"{requests.get / 1e6:,.0f} M", per_task
    yield "HEAD requests", f"{requests.head / 1e6:,.0f} M", "one each time that a file is opened as a table"
    yield from _money(plan, fetching + generated + updated, kept, requests)


def _money(plan: Plan, hours: float, kept_tb: float, requests: Requests) -> Iterator[tuple[str, str, str]]:
    stored = plan.pages * (plan.warc_bytes + plan.log_bytes + plan.link_bytes) / 1e12
    prices = {
        "cores": (hours * plan.core_hour, f"{plan.core_hour} per core-hour, none idle"),
        "storage, first month": ((stored / 2 + kept_tb) * plan.tb_month, f"{plan.tb_month} per TB, half full"),
        "storage, each further month": (stored * plan.tb_month, "one generation of the DB is small beside it"),
        "requests": (
            (requests.put * plan.puts_1000 + (requests.get + requests.head) * plan.gets_1000) / 1e3,
            "a HEAD as a GET",
        ),
        "network": (plan.pages * plan.wire_bytes / 1e12 * plan.tb_in, f"{plan.tb_in} per TB received"),
    }
    for name, (money, why) in prices.items():
        yield f"cost: {name}", f"{money:,.0f}", why


def partition(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yields statistics of the hosts of one partition, and the number that must be active at a time."""
    hosts = Hosts.drawn(plan)
    turn = float((hosts.latency + hosts.pause).mean())
    need = plan.pages / (plan.days * 86400) / plan.partitions
    first = cycle(plan, Hosts.drawn(plan), plan.budget)
    slots = plan.partitions * first.seconds * plan.cycles_per_day / 86400
    yield "hosts, URLs", f"{len(hosts.left):,}, {hosts.left.sum() / 1e6:.1f} M"
    yield "hosts with more than 32 URLs", f"{(hosts.left > 32).mean():.0%}"
    yield "URLs on the largest 1 % of hosts", f"{_top(hosts.left):.0%}"
    yield "seconds per page of a host, with its pause", f"{turn:.1f}"
    yield f"hosts open at a time for {need:.1f} pages per second, the average", f"{need * turn:,.0f}"
    yield f"hosts open at a time for {plan.rate:,.0f} pages per second, one core", f"{plan.rate * turn:,.0f}"
    yield "minutes of the first cycle's fetch", f"{first.seconds / 60:,.0f}"
    yield "fetch tasks at one time, so that cycles keep up", f"{math.ceil(slots):,}"


def divisions(plan: Plan) -> Iterator[tuple[str, ...]]:
    """Yields the first cycle by partitions and concurrency, and the requests to the store in the whole crawl."""
    every = (math.ceil(plan.partitions * share) for share in (0.25, 0.5, 1, 2))
    for parts in sorted({min(count, MOST_MEMBERS) for count in every}):
        divided = replace(plan, urls_per_partition=plan.pages * plan.known / parts)
        hosts, requests = Hosts.drawn(divided), Requests.of(divided)
        millions = [f"{one / 1e6:,.0f} M" for one in (requests.put, requests.get, requests.head)]
        for concurrency in (64.0, 256.0, 1024.0):
            fresh = replace(hosts, left=hosts.left.copy(), due=hosts.due.copy(), fails=hosts.fails.copy())
            first = cycle(replace(divided, concurrency=concurrency), fresh, divided.budget)
            at_once = math.ceil(parts * first.seconds * plan.cycles_per_day / 86400)
            speed = f"{first.pages / first.seconds:,.0f}", first.bound, f"{first.seconds / 60:,.0f} min"
            yield f"{parts:,}", f"{concurrency:,.0f}", *speed, f"{at_once:,}", *millions


def boxes(plan: Plan) -> Iterator[tuple[str, ...]]:
    """Yields the pages of a first cycle without a budget, by time box and concurrency."""
    for hours, concurrency in ((1, 64), (1, 1024), (6, 64), (6, 1024), (24, 1024)):
        one = replace(plan, time_box_s=hours * 3600.0, concurrency=concurrency, per_host=1e9)
        calm = replace(one, slow=0, silent=0)
        report, even = (cycle(given, Hosts.drawn(given), math.inf) for given in (one, calm))
        yield f"{hours} h", f"{concurrency:,}", f"{report.pages:,.0f}", report.bound, f"{even.pages:,.0f}"


def few(plan: Plan) -> Iterator[tuple[str, ...]]:
    """Yields the pages of twenty large sites in an hour when one of them is slow."""
    for slow_s in (0.0, 10.0, 30.0):
        one = replace(plan, time_box_s=3600.0, per_host=1e9)
        hosts = Hosts.of(one, np.full(20, 1e6), np.full(20, plan.latency_s), np.append(np.zeros(19), slow_s))
        yield f"{slow_s:g} s" if slow_s else "none", f"{cycle(one, hosts, math.inf).pages:,.0f}"


def month(plan: Plan) -> Iterator[tuple[str, ...]]:
    """Yields the use of the partition's budget by cycle, for two shares of wanted URLs."""
    for known, per_host in ((plan.known, plan.per_host), (1.1, plan.per_host), (1.1, 10 * plan.per_host)):
        one = replace(plan, known=known, per_host=per_host)
        hosts = Hosts.drawn(one)
        every = [cycle(one, hosts, one.budget, number / one.cycles_per_day) for number in range(one.cycles)]
        case = f"{1 / known:.0%} of the URLs, {per_host:,.0f} per host"
        for number in sorted({0, one.cycles // 2, one.cycles - 1}):
            report = every[number]
            used, minutes = f"{report.pages / one.budget:.0%}", f"{report.seconds / 60:,.0f} min"
            yield case, f"{number + 1}", used, minutes, f"{report.hosts:,}", report.bound
        left = hosts.left[~hosts.silent]
        share = sum(report.pages for report in every) / one.budget / one.cycles
        yield case, "all", f"{share:.0%}", "", f"{(left > 0).sum():,} not done", ""


def caps(plan: Plan) -> Iterator[tuple[str, ...]]:
    """Yields the share of URLs within the cap per host, and the length of the fetch list."""
    hosts = Hosts.drawn(plan)
    every = hosts.left.sum()
    for per_host in (100.0, 500.0, 5000.0, plan.time_box_s / plan.delay_s):
        first = np.minimum(hosts.left, per_host).sum()
        ever = np.minimum(hosts.left, plan.cycles * per_host).sum()
        memory = f"{first * LISTED_BYTES / 1e9:,.1f} GB"
        yield f"{per_host:,.0f}", f"{first / every:.0%}", f"{ever / every:.0%}", f"{first / 1e6:,.1f} M", memory


def main() -> None:
    """Prints the plan."""
    options = parser(__doc__)
    for one in fields(Plan):
        text = f"{one.metadata['help']} (%(default)s)"
        options.add_argument(f"--{one.name.replace('_', '-')}", type=float, default=one.default, help=text)
    plan = Plan(**vars(options.parse_args()))
    tables = (
        table(("what", "how much", "how"), arithmetic(plan)),
        table(
            (
                "partitions",
                "concurrency",
                "pages/s of a task",
                "bound by",
                "its time",
                "tasks at a time",
                "PUT",
                "GET",
                "HEAD",
            ),
            divisions(plan),
        ),
        table(("one partition", "how much"), partition(plan)),
        table(("time box", "concurrency", "pages", "bound by", "no slow or silent host"), boxes(plan)),
        table(("Crawl-delay of one of 20 sites", "pages of all in 1 h"), few(plan)),
        table(
            ("cap per host", "of all URLs, in a cycle", "in all cycles", "longest fetch list", "memory for it"),
            caps(plan),
        ),
        table(("wanted", "cycle", "budget used", "time", "hosts", "bound by"), month(plan)),
    )
    print("\n\n".join("\n".join(lines) for lines in tables))


def _top(left: Floats) -> float:
    return float(np.sort(left)[-len(left) // 100 :].sum() / left.sum())


if __name__ == "__main__":
    main()

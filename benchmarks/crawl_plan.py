"""What a large crawl takes: partitions, tasks, cores, network, storage, requests, money; and what hosts let through.

    python -m benchmarks.crawl_plan --pages 10e9 --days 30

Prints tables: arithmetic on measured costs per unit (`benchmarks/results/crawl.json` and `crawldb.json` where they
exist) and on inputs that nobody here has measured (sizes of pages, prices); then what `crawl_model` says of one
partition. Half a minute.
"""

import argparse
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace

import numpy as np

from benchmarks.crawl_model import MOST_PARTITIONS, Floats, Hosts, Plan, cycle

# Memory of a fetch task per URL of its fetch list.
LISTED_BYTES = 900


def arithmetic(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Yields (what, how much, how it is computed)."""
    pages_per_s = plan.pages / (plan.days * 86400)
    parts, per_cycle = plan.partitions, plan.pages / plan.cycles
    files = per_cycle / plan.pages_per_file
    db_tb = plan.pages * plan.known * plan.db_bytes / 1e12
    yield "pages per second, on the average", f"{pages_per_s:,.0f}", "pages / days"
    yield "URLs known at the end", f"{plan.pages * plan.known / 1e9:,.1f} G", "pages x known"
    at_most = " (as many as a recipe may have)" if parts == MOST_PARTITIONS else ""
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
    yield "crawl DB, all generations", f"{kept:,.1f} TB", "unless `prune` removes old ones"
    link_tb = per_cycle * plan.link_bytes / 1e12
    yield "links read by all updates of a cycle", f"{parts * link_tb:,.1f} TB", f"{link_tb * 1e3:,.0f} GB by each"
    yield "link files opened by one update", f"{files:,.0f}", "all of the cycle, for the rows of one partition"
    yield "crawl DB read by publish, each cycle", f"{db_tb:,.2f} TB", "to count URLs by status; at the end"
    puts = plan.cycles * (5 * files + parts * 4 * plan.requests_per_task)
    gets = plan.cycles * files * (parts + 3)
    yield "writes to the store", f"{puts / 1e6:,.0f} M", "5 per WARC file, and those of the tasks"
    yield "reads from the store", f"{gets / 1e6:,.0f} M", "each update reads every link file"
    yield from _money(plan, fetching + generated + updated, kept, puts, gets)


def _money(plan: Plan, hours: float, kept_tb: float, puts: float, gets: float) -> Iterator[tuple[str, str, str]]:
    stored = plan.pages * (plan.warc_bytes + plan.log_bytes + plan.link_bytes) / 1e12
    prices = {
        "cores": (hours * plan.core_hour, f"{plan.core_hour} per core-hour, none idle"),
        "storage, first month": ((stored / 2 + kept_tb) * plan.tb_month, f"{plan.tb_month} per TB, half full"),
        "storage, each further month": (stored * plan.tb_month, "one generation of the DB is small beside it"),
        "writes and reads": (puts / 1e3 * plan.puts_1000 + gets / 1e3 * plan.gets_1000, "see above"),
        "network": (plan.pages * plan.wire_bytes / 1e12 * plan.tb_in, f"{plan.tb_in} per TB received"),
    }
    for name, (money, why) in prices.items():
        yield f"cost: {name}", f"{money:,.0f}", why


def partition(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yields what the hosts of one partition are like, and how many have to be open at a time."""
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


def boxes(plan: Plan) -> Iterator[tuple[str, ...]]:
    """Yields what a first cycle without a budget brings, by time box and concurrency."""
    for hours, concurrency in ((1, 64), (1, 1024), (6, 64), (6, 1024), (24, 1024)):
        one = replace(plan, time_box_s=hours * 3600.0, concurrency=concurrency, per_host=1e9)
        calm = replace(one, slow=0, silent=0)
        report, even = (cycle(given, Hosts.drawn(given), math.inf) for given in (one, calm))
        yield f"{hours} h", f"{concurrency:,}", f"{report.pages:,.0f}", report.bound, f"{even.pages:,.0f}"


def few(plan: Plan) -> Iterator[tuple[str, ...]]:
    """Yields what twenty large sites give in an hour when one of them is slow."""
    for slow_s in (0.0, 10.0, 30.0):
        one = replace(plan, time_box_s=3600.0, per_host=1e9)
        hosts = Hosts.of(one, np.full(20, 1e6), np.full(20, plan.latency_s), np.append(np.zeros(19), slow_s))
        yield f"{slow_s:g} s" if slow_s else "none", f"{cycle(one, hosts, math.inf).pages:,.0f}"


def month(plan: Plan) -> Iterator[tuple[str, ...]]:
    """Yields how the partition's budget is used, cycle by cycle; the more of what is known is wanted, the less."""
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
    """Yields what share of the URLs the cap of a host lets through, and how long the fetch list is."""
    hosts = Hosts.drawn(plan)
    every = hosts.left.sum()
    for per_host in (100.0, 500.0, 5000.0, plan.time_box_s / plan.delay_s):
        first = np.minimum(hosts.left, per_host).sum()
        ever = np.minimum(hosts.left, plan.cycles * per_host).sum()
        memory = f"{first * LISTED_BYTES / 1e9:,.1f} GB"
        yield f"{per_host:,.0f}", f"{first / every:.0%}", f"{ever / every:.0%}", f"{first / 1e6:,.1f} M", memory


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Prints the plan."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for one in fields(Plan):
        text = f"{one.metadata['help']} (%(default)s)"
        options.add_argument(f"--{one.name.replace('_', '-')}", type=float, default=one.default, help=text)
    plan = Plan(**vars(options.parse_args()))
    print(table(("what", "how much", "how"), arithmetic(plan)), end="\n\n")
    print(table(("one partition", "how much"), partition(plan)), end="\n\n")
    boxed = ("time box", "concurrency", "pages", "bound by", "no slow or silent host")
    print(table(boxed, boxes(plan)), end="\n\n")
    print(table(("Crawl-delay of one of 20 sites", "pages of all in 1 h"), few(plan)), end="\n\n")
    capped = ("cap per host", "of all URLs, in a cycle", "in all cycles", "longest fetch list", "memory for it")
    print(table(capped, caps(plan)), end="\n\n")
    print(table(("wanted", "cycle", "budget used", "time", "hosts", "bound by"), month(plan)))


def _top(left: Floats) -> float:
    return float(np.sort(left)[-len(left) // 100 :].sum() / left.sum())


if __name__ == "__main__":
    main()

"""Stage `generate`: what to fetch in this cycle, split into partitions by registered domain.

Reads the seeds of the recipe and, from the second cycle on, the crawl DB of the cycle before. Writes
`fetchlist/p<n>.parquet` (FETCHLIST) for every partition, empty ones too, and `budgets.json`. Read by fetch and update.
"""

import json
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.artifact import Artifact
from tasks.crawl import crawldb
from tasks.crawl.address import refusal
from tasks.crawl.config import CrawlConfig
from tasks.crawl.fetchlist import BUDGETS, FETCHLIST, file_of, member, scope_of, shares
from tasks.crawl.url import authority, canonical, key, partition
from tasks.engine import Engine
from tasks.errors import InputError
from tasks.stage import Inputs, Output, Part, Report

VERSION = 1

_KNOWN = ("key", "url", "host", "depth", "etag", "last_modified", "payload_digest", "record_id", "captured_at")


def run(config: CrawlConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the fetch lists; the members of the report are the partitions.

    Raises:
        InputError: there are no seeds, or one cannot be crawled at all.
    """
    seeds = _seeds(config)
    previous = inputs.get("previous")
    now = datetime.now(UTC)
    lists = [_fetchlist(config, seeds, previous, number, now) for number in range(config.partitions)]
    budgets = shares(config.max_pages, config.partitions, (number for number, rows in enumerate(lists) if rows))
    if "fetchlist" not in output.committed:
        with output.part("fetchlist") as part:
            _write(part, lists, budgets)
    rows = sum(len(rows) for rows in lists)
    members = tuple(member(number) for number in range(config.partitions))
    return Report({"urls": float(rows), "seeds": float(len(seeds))}, members, f"{rows} URLs to fetch")


def _seeds(config: CrawlConfig) -> dict[str, str]:
    """Returns the canonical seeds by key."""
    if not config.seeds:
        raise InputError("the crawl has no seeds", "name at least one URL in [crawl] seeds")
    found = {}
    for seed in config.seeds:
        url = canonical(seed)
        if url is None:
            raise InputError(
                f"the seed {seed!r} cannot be fetched", "write an http or https URL without user name and password"
            )
        reason = refusal(url, allow_loopback=config.allow_loopback)
        if reason:
            raise InputError(
                f"the seed {seed!r} leads to an address that crawlers must not reach ({reason})",
                "name a public host on port 80 or 443; allow_loopback = true admits this machine",
            )
        found[key(url)] = url
    scope = scope_of(config)
    outside = [url for url in found.values() if not scope.covers(url)]
    if outside:
        raise InputError(f"the seed {outside[0]} is not in include_hosts", "add its host or remove the seed")
    return found


def _fetchlist(
    config: CrawlConfig, seeds: dict[str, str], previous: Artifact | None, number: int, now: datetime
) -> list[dict[str, Any]]:
    """Returns the rows of one partition: due URLs and new seeds, nearest to the seeds first, capped."""
    mine = {name: url for name, url in seeds.items() if partition(url, config.partitions) == number}
    rows: list[dict[str, Any]] = []
    if previous is not None:
        known = crawldb.read(previous, config.partitions, number)
        rows = [{**row, "seed": row["key"] in mine} for row in _due(known, now).to_pylist()]
        held = set(known.column("key").to_pylist())
        mine = {name: url for name, url in mine.items() if name not in held}
    rows += [_seed_row(name, url) for name, url in mine.items()]
    scope = scope_of(config)
    rows = [row for row in rows if scope.covers(row["url"])]
    return _capped(config, sorted(rows, key=lambda row: (row["depth"], row["url"])))


def _due(known: pa.Table, now: datetime) -> pa.Table:
    due = pc.less_equal(known.column("next_due"), pa.scalar(now, pa.timestamp("ms", tz="UTC")))
    # A URL that no cycle came to has no date.
    return known.filter(pc.fill_null(due, True)).select(list(_KNOWN))


def _capped(config: CrawlConfig, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    per_host: Counter[str] = Counter()
    kept = []
    for row in rows:
        per_host[row["host"]] += 1
        if per_host[row["host"]] <= config.max_pages_per_host:
            kept.append(row)
    return kept[: config.max_pages]


def _seed_row(name: str, url: str) -> dict[str, Any]:
    return {
        "key": name,
        "url": url,
        "host": authority(url),
        "depth": 0,
        "seed": True,
        "etag": "",
        "last_modified": "",
        "payload_digest": "",
        "record_id": "",
        "captured_at": None,
    }


def _write(part: Part, lists: list[list[dict[str, Any]]], budgets: dict[str, int]) -> None:
    for number, rows in enumerate(lists):
        table = pa.Table.from_pylist(rows, schema=FETCHLIST)
        part.count_in(table.num_rows)
        part.count_out(table.num_rows)
        with part.file(file_of(number), rows=table.num_rows) as file:
            pq.write_table(table, file, compression="zstd", compression_level=3)
    with part.file(BUDGETS) as file:
        file.write(json.dumps(budgets, sort_keys=True).encode())

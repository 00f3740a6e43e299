"""State of hosts at the end of a fetch: pauses, speed, traps, robots.txt and tdmrep.json files.

Reads and writes the part `hosts` of a segment.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.stage import Part
from tasks.formats.web.url import authority
from tasks.stages.crawl.db.crawldb import ROBOTS
from tasks.stages.crawl.hosts.politeness import HostClock
from tasks.stages.crawl.hosts.rules import HostRobots

HOSTS = "hosts/"
RULES = "robots/"
PART = "hosts"

SEEN_HOSTS = pa.schema(
    [
        pa.field("host", pa.string()),
        pa.field("crawl_delay_s", pa.float64()),
        pa.field("latency_s", pa.float64()),
        pa.field("failures", pa.int32()),
        pa.field("backoff_until", pa.timestamp("ms", tz="UTC")),
        pa.field("traps", pa.int64()),
    ]
)


def clock_of(row: Mapping[str, Any]) -> HostClock:
    """Returns the pauses of a host from a row of fetchlist.LISTED_HOSTS."""
    return HostClock(row["host"], row["crawl_delay_s"], row["latency_s"], row["failures"], row["backoff_until"])


def rules_of(table: pa.Table) -> list[HostRobots]:
    """Returns the rows of a table of rules (crawldb.ROBOTS)."""
    return [HostRobots(**row) for row in table.drop_columns(["host"]).to_pylist()]


def write(part: Part, clocks: Iterable[HostClock], rules: Iterable[HostRobots], traps: Mapping[str, int]) -> None:
    """Writes both tables into `part`; leaves out rules of sites that did not answer, which must not be cached."""
    hosts = [
        {**asdict(clock), "host": clock.authority, "traps": traps.get(clock.authority, 0)}
        for clock in sorted(clocks, key=lambda one: one.authority)
    ]
    robots = [
        {**asdict(one), "host": authority(f"{one.origin}/")}
        for one in sorted(rules, key=lambda one: one.origin)
        if one.status != "unavailable"
    ]
    for folder, rows, schema in ((HOSTS, hosts, SEEN_HOSTS), (RULES, robots, ROBOTS)):
        with part.file(f"{folder}{part.attempt}.parquet", rows=len(rows)) as file:
            pq.write_table(pa.Table.from_pylist(rows, schema=schema), file, compression="zstd", compression_level=3)

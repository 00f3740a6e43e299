"""Stage `inject`: the seeds of a crawl, checked, in canonical form, split into partitions by registered domain.

Reads `seeds` and `seed_files` of the recipe. Writes `seeds/p<n>.parquet` (SEEDS) for every partition, empty ones too,
`hosts.json`, the hosts of all seeds, and `rejected.parquet` (`seeds.REJECTED`), the lines of seed files that are not
valid seeds. Its members name the partitions.
"""

import json
import logging
from collections import Counter, defaultdict

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.artifact import Artifact
from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output, Part, Report
from tasks.formats.tombstones import NOTHING, Tombstones
from tasks.formats.web.scope import Scope
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.seeds import Seed, seeds_of, summary, to_table

VERSION = 3

log = logging.getLogger("sluice.crawl")

SEEDS = pa.schema(
    [
        pa.field("key", pa.uuid(), nullable=False),
        pa.field("url", pa.string(), nullable=False),
        pa.field("host", pa.string(), nullable=False),
        pa.field("score", pa.float64(), nullable=False),  # times that of any other page; 1 where the file says nothing
        pa.field("interval_s", pa.int64()),  # it is due again after so long; null: as its changes say
    ]
)
REJECTED_FILE = "rejected.parquet"
_HOSTS = "hosts.json"


def member(number: int) -> str:
    """Returns the name of a partition: "p0", "p1", ..."""
    return f"p{number}"


def number_of(name: str) -> int:
    """Returns the partition called `name`."""
    return int(name.removeprefix("p"))


def file_of(number: int) -> str:
    """Returns the file of a partition's seeds within the artifact."""
    return f"seeds/{member(number)}.parquet"


def scope_of(config: CrawlConfig, seeds: Artifact, taken_down: Tombstones = NOTHING) -> Scope:
    """Returns the scope of the crawl: the hosts of the recipe, or those of its seeds, without what is taken down."""
    hosts = list(config.include_hosts) or json.loads(seeds.read(_HOSTS))
    return Scope(hosts, config.include_prefixes, config.include_pattern, config.exclude_pattern, taken_down)


def external(config: CrawlConfig) -> dict[str, list[str]]:
    """Returns the files outside the store that the stage reads, by role."""
    return {"seed_files": list(config.seed_files)} if config.seed_files else {}


def run(config: CrawlConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the seeds of every partition.

    Raises:
        InputError: see `seeds_of`.
    """
    seeds, rejected = seeds_of(config)
    if rejected:
        log.warning("[%s] %s", output.address, summary(rejected))
    parts: dict[int, list[Seed]] = defaultdict(list)
    for seed in seeds:
        parts[seed.link.owner % config.partitions].append(seed)
    if "seeds" not in output.committed:
        with output.part("seeds") as part:
            for number in range(config.partitions):
                _write(part, number, parts[number])
            part.count_in(len(rejected))
            for reason, count in Counter(one.reason for one in rejected).items():
                part.reject(reason, count)
            with part.file(REJECTED_FILE, rows=len(rejected)) as file:
                pq.write_table(to_table(rejected), file, compression="zstd", compression_level=3)
            with part.file(_HOSTS) as file:
                file.write(json.dumps(sorted({seed.link.host for seed in seeds})).encode())
    members = tuple(member(number) for number in range(config.partitions))
    more = f"; {len(rejected)} lines of seed files are none, see {REJECTED_FILE}" if rejected else ""
    numbers = {"seeds": float(len(seeds)), "bad_seeds": float(len(rejected))}
    return Report(numbers, members, f"{len(seeds)} seeds in {config.partitions} partitions{more}")


def _write(part: Part, number: int, seeds: list[Seed]) -> None:
    part.count_in(len(seeds))
    part.count_out(len(seeds))
    rows = [
        {"key": to.key, "url": to.url, "host": to.host, "score": score, "interval_s": interval_s}
        for to, score, interval_s in seeds
    ]
    with part.file(file_of(number), rows=len(rows)) as file:
        pq.write_table(pa.Table.from_pylist(rows, schema=SEEDS), file, compression="zstd", compression_level=3)

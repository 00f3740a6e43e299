"""Stage `inject`: the seeds of a crawl, checked, in canonical form, split into partitions by registered domain.

Reads `seeds` and `seed_files` of the recipe. Writes `seeds/p<n>.parquet` (SEEDS) for every partition, empty ones too,
and `hosts.json`, the hosts of all seeds. Its members name the partitions. Read by generate, fetch and update.
"""

import json
from collections import defaultdict
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.artifact import Artifact
from tasks.crawl.config import CrawlConfig, is_loopback
from tasks.crawl.http.address import refusal
from tasks.crawl.url import Link, Scope, canonical, host_and_port, link
from tasks.engine import Engine
from tasks.errors import InputError
from tasks.stage import Inputs, Output, Part, Report

VERSION = 1

SEEDS = pa.schema(
    [
        pa.field("key", pa.uuid(), nullable=False),
        pa.field("url", pa.string(), nullable=False),
        pa.field("host", pa.string(), nullable=False),
    ]
)
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


def scope_of(config: CrawlConfig, seeds: Artifact) -> Scope:
    """Returns what the crawl covers: the hosts that the recipe names, or else those of its seeds."""
    hosts = list(config.include_hosts) or json.loads(seeds.read(_HOSTS))
    return Scope(hosts, config.include_prefixes, config.include_pattern, config.exclude_pattern)


def external(config: CrawlConfig) -> dict[str, list[str]]:
    """Returns the files outside the store that the stage reads, by role."""
    return {"seed_files": list(config.seed_files)} if config.seed_files else {}


def run(config: CrawlConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the seeds of every partition.

    Raises:
        InputError: there are no seeds, or one cannot be crawled at all.
    """
    seeds = _seeds(config)
    parts: dict[int, list[Link]] = defaultdict(list)
    for seed in seeds:
        parts[seed.owner % config.partitions].append(seed)
    if "seeds" not in output.committed:
        with output.part("seeds") as part:
            for number in range(config.partitions):
                _write(part, number, parts[number])
            with part.file(_HOSTS) as file:
                file.write(json.dumps(sorted({seed.host for seed in seeds})).encode())
    members = tuple(member(number) for number in range(config.partitions))
    return Report({"seeds": float(len(seeds))}, members, f"{len(seeds)} seeds in {config.partitions} partitions")


def _write(part: Part, number: int, seeds: list[Link]) -> None:
    part.count_in(len(seeds))
    part.count_out(len(seeds))
    rows = [{"key": seed.key, "url": seed.url, "host": seed.host} for seed in seeds]
    with part.file(file_of(number), rows=len(rows)) as file:
        pq.write_table(pa.Table.from_pylist(rows, schema=SEEDS), file, compression="zstd", compression_level=3)


def _seeds(config: CrawlConfig) -> list[Link]:
    """Returns the seeds in the order of their URLs, each once."""
    found: dict[str, Link] = {}
    for seed, where in _named(config):
        checked = _checked(config, seed, where)
        found[checked.url] = checked
    if not found:
        raise InputError("the crawl has no seeds", "name at least one URL in [crawl] seeds or seed_files")
    hosts = config.include_hosts or [seed.host for seed in found.values()]
    scope = Scope(hosts, config.include_prefixes, config.include_pattern, config.exclude_pattern)
    outside = sorted(url for url in found if not scope.covers(url))
    if outside:
        raise InputError(
            f"the seed {outside[0]} is not covered by the crawl",
            "add its host to include_hosts, mend include_prefixes or the patterns, or remove the seed",
        )
    return [found[url] for url in sorted(found)]


def _named(config: CrawlConfig) -> Iterator[tuple[str, str]]:
    """Yields every seed as it is written, and where it stands."""
    for seed in config.seeds:
        yield seed, "[crawl] seeds"
    for path in config.seed_files:
        try:
            with open(path, encoding="utf-8") as file:
                for number, line in enumerate(file, 1):
                    seed = line.partition(" #")[0].strip()
                    if seed and not seed.startswith("#"):
                        yield seed, f"{path}, line {number}"
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"the seeds of {path} cannot be read ({error})", "correct [crawl] seed_files") from error


def _checked(config: CrawlConfig, seed: str, where: str) -> Link:
    url = canonical(seed)
    if url is None:
        raise InputError(
            f"the seed {seed!r} ({where}) cannot be fetched",
            "write an http or https URL without user name and password",
        )
    host = host_and_port(url)[0]
    if not config.contact and not is_loopback(host):
        raise InputError(
            f"contact is missing, and {host} ({where}) is on the public web",
            "set [crawl] contact to a page or to mailto:name@host, by which webmasters can reach you",
        )
    reason = refusal(url, allow_loopback=config.allow_loopback)
    if reason:
        raise InputError(
            f"the seed {seed!r} ({where}) leads to an address that crawlers must not reach ({reason})",
            "name a public host on port 80 or 443; allow_loopback = true admits this machine",
        )
    return link(url)

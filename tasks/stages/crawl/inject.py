"""Stage `inject`: the seeds of a crawl, checked, in canonical form, split into partitions by registered domain.

Reads `seeds` and the files that `seed_files` names. A wrong seed in the recipe is an error of the recipe; in a seed
file, an unusable line is set aside with its number and the reason. Behind the URL a line may have fields as in Nutch's
seed lists, each after a tab: `nutch.score=10` and `nutch.fetchInterval=86400` (seconds).

Writes `seeds/p<n>.parquet` (SEEDS) for every partition, empty ones too; `hosts.json`, the hosts of all seeds; and
`rejected.parquet` (REJECTED), the lines of seed files that were set aside. Its members name the partitions.
"""

import json
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.artifact import Artifact
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Part, Report
from tasks.formats.documents.tombstones import NO_TOMBSTONES, Tombstones
from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.domain import Link, link
from tasks.formats.web.scope import Scope
from tasks.formats.web.url import host_and_port
from tasks.stages.crawl.config import CrawlConfig, is_loopback
from tasks.stages.crawl.http.address import Grants, refusal

VERSION = 3

log = logging.getLogger("sluice.crawl")

SEEDS = pa.schema(
    [
        pa.field("key", pa.uuid(), nullable=False),
        pa.field("url", pa.string(), nullable=False),
        pa.field("host", pa.string(), nullable=False),
        pa.field("score", pa.float64(), nullable=False),  # times that of any other page; 1 where the file says nothing
        pa.field("interval_s", pa.int64()),  # it is due again after so long; null: depends on its changes
    ]
)

REJECTED = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("line", pa.int64(), nullable=False),  # from 1
        pa.field("text", pa.string(), nullable=False),  # 500 characters of it, without a user name and password
        pa.field("reason", pa.string(), nullable=False),  # encoding, fields, url, private_address, port or scope
        pa.field("why", pa.string(), nullable=False),  # text for messages
    ]
)
REJECTED_FILE = "rejected.parquet"
_HOSTS = "hosts.json"

_RECIPE = "[crawl] seeds"
_MAX_TEXT = 500
_SHOWN = 3
_USER = re.compile(r"//[^/?#\s]*@")
_SCOPE = "scope"
_FIELDS = "fields"
_SCORE, _INTERVAL = "nutch.score", "nutch.fetchInterval"
_LEAST = {_SCORE: 1e-9, _INTERVAL: 1.0}
_REMARK = re.compile(r"[ \t]#")
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9})?", re.ASCII)

_REACHABLE = (
    "name a public host on port 80 or 443; allow_hosts grants others one by one, allow_loopback = true this machine"
)
_WHY = {
    "encoding": ("is no UTF-8", "save the file as UTF-8"),
    _FIELDS: (
        "has something behind a tab that is neither nutch.score nor nutch.fetchInterval with a number above 0",
        "write the URL alone, or http://host/<tab>nutch.score=10<tab>nutch.fetchInterval=86400",
    ),
    "url": ("cannot be fetched", "write an http or https URL without user name and password"),
    "private_address": (
        "leads to an address that crawlers must not reach (private_address)",
        _REACHABLE,
    ),
    "port": (
        "leads to an address that crawlers must not reach (port)",
        _REACHABLE,
    ),
    _SCOPE: (
        "is not covered by the crawl",
        "add its host to include_hosts, mend include_prefixes or the patterns, or remove the seed",
    ),
}


class RejectedSeed(NamedTuple):
    """A line of a seed file that is no seed; the columns of REJECTED."""

    file: str
    line: int
    text: str
    reason: str
    why: str


class Seed(NamedTuple):
    """A seed, how many times it counts, and after how many seconds it is due again (None: depends on its changes)."""

    link: Link
    score: float = 1.0
    interval_s: int | None = None


class _SeedLine(NamedTuple):
    """A seed as it is written: `file` is "" and `line` 0 where it is in the recipe."""

    text: str
    file: str = ""
    line: int = 0
    broken: bool = False
    fields: tuple[str, ...] = ()


class _UnusableSeed(Exception):
    """A seed that cannot be crawled; the argument is the reason."""


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


def external(config: CrawlConfig) -> dict[str, list[str]]:
    """Returns the files outside the store that the stage reads, by role."""
    return {"seed_files": list(config.seed_files)} if config.seed_files else {}


def member(number: int) -> str:
    """Returns the name of a partition: "p0", "p1", ..."""
    return f"p{number}"


def number_of(name: str) -> int:
    """Returns the partition called `name`."""
    return int(name.removeprefix("p"))


def file_of(number: int) -> str:
    """Returns the file of a partition's seeds within the artifact."""
    return f"seeds/{member(number)}.parquet"


def scope_of(config: CrawlConfig, seeds: Artifact, taken_down: Tombstones = NO_TOMBSTONES) -> Scope:
    """Returns the scope of the crawl: the hosts of the recipe, or those of its seeds, without what is taken down."""
    hosts = list(config.include_hosts) or json.loads(seeds.read(_HOSTS))
    return Scope(hosts, config.include_prefixes, config.include_pattern, config.exclude_pattern, taken_down)


def seeds_of(config: CrawlConfig) -> tuple[list[Seed], list[RejectedSeed]]:
    """Returns the seeds in the order of their URLs, each once as it is named last, and the lines that are none.

    Raises:
        InputError: a seed of the recipe cannot be crawled; a seed is on the public web and the recipe names no
            contact; a file cannot be read; no seed is left; or more lines are unusable than `max_bad_seeds` allows.
    """
    good: list[tuple[_SeedLine, Seed]] = []
    rejected: list[RejectedSeed] = []
    lines, grants = 0, Grants(config.allow_hosts)
    for named in _named(config):
        lines += bool(named.file)
        try:
            good.append((named, _checked(config, grants, named)))
        except _UnusableSeed as reason:
            rejected.append(_rejected(named, str(reason)))
    hosts = config.include_hosts or [seed.link.host for _, seed in good]
    scope = Scope(hosts, config.include_prefixes, config.include_pattern, config.exclude_pattern)
    rejected += [_rejected(named, _SCOPE) for named, seed in good if not scope.covers(seed.link.url)]
    found = {seed.link.url: seed for _, seed in good if scope.covers(seed.link.url)}
    _check_share(config, rejected, lines, len(found))
    files = list(config.seed_files)
    return [found[url] for url in sorted(found)], sorted(rejected, key=lambda one: (files.index(one.file), one.line))


def _named(config: CrawlConfig) -> Iterator[_SeedLine]:
    """Yields every seed as it is written."""
    for seed in config.seeds:
        yield _SeedLine(seed)
    for path in config.seed_files:
        try:
            with open(path, "rb") as file:
                for number, line in enumerate(file, 1):
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8", "replace")
                    seed, *fields = (field.strip() for field in _REMARK.split(text)[0].strip().split("\t"))
                    if seed and not seed.startswith("#"):
                        yield _SeedLine(seed, path, number, "\ufffd" in text, tuple(filter(None, fields)))
        except OSError as error:
            raise InputError(f"the seeds of {path} cannot be read ({error})", "correct [crawl] seed_files") from error


def _checked(config: CrawlConfig, grants: Grants, named: _SeedLine) -> Seed:
    if named.broken:
        raise _UnusableSeed("encoding")
    values = _values(named.fields)
    if "\t" in named.text:  # only in the recipe: a URL parser would leave it out
        raise _UnusableSeed(_FIELDS)
    url = canonical(named.text)
    if url is None:
        raise _refused(named, "url")
    if reason := refusal(url, allow_loopback=config.allow_loopback, grants=grants):
        raise _refused(named, reason)
    host = host_and_port(url)[0]
    if not config.contact and not is_loopback(host):
        raise InputError(
            f"contact is missing, and {host} ({_where(named)}) is on the public web",
            "set [crawl] contact to a page or to mailto:name@host, by which webmasters can reach you",
        )
    interval_s = values.get(_INTERVAL)
    return Seed(link(url), values.get(_SCORE, 1.0), None if interval_s is None else int(interval_s))


def _values(fields: Sequence[str]) -> dict[str, float]:
    """Returns the fields behind a URL by name."""
    values = {}
    for field in fields:
        name, _, value = field.partition("=")
        number = float(value) if _NUMBER.fullmatch(value) else 0.0
        if name not in _LEAST or number < _LEAST[name]:
            raise _UnusableSeed(_FIELDS)
        values[name] = number
    return values


def _check_share(config: CrawlConfig, rejected: Sequence[RejectedSeed], lines: int, seeds: int) -> None:
    if not seeds and not rejected:
        raise InputError("the crawl has no seeds", "name at least one URL in [crawl] seeds or seed_files")
    if not seeds:
        raise InputError(f"no seed is left: {summary(rejected)}", _WHY[rejected[0].reason][1])
    if len(rejected) > config.max_bad_seeds * lines:
        raise InputError(
            f"{summary(rejected)}; {lines} lines were read, and max_bad_seeds is {config.max_bad_seeds:g}",
            "mend the file, or raise [crawl] max_bad_seeds if the rest is what you mean",
        )


def _refused(named: _SeedLine, reason: str) -> Exception:
    """Returns the exception for a seed: a line of a file is rejected, a seed of the recipe is an error."""
    if named.file:
        return _UnusableSeed(reason)
    why, remedy = _WHY[reason]
    return InputError(f"the seed {_shown(named.text)!r} ({_RECIPE}) {why}", remedy)


def _rejected(named: _SeedLine, reason: str) -> RejectedSeed:
    if not named.file:
        raise _refused(named, reason)
    return RejectedSeed(named.file, named.line, _shown(named.text), reason, _WHY[reason][0])


def _where(named: _SeedLine) -> str:
    return f"{named.file}, line {named.line}" if named.file else _RECIPE


def _shown(text: str) -> str:
    # Lists may contain passwords; stored and logged lines do not.
    return _USER.sub("//...@", text)[:_MAX_TEXT]


def summary(rejected: Sequence[RejectedSeed]) -> str:
    """Returns text with the number of rejected lines by reason, and the first few of them."""
    reasons = ", ".join(f"{reason} {count}" for reason, count in Counter(one.reason for one in rejected).most_common())
    shown = "; ".join(f"{one.file}, line {one.line}: {one.text!r}" for one in rejected[:_SHOWN])
    return f"{len(rejected)} lines of seed files are no seeds ({reasons}): {shown}"


def to_table(rejected: Sequence[RejectedSeed]) -> pa.Table:
    """Returns the lines that are no seeds as a table (REJECTED)."""
    return pa.Table.from_arrays(
        [pa.array([row[at] for row in rejected], field.type) for at, field in enumerate(REJECTED)], schema=REJECTED
    )


def _write(part: Part, number: int, seeds: list[Seed]) -> None:
    part.count_in(len(seeds))
    part.count_out(len(seeds))
    rows = [
        {"key": to.key, "url": to.url, "host": to.host, "score": score, "interval_s": interval_s}
        for to, score, interval_s in seeds
    ]
    with part.file(file_of(number), rows=len(rows)) as file:
        pq.write_table(pa.Table.from_pylist(rows, schema=SEEDS), file, compression="zstd", compression_level=3)

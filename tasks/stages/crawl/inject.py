"""Stage `inject`: validates the seeds of a crawl, and splits them into partitions by registered domain.

Reads `seeds` and `seed_files` of the recipe. An invalid seed in the recipe is an error; an invalid line of a seed file
is rejected with its number and the reason. As in Nutch's seed lists, a line may have tab-separated fields after the
URL: `nutch.score=10` and `nutch.fetchInterval=86400` (seconds).

Writes `seeds/p<n>.parquet` (SEEDS) for every partition, also for empty ones; `hosts.json`, the hosts of all seeds; and
`rejected.parquet` (REJECTED), the rejected lines of seed files. The members of the artifact are the partitions.
"""

import json
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.artifact import Artifact
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Part, Report
from tasks.formats.documents.tombstones import NO_TOMBSTONES, Tombstones
from tasks.formats.hooks import Hooks
from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.domain import Link, link
from tasks.formats.web.scope import Scope
from tasks.formats.web.url import authority, host_and_port
from tasks.stages.crawl.config import CrawlConfig, is_loopback
from tasks.stages.crawl.http.address import PORT, PRIVATE, Grants, refusal

VERSION = 5

log = logging.getLogger("sluice.crawl")

SEEDS = pa.schema(
    [
        pa.field("key", pa.uuid(), nullable=False),
        pa.field("url", pa.string(), nullable=False),
        pa.field("host", pa.string(), nullable=False),
        pa.field("score", pa.float64(), nullable=False),  # factor of the page's score; 1 by default
        pa.field("interval_s", pa.int64()),  # seconds after which it is due again; null: depends on its changes
    ]
)

REJECTED = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("line", pa.int64(), nullable=False),  # number, from 1
        pa.field("text", pa.string(), nullable=False),  # at most 500 characters, without user name and password
        pa.field("reason", pa.string(), nullable=False),  # encoding, fields, url, private_address, port or scope
        pa.field("why", pa.string(), nullable=False),  # the reason as text
    ]
)
REJECTED_FILE = "rejected.parquet"
_HOSTS = "hosts.json"

_RECIPE = "[crawl] seeds"
_MAX_TEXT = 500
_MAX_EXAMPLES = 3
_USER = re.compile(r"//[^/?#\s]*@")
_SCOPE = "scope"
_FIELDS = "fields"
_SCORE, _INTERVAL = "nutch.score", "nutch.fetchInterval"
_MINIMUM = {_SCORE: 1e-9, _INTERVAL: 1.0}
_REMARK = re.compile(r"[ \t]#")
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9})?", re.ASCII)

_REACHABLE = (
    "name a public host on port 80 or 443, or allow other hosts by allow_hosts, this machine by allow_loopback = true"
)
_WHY = {
    "encoding": ("is no UTF-8", "save the file as UTF-8"),
    _FIELDS: (
        "has something behind a tab that is neither nutch.score nor nutch.fetchInterval with a number above 0",
        "write the URL alone, or http://host/<tab>nutch.score=10<tab>nutch.fetchInterval=86400",
    ),
    "url": ("cannot be fetched", "write an http or https URL without user name and password"),
    **{
        reason: (f"leads to an address that crawlers must not reach ({reason})", _REACHABLE)
        for reason in (PRIVATE, PORT)
    },
    _SCOPE: (
        "is not covered by the crawl",
        "add its host to include_hosts, correct include_prefixes or the patterns, or remove the seed",
    ),
}


class RejectedSeed(NamedTuple):
    """A rejected line of a seed file, with the columns of REJECTED."""

    file: str
    line: int
    text: str
    reason: str
    why: str


class Seed(NamedTuple):
    """A seed, the factor of its score, and the seconds after which it is due again (None: depends on its changes)."""

    link: Link
    score: float = 1.0
    interval_s: int | None = None


class _SeedLine(NamedTuple):
    """A seed as written; in the recipe, `file` is "" and `line` is 0. `broken`: not valid UTF-8."""

    text: str
    file: str = ""
    line: int = 0
    broken: bool = False
    fields: tuple[str, ...] = ()


class _UnusableSeed(Exception):
    """A seed cannot be crawled; the argument is the reason."""


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
            for reason, count in Counter(row.reason for row in rejected).items():
                part.reject(reason, count)
            with part.file(REJECTED_FILE, rows=len(rejected)) as file:
                pq.write_table(to_table(rejected), file, compression="zstd", compression_level=3)
            with part.file(_HOSTS) as file:
                file.write(json.dumps(sorted({seed.link.host for seed in seeds})).encode())
    members = tuple(member(number) for number in range(config.partitions))
    more = f"; {len(rejected)} lines of seed files are none, see {REJECTED_FILE}" if rejected else ""
    metrics = {"seeds": float(len(seeds)), "bad_seeds": float(len(rejected))}
    return Report(metrics, members, f"{len(seeds)} seeds in {config.partitions} partitions{more}")


def external(config: CrawlConfig) -> dict[str, list[str]]:
    """Returns the files outside the store that the stage reads, by role."""
    return {"seed_files": list(config.seed_files)} if config.seed_files else {}


HOOKS = Hooks(external=external)


def member(number: int) -> str:
    """Returns the name of a partition: "p0", "p1", ..."""
    return f"p{number}"


def number_of(name: str) -> int:
    """Returns the partition called `name`."""
    return int(name.removeprefix("p"))


def file_of(number: int) -> str:
    """Returns the path of a partition's seeds within the artifact."""
    return f"seeds/{member(number)}.parquet"


def scope_of(config: CrawlConfig, seeds: Artifact, taken_down: Tombstones = NO_TOMBSTONES) -> Scope:
    """Returns the scope of the crawl: the hosts of the recipe, or those of its seeds, except what is taken down."""
    return scope_from(config, json.loads(seeds.read(_HOSTS)), taken_down)


def scope_from(config: CrawlConfig, seed_hosts: Iterable[str], taken_down: Tombstones = NO_TOMBSTONES) -> Scope:
    """Returns the scope of a crawl with seeds on these hosts."""
    hosts = config.include_hosts or seed_hosts
    return Scope(hosts, config.include_prefixes, config.include_pattern, config.exclude_pattern, taken_down)


def seeds_of(config: CrawlConfig) -> tuple[list[Seed], list[RejectedSeed]]:
    """Returns the seeds, sorted by URL, and the rejected lines of seed files; of duplicate seeds the last one counts.

    Raises:
        InputError: a seed of the recipe cannot be crawled; a seed is on the public web and the recipe names no
            contact; a file cannot be read; there is no seed; or more lines are rejected than `max_bad_seeds` allows.
    """
    valid: list[tuple[_SeedLine, Seed]] = []
    rejected: list[RejectedSeed] = []
    lines, grants = 0, Grants(config.allow_hosts, allow_loopback=config.allow_loopback)
    for line in _seed_lines(config):
        lines += bool(line.file)
        try:
            valid.append((line, _parse(config, grants, line)))
        except _UnusableSeed as reason:
            rejected.append(_reject(line, str(reason)))
    scope = scope_from(config, (seed.link.host for _, seed in valid))
    rejected += [_reject(line, _SCOPE) for line, seed in valid if not scope.covers(seed.link.url)]
    seeds = {seed.link.key: seed for _, seed in valid if scope.covers(seed.link.url)}
    _check_share(config, rejected, lines, len(seeds))
    files = list(config.seed_files)
    rejected.sort(key=lambda row: (files.index(row.file), row.line))
    return sorted(seeds.values(), key=lambda seed: seed.link.url), rejected


def _seed_lines(config: CrawlConfig) -> Iterator[_SeedLine]:
    """Yields the seeds of the recipe and of its seed files."""
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


def _parse(config: CrawlConfig, grants: Grants, line: _SeedLine) -> Seed:
    if line.broken:
        raise _UnusableSeed("encoding")
    values = _values(line.fields)
    if "\t" in line.text:  # only in the recipe: a URL parser would drop it
        raise _UnusableSeed(_FIELDS)
    url = canonical(line.text)
    if url is None:
        raise _seed_error(line, "url")
    if reason := refusal(authority(url), grants):
        raise _seed_error(line, reason)
    host = host_and_port(url)[0]
    if not config.contact and not is_loopback(host):
        source = f"{line.file}, line {line.line}" if line.file else _RECIPE
        raise InputError(
            f"contact is missing, and {host} ({source}) is on the public web",
            "set [crawl] contact to a page or to mailto:name@host, by which webmasters can reach you",
        )
    interval_s = values.get(_INTERVAL)
    return Seed(link(url), values.get(_SCORE, 1.0), None if interval_s is None else int(interval_s))


def _values(fields: Sequence[str]) -> dict[str, float]:
    """Returns the fields after a URL, by name; raises _UnusableSeed."""
    values = {}
    for field in fields:
        name, _, value = field.partition("=")
        number = float(value) if _NUMBER.fullmatch(value) else 0.0
        if name not in _MINIMUM or number < _MINIMUM[name]:
            raise _UnusableSeed(_FIELDS)
        values[name] = number
    return values


def _check_share(config: CrawlConfig, rejected: Sequence[RejectedSeed], lines: int, seeds: int) -> None:
    if not seeds and not rejected:
        raise InputError("the crawl has no seeds", "name at least one URL in [crawl] seeds or seed_files")
    if not seeds:
        raise InputError(f"no seed is usable: {summary(rejected)}", _WHY[rejected[0].reason][1])
    if len(rejected) > config.max_bad_seeds * lines:
        raise InputError(
            f"{summary(rejected)}; {lines} lines were read, and max_bad_seeds is {config.max_bad_seeds:g}",
            "correct the file, or raise [crawl] max_bad_seeds if the other lines are the intended seeds",
        )


def _seed_error(line: _SeedLine, reason: str) -> Exception:
    """Returns the exception for an unusable seed: InputError in the recipe, _UnusableSeed in a seed file."""
    if line.file:
        return _UnusableSeed(reason)
    why, remedy = _WHY[reason]
    return InputError(f"the seed {_redacted(line.text)!r} ({_RECIPE}) {why}", remedy)


def _reject(line: _SeedLine, reason: str) -> RejectedSeed:
    if not line.file:
        raise _seed_error(line, reason)
    return RejectedSeed(line.file, line.line, _redacted(line.text), reason, _WHY[reason][0])


def _redacted(text: str) -> str:
    # Seed files may contain passwords, which must not be stored or logged.
    return _USER.sub("//...@", text)[:_MAX_TEXT]


def summary(rejected: Sequence[RejectedSeed]) -> str:
    """Returns the number of rejected lines by reason, and the first few of them, as text."""
    reasons = ", ".join(f"{reason} {count}" for reason, count in Counter(row.reason for row in rejected).most_common())
    examples = "; ".join(f"{row.file}, line {row.line}: {row.text!r}" for row in rejected[:_MAX_EXAMPLES])
    return f"{len(rejected)} lines of seed files are not seeds ({reasons}): {examples}"


def to_table(rejected: Sequence[RejectedSeed]) -> pa.Table:
    """Returns rejected lines as a table (REJECTED)."""
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

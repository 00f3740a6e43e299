"""The crawl DB: all known URLs and hosts, one immutable generation per partition and cycle.

A generation is valid once the cycle's `warc` artifact, which names it, is published: that record is the pointer that is
swapped. Status words are Nutch's. Files of one partition (artifact `crawldb/p<n>`):

- `urls.parquet` (URLS): URLs in the order in which cycles found them, by key within a cycle
- `hosts.parquet` (HOSTS), `robots.parquet` (ROBOTS): state of hosts, by name
- `edges.parquet` (EDGES): which host links to which
- `known.bloom` (Known): the keys once more, as a Bloom filter

Old generations that nothing reads any more can be removed (`generations`, `remove`): the files of `crawldb/p<n>` go,
their records stay, so lineage stays whole and no stage is run again, and `.pruned.json` beside each says when and why.
"""

import json
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
from rbloom import Bloom

from tasks.core.artifact import RECORD, Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.ledger import newest, versions_of
from tasks.core.store import Store

URLS_FILE = "urls.parquet"
HOSTS_FILE = "hosts.parquet"
ROBOTS_FILE = "robots.parquet"
EDGES_FILE = "edges.parquet"
KNOWN_FILE = "known.bloom"

MARK = ".pruned.json"

UNFETCHED = "db_unfetched"
FETCHED = "db_fetched"
NOT_MODIFIED = "db_notmodified"
DUPLICATE = "db_duplicate"
GONE = "db_gone"
REDIRECT_TEMPORARY = "db_redir_temp"
REDIRECT_PERMANENT = "db_redir_perm"

DAY_S = 86400
# A page is fetched again after a week; from then on the interval depends on its changes.
FIRST_INTERVAL_S = 7 * DAY_S
SHORTEST_INTERVAL_S = DAY_S
LONGEST_INTERVAL_S = 30 * DAY_S
UNCHANGED_FACTOR = 1.5
CHANGED_FACTOR = 0.5
# Tries in a row without an answer after which a page is gone.
MAX_FAILS = 5
# Reasons that take back the permission to keep what was captured before.
WITHDRAWN = ("robots_denied", "noindex", "ai_optout", "http_451")
# How long the rules of a robots.txt may be used (RFC 9309, 2.4).
ROBOTS_S = DAY_S

# The host of a canonical URL in SQL; a column of its own would cost a tenth of every update.
HOST_OF_URL = "split_part(url, '/', 3)"

_TIME = pa.timestamp("us", tz="UTC")

URLS = pa.schema(
    [
        pa.field("key", pa.uuid()),  # tasks.formats.web.url.key; as a UUID because DuckDB joins those as integers
        pa.field("url", pa.string()),
        pa.field("status", pa.string()),
        pa.field("reason", pa.string()),  # of the last try without a capture
        pa.field("kind", pa.string()),  # page, sitemap or feed
        pa.field("depth", pa.int32()),
        pa.field("first_seen", _TIME),
        pa.field("last_fetch", _TIME),
        pa.field("next_due", _TIME),
        pa.field("interval_s", pa.int64()),
        pa.field("fails", pa.int32()),
        pa.field("etag", pa.string()),
        pa.field("last_modified", pa.string()),
        # The last full capture; "" and null before the first.
        pa.field("payload_digest", pa.string()),
        pa.field("record_id", pa.uuid()),
        pa.field("warc_path", pa.string()),  # relative to the store
        pa.field("warc_offset", pa.int64()),
        pa.field("captured_at", _TIME),
        pa.field("canonical", pa.string()),  # the page's rel="canonical" link, or ""
        pa.field("redirect", pa.string()),  # where its last answer led, or ""
        pa.field("takedown", pa.string()),  # why the capture may no longer be kept, or ""
        pa.field("terms", pa.string()),  # what was stated of its use when the capture was made, as JSON, or ""
    ]
)

HOSTS = pa.schema(
    [
        pa.field("host", pa.string()),
        pa.field("domain", pa.string()),  # as registered
        pa.field("crawl_delay_s", pa.float64()),
        pa.field("latency_s", pa.float64()),
        pa.field("failures", pa.int32()),  # in a row, at the end of the last cycle that requested it
        pa.field("backoff_until", _TIME),
        pa.field("requests", pa.int64()),  # of all cycles, as are pages, errors and traps
        pa.field("pages", pa.int64()),
        pa.field("errors", pa.int64()),
        pa.field("traps", pa.int64()),  # links that were refused as traps
    ]
)

ROBOTS = pa.schema(
    [
        pa.field("origin", pa.string()),  # scheme and authority
        pa.field("host", pa.string()),
        pa.field("status", pa.string()),  # ok or missing
        pa.field("body", pa.binary()),
        pa.field("crawl_delay_s", pa.float64()),
        pa.field("fetched_at", _TIME),
        pa.field("tdm", pa.binary()),  # tdmrep.json; empty if there is no readable one, null if unknown
    ]
)

EDGES = pa.schema([pa.field("source", pa.string()), pa.field("target", pa.string())])

_ERROR = 1e-4
_SMALLEST = 100_000
_LENGTH = 8
_CRAWLDB, _COMPLETE = "crawldb", "warc"


class KnownUrls:
    """The keys of the URLs that a partition knows, as a Bloom filter: false positives, no false negatives.

    A pre-filter for every link during a fetch: one link in 10,000 is wrongly reported as known and is not fetched in
    the cycle that finds it; the exact join of update adds it anyway, and the next cycle fetches it. A filter has 19
    bits per key and processes some 3 million keys per CPU-second.

    Args:
        capacity: number of keys at an error rate of 0.01 %.
    """

    def __init__(self, capacity: int = _SMALLEST) -> None:
        self.capacity = max(capacity, _SMALLEST)
        # Keys are hashes already: their bits are the hash. (Python's own hash() differs from process to process.)
        self._bloom = Bloom(self.capacity, _ERROR, operator.index)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes) and int.from_bytes(key[:8], signed=True) in self._bloom

    def add(self, keys: bytes) -> None:
        """Adds keys, 16 bytes each, one behind the other."""
        # Half of a key is enough for an error rate of one in 10,000.
        self._bloom.update(np.frombuffer(keys, ">i8")[::2].tolist())

    def to_bytes(self) -> bytes:
        """Returns what `from_bytes` reads."""
        return self.capacity.to_bytes(_LENGTH) + self._bloom.save_bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> "KnownUrls":
        """Reads a filter."""
        made = cls.__new__(cls)
        made.capacity = int.from_bytes(data[:_LENGTH])
        made._bloom = Bloom.load_bytes(data[_LENGTH:], operator.index)
        return made


@dataclass(frozen=True)
class Generation:
    """The crawl DB of one cycle.

    Attributes:
        version: of the cycle.
        finished: when its last partition was written.
        bytes: of its files.
        databases: its partitions.
        kept: why it stays, or "".
    """

    version: str
    finished: datetime
    bytes: int
    databases: tuple[Artifact, ...]
    kept: str


def generations(
    store: Store, recipe: str, keep: int, older_than: timedelta, now: datetime | None = None
) -> list[Generation]:
    """Returns the generations whose files are there, the newest first, and whether each is to stay.

    To stay are the newest `keep`, those younger than `older_than`, and what a later cycle reads or may read: the one
    that the next cycle begins from, those of cycles that are not complete, and those that such cycles began from.

    Raises:
        InputError: `keep` is below 1, or a record cannot be read.
    """
    if keep < 1:
        raise InputError("--keep is below 1", "the next cycle begins from the newest generation, so it has to stay")
    now = now or datetime.now(UTC)
    needed = _required(store, recipe)
    found = []
    for version, databases in _by_version(store, recipe).items():
        there = [one for one in databases if store.exists(_last_file(one))]
        if there:
            finished = max(one.record.finished for one in databases)
            size = sum(one.record.bytes for one in there)
            found.append((finished, version, size, tuple(databases)))
    found.sort(reverse=True)
    rows = []
    for place, (finished, version, size, partitions) in enumerate(found):
        kept = next((needed[one.address] for one in partitions if one.address in needed), "")
        if not kept and place < keep:
            kept = f"one of the newest {keep}"
        if not kept and now - finished < older_than:
            kept = f"younger than {older_than.days} days"
        rows.append(Generation(version, finished, size, partitions, kept))
    return rows


def remove(generation: Generation, why: str) -> None:
    """Removes the files of a generation; raises ValueError for one that is to stay. May be repeated after a kill."""
    if generation.kept:
        raise ValueError(f"{generation.version} stays: {generation.kept}")
    for one in generation.databases:
        with one.store.write(_marker(one)) as file:
            file.write(json.dumps({"at": datetime.now(UTC).isoformat(), "why": why}).encode())
        for path in one.files():
            one.store.remove(f"{one.path}/{path}")


def require(database: Artifact) -> None:
    """Raises InputError where the files of a crawl DB were removed."""
    if database.store.exists(_marker(database)):
        when = json.loads(database.store.read(_marker(database)))["at"][:16]
        raise InputError(f"the files of {database.address} were removed on {when} (prune)", "name a newer version")


def _last_file(database: Artifact) -> str:
    """Returns the path of the file that is removed last."""
    return f"{database.path}/{database.files()[-1]}"


def _marker(database: Artifact) -> str:
    return f"{database.path}/{MARK}"


def _by_version(store: Store, recipe: str) -> dict[str, list[Artifact]]:
    found: dict[str, list[Artifact]] = {}
    for member in store.folders(f"{recipe}/{_CRAWLDB}"):
        for one in versions_of(store, f"{recipe}/{_CRAWLDB}/{member}"):
            found.setdefault(one.address.version, []).append(one)
    return found


def _required(store: Store, recipe: str) -> dict[ArtifactId, str]:
    """Returns the crawl DBs that a later cycle reads or may read, and why."""
    complete = newest(store, f"{recipe}/{_COMPLETE}")
    needed = dict.fromkeys(_databases_read_by([complete] if complete else [], recipe), "the next cycle begins from it")
    members = (*store.folders(f"{recipe}/fetchlist"), *store.folders(f"{recipe}/{_CRAWLDB}"))
    lists = [f"{recipe}/ranks", *(f"{recipe}/fetchlist/{member}" for member in dict.fromkeys(members))]
    databases = [f"{recipe}/{_CRAWLDB}/{member}" for member in dict.fromkeys(members)]
    for version in store.folders(f"{recipe}/seeds"):
        if store.exists(f"{recipe}/{_COMPLETE}/{version}/{RECORD}"):
            continue
        begun_from = _databases_read_by(_existing(store, lists, version), recipe)
        needed |= dict.fromkeys(begun_from, f"{version} began from it and is not complete")
        needed |= {one.address: "its cycle is not complete" for one in _existing(store, databases, version)}
    return needed


def _existing(store: Store, names: Iterable[str], version: str) -> list[Artifact]:
    """Returns those of some artifacts that are there at a version."""
    return list(filter(None, (Artifact.find(store, ArtifactId(name, version)) for name in names)))


def _databases_read_by(artifacts: Iterable[Artifact], recipe: str) -> list[ArtifactId]:
    refs = (ArtifactId.parse(ref.address) for one in artifacts for ref in one.record.inputs if "@" in ref.address)
    return [address for address in refs if address.name.startswith(f"{recipe}/{_CRAWLDB}/")]

"""The crawl DB: all known URLs and hosts, one immutable generation per partition and cycle.

A generation becomes valid when the cycle's `warc` artifact, which refers to it, is published: one record makes all
partitions current at once. The status names are those of Apache Nutch. Files of one partition (artifact
`crawldb/p<n>`):

- `urls.parquet` (URLS): URLs in the order in which cycles found them, sorted by key within a cycle
- `hosts.parquet` (HOSTS), `robots.parquet` (ROBOTS): state of hosts, sorted by name
- `edges.parquet` (EDGES): links between hosts
- `known.bloom` (KnownUrls): a Bloom filter of the keys

Old generations that are no longer read can be removed (`generations`, `remove`): the files of `crawldb/p<n>` are
deleted and their records kept, so that lineage stays complete and no stage runs again. `.pruned.json` beside each
record has the time and the reason.
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
# A page is fetched again after a week; later intervals depend on its changes.
FIRST_INTERVAL_S = 7 * DAY_S
SHORTEST_INTERVAL_S = DAY_S
LONGEST_INTERVAL_S = 30 * DAY_S
UNCHANGED_FACTOR = 1.5
CHANGED_FACTOR = 0.5
# Number of consecutive failed attempts after which a page counts as gone.
MAX_FAILS = 5
# Reasons that withdraw the permission to keep earlier captures.
WITHDRAWN = ("robots_denied", "noindex", "ai_optout", "http_451")
# Seconds for which a robots.txt may be cached (RFC 9309, section 2.4).
ROBOTS_S = DAY_S

# The host of a canonical URL in SQL; a column of its own would cost a tenth of every update.
HOST_OF_URL = "split_part(url, '/', 3)"

_TIME = pa.timestamp("us", tz="UTC")

URLS = pa.schema(
    [
        pa.field("key", pa.uuid()),  # tasks.formats.web.url.key; as a UUID because DuckDB joins those as integers
        pa.field("url", pa.string()),
        pa.field("status", pa.string()),
        pa.field("reason", pa.string()),  # of the last attempt without a capture
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
        pa.field("redirect", pa.string()),  # target of the last response, or ""
        pa.field("takedown", pa.string()),  # the reason why the capture may no longer be kept, or ""
        pa.field("terms", pa.string()),  # terms of use at the time of the capture, as JSON, or ""
    ]
)

HOSTS = pa.schema(
    [
        pa.field("host", pa.string()),
        pa.field("domain", pa.string()),  # the registered domain
        pa.field("crawl_delay_s", pa.float64()),
        pa.field("latency_s", pa.float64()),
        pa.field("failures", pa.int32()),  # consecutive failures at the end of the last cycle that requested it
        pa.field("backoff_until", _TIME),
        pa.field("requests", pa.int64()),  # sum over all cycles, like pages, errors and traps
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
        pa.field("tdm", pa.binary()),  # tdmrep.json; empty if missing or unreadable, null if unknown
    ]
)

EDGES = pa.schema([pa.field("source", pa.string()), pa.field("target", pa.string())])

_ERROR = 1e-4
_SMALLEST = 100_000
_LENGTH = 8
_CRAWLDB, _COMPLETE = "crawldb", "warc"


class KnownUrls:
    """Bloom filter of the keys of the URLs of one partition: false positives, no false negatives.

    It pre-filters every link during a fetch: one new link in 10,000 is reported as known by mistake and is not fetched
    in the cycle that finds it; the exact join of update adds it, and the next cycle fetches it. A filter has 19 bits
    per key and processes about 3 million keys per CPU-second.

    Args:
        capacity: number of keys up to which the error rate is at most 0.01 %.
    """

    def __init__(self, capacity: int = _SMALLEST) -> None:
        self.capacity = max(capacity, _SMALLEST)
        # Keys are hashes, so their bits are used as the hash. (Python's hash() differs from process to process.)
        self._bloom = Bloom(self.capacity, _ERROR, operator.index)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes) and int.from_bytes(key[:8], signed=True) in self._bloom

    def add(self, keys: bytes) -> None:
        """Adds concatenated keys of 16 bytes each."""
        # The first half of each key is enough for an error rate of one in 10,000.
        self._bloom.update(np.frombuffer(keys, ">i8")[::2].tolist())

    def to_bytes(self) -> bytes:
        """Returns the serialized filter, which `from_bytes` reads."""
        return self.capacity.to_bytes(_LENGTH) + self._bloom.save_bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> "KnownUrls":
        """Returns the filter that `to_bytes` has serialized."""
        known = cls.__new__(cls)
        known.capacity = int.from_bytes(data[:_LENGTH])
        known._bloom = Bloom.load_bytes(data[_LENGTH:], operator.index)
        return known


@dataclass(frozen=True)
class Generation:
    """The crawl DB of one cycle.

    Attributes:
        version: version of the cycle.
        finished: time at which the last partition was written.
        bytes: size of its files.
        databases: artifacts of its partitions.
        keep_reason: the reason why it must be kept, or "".
    """

    version: str
    finished: datetime
    bytes: int
    databases: tuple[Artifact, ...]
    keep_reason: str


def generations(
    store: Store, recipe: str, keep: int, older_than: timedelta, now: datetime | None = None
) -> list[Generation]:
    """Returns the generations whose files exist, newest first, with the reason for each that must be kept.

    Kept are the newest `keep`, those younger than `older_than`, and those that a later cycle may read: the one that the
    next cycle starts from, those of incomplete cycles, and those that incomplete cycles started from.

    Raises:
        InputError: `keep` is below 1, or a record cannot be read.
    """
    if keep < 1:
        raise InputError("--keep is below 1", "keep at least one: the next cycle starts from the newest generation")
    now = now or datetime.now(UTC)
    required = _required(store, recipe)
    candidates = []
    for version, databases in _by_version(store, recipe).items():
        existing = [database for database in databases if store.exists(_last_file(database))]
        if existing:
            finished = max(database.record.finished for database in databases)
            size = sum(database.record.bytes for database in existing)
            candidates.append((finished, version, size, tuple(databases)))
    candidates.sort(reverse=True)
    rows = []
    for rank, (finished, version, size, partitions) in enumerate(candidates):
        reason = next((required[database.address] for database in partitions if database.address in required), "")
        if not reason and rank < keep:
            reason = f"one of the newest {keep}"
        if not reason and now - finished < older_than:
            reason = f"younger than {older_than.days} days"
        rows.append(Generation(version, finished, size, partitions, reason))
    return rows


def remove(generation: Generation, why: str) -> None:
    """Removes the files of a generation. It can be repeated after a kill.

    Raises:
        ValueError: the generation must be kept.
    """
    if generation.keep_reason:
        raise ValueError(f"{generation.version} must be kept: {generation.keep_reason}")
    for database in generation.databases:
        with database.store.write(_marker(database)) as file:
            file.write(json.dumps({"at": datetime.now(UTC).isoformat(), "why": why}).encode())
        for path in database.files():
            database.store.remove(f"{database.path}/{path}")


def require(database: Artifact) -> None:
    """Raises InputError if the files of a crawl DB have been removed."""
    if database.store.exists(_marker(database)):
        when = json.loads(database.store.read(_marker(database)))["at"][:16]
        raise InputError(f"the files of {database.address} were removed on {when} (prune)", "use a newer version")


def _last_file(database: Artifact) -> str:
    """Returns the path of the file that is removed last."""
    return f"{database.path}/{database.files()[-1]}"


def _marker(database: Artifact) -> str:
    return f"{database.path}/{MARK}"


def _by_version(store: Store, recipe: str) -> dict[str, list[Artifact]]:
    by_version: dict[str, list[Artifact]] = {}
    for member in store.folders(f"{recipe}/{_CRAWLDB}"):
        for database in versions_of(store, f"{recipe}/{_CRAWLDB}/{member}"):
            by_version.setdefault(database.address.version, []).append(database)
    return by_version


def _required(store: Store, recipe: str) -> dict[ArtifactId, str]:
    """Returns the crawl DBs that a later cycle may read, with the reason."""
    complete = newest(store, f"{recipe}/{_COMPLETE}")
    required = dict.fromkeys(
        _databases_read_by([complete] if complete else [], recipe), "the next cycle begins from it"
    )
    members = (*store.folders(f"{recipe}/fetchlist"), *store.folders(f"{recipe}/{_CRAWLDB}"))
    lists = [f"{recipe}/ranks", *(f"{recipe}/fetchlist/{member}" for member in dict.fromkeys(members))]
    databases = [f"{recipe}/{_CRAWLDB}/{member}" for member in dict.fromkeys(members)]
    for version in store.folders(f"{recipe}/seeds"):
        if store.exists(f"{recipe}/{_COMPLETE}/{version}/{RECORD}"):
            continue
        begun_from = _databases_read_by(_existing(store, lists, version), recipe)
        required |= dict.fromkeys(begun_from, f"{version} began from it and is not complete")
        required |= {database.address: "its cycle is not complete" for database in _existing(store, databases, version)}
    return required


def _existing(store: Store, names: Iterable[str], version: str) -> list[Artifact]:
    """Returns the artifacts with these names that exist at a version."""
    return list(filter(None, (Artifact.find(store, ArtifactId(name, version)) for name in names)))


def _databases_read_by(artifacts: Iterable[Artifact], recipe: str) -> list[ArtifactId]:
    inputs = (ref for artifact in artifacts for ref in artifact.record.inputs if "@" in ref.address)
    refs = (ArtifactId.parse(ref.address) for ref in inputs)
    return [address for address in refs if address.name.startswith(f"{recipe}/{_CRAWLDB}/")]

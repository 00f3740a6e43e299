"""The crawl DB: all known URLs and hosts, one immutable generation per partition and cycle.

A generation becomes valid when the cycle's `warc` artifact, which refers to it, is published: one record makes all
partitions current at once. The status names are those of Apache Nutch. Files of one partition (artifact
`crawldb/p<n>`):

- `urls.parquet` (URLS): URLs in the order in which cycles found them, sorted by key within a cycle
- `hosts.parquet` (HOSTS), `robots.parquet` (ROBOTS): state of hosts, sorted by name
- `edges.parquet` (EDGES): links between hosts
- `known.bloom` (KnownUrls): a Bloom filter of the keys

Only the newest generation is read again, and the one that an unfinished cycle began from: `tasks.run.retention`
removes the files of the others.
"""

import operator

import numpy as np
import pyarrow as pa
from rbloom import Bloom

URLS_FILE = "urls.parquet"
HOSTS_FILE = "hosts.parquet"
ROBOTS_FILE = "robots.parquet"
EDGES_FILE = "edges.parquet"
KNOWN_FILE = "known.bloom"

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
        pa.field("files", pa.map_(pa.string(), pa.binary())),  # `HostRobots.files`
    ]
)

EDGES = pa.schema([pa.field("source", pa.string()), pa.field("target", pa.string())])

_ERROR = 1e-4
_SMALLEST = 100_000
_LENGTH = 8


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

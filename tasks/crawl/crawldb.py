"""The crawl DB: every URL the crawl knows, one immutable Parquet file per partition and cycle.

Written by update, read by the generate of the next cycle. Status words are Nutch's.
"""

import pyarrow as pa

from tasks.artifact import Artifact
from tasks.errors import InputError

UNFETCHED = "db_unfetched"
FETCHED = "db_fetched"
NOT_MODIFIED = "db_notmodified"
GONE = "db_gone"
REDIRECT_TEMPORARY = "db_redir_temp"
REDIRECT_PERMANENT = "db_redir_perm"

DAY_S = 86400
# A page seen once is looked at again after a week; from then on its own changes set the pace.
FIRST_INTERVAL_S = 7 * DAY_S
SHORTEST_INTERVAL_S = DAY_S
LONGEST_INTERVAL_S = 30 * DAY_S
UNCHANGED_FACTOR = 1.5
CHANGED_FACTOR = 0.5
# Tries in a row without an answer after which a page is gone.
MAX_FAILS = 5

_TIME = pa.timestamp("ms", tz="UTC")

CRAWLDB = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("url", pa.string(), nullable=False),
        pa.field("host", pa.string(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),  # of the last try without a capture
        pa.field("depth", pa.int32(), nullable=False),
        pa.field("first_seen", _TIME),
        pa.field("last_fetch", _TIME),
        pa.field("next_due", _TIME),
        pa.field("interval_s", pa.int64(), nullable=False),
        pa.field("fails", pa.int32(), nullable=False),
        pa.field("etag", pa.string(), nullable=False),
        pa.field("last_modified", pa.string(), nullable=False),
        # The last full capture; "" and null before the first.
        pa.field("payload_digest", pa.string(), nullable=False),
        pa.field("record_id", pa.string(), nullable=False),
        pa.field("warc_path", pa.string(), nullable=False),  # relative to the store
        pa.field("warc_offset", pa.int64()),
        pa.field("captured_at", _TIME),
    ]
)


def file_of(number: int) -> str:
    """Returns the file of a partition within the artifact."""
    return f"db/p{number}.parquet"


def read(crawldb: Artifact, partitions: int, number: int) -> pa.Table:
    """Returns one partition of a crawl DB.

    Raises:
        InputError: the DB was made with another number of partitions.
    """
    held = len(crawldb.files("db/"))
    if held != partitions:
        raise InputError(
            f"{crawldb.address} has {held} partitions, the recipe asks for {partitions}",
            f"set [crawl] partitions = {held}, or begin a new crawl under another recipe name",
        )
    return crawldb.table(file_of(number))

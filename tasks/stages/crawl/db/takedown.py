"""Takedown in the crawl DB, as SQL: rows of what is taken down are gone for good, and never due.

Where a row has a capture, the mark `takedown` says so, as for a page that its site has withdrawn. A row that is never
due and is not taken down any more was lifted: it is due at once, and without the mark.
"""

from datetime import datetime

import duckdb

from tasks.formats.tombstones import TAKEDOWN, Tombstones
from tasks.formats.web.url import key
from tasks.stages.crawl.db import crawldb, duck

_MARKED = f"""
SELECT * EXCLUDE (taken_down) REPLACE (
  CASE WHEN taken_down THEN '{crawldb.GONE}' WHEN next_due IS NOT NULL THEN status
    WHEN warc_path <> '' THEN '{crawldb.FETCHED}' ELSE '{crawldb.UNFETCHED}' END AS status,
  CASE WHEN taken_down THEN '{TAKEDOWN}' WHEN next_due IS NOT NULL THEN reason ELSE '' END AS reason,
  CASE WHEN taken_down THEN NULL ELSE coalesce(next_due, CAST($now AS TIMESTAMPTZ)) END AS next_due,
  CASE WHEN taken_down AND warc_path <> '' THEN '{TAKEDOWN}'
    WHEN NOT taken_down AND takedown = '{TAKEDOWN}' THEN '' ELSE takedown END AS takedown
) FROM (
  SELECT *, key IN (SELECT CAST(key AS UUID) FROM taken_urls)
    OR {crawldb.HOST_OF_URL} IN (SELECT host FROM taken_hosts) AS taken_down
  FROM ($merged)
)
"""


def marked(connection: duckdb.DuckDBPyConnection, merged: str, tombstones: Tombstones, now: datetime) -> str:
    """Returns the query `merged` (crawldb.URLS) with the rows of what is taken down marked; registers what it reads.

    Args:
        connection: with the views `previous` and `new` of URLs.
        merged: the query of all rows.
        tombstones: what is taken down.
        now: when lifted rows are due.
    """
    query = f"SELECT {crawldb.HOST_OF_URL} FROM previous UNION SELECT {crawldb.HOST_OF_URL} FROM new"
    hosts = [host for (host,) in connection.execute(query).fetchall() if tombstones.covers_host(host)]
    connection.register("taken_hosts", duck.strings(host=hosts))
    connection.register("taken_urls", duck.strings(key=(key(url).hex() for url in tombstones.spellings)))
    return _MARKED.replace("$now", duck.quoted(now.isoformat(timespec="milliseconds"))).replace("$merged", merged)

"""Takedown in the crawl DB, as SQL: rows of what is taken down are gone for good, and never due.

Where a row has a capture, the mark `takedown` says so, as for a page that its site has withdrawn.
"""

import duckdb

from tasks.formats.tombstones import TAKEDOWN, Tombstones
from tasks.formats.url import key
from tasks.stages.crawl.db import crawldb, duck

_MARKED = f"""
SELECT * EXCLUDE (taken_down) REPLACE (
  CASE WHEN taken_down THEN '{crawldb.GONE}' ELSE status END AS status,
  CASE WHEN taken_down THEN '{TAKEDOWN}' ELSE reason END AS reason,
  CASE WHEN taken_down THEN NULL ELSE next_due END AS next_due,
  CASE WHEN taken_down AND warc_path <> '' THEN '{TAKEDOWN}' ELSE takedown END AS takedown
) FROM (
  SELECT *, key IN (SELECT CAST(key AS UUID) FROM taken_urls)
    OR {crawldb.HOST_OF_URL} IN (SELECT host FROM taken_hosts) AS taken_down
  FROM ($merged)
)
"""


def marked(connection: duckdb.DuckDBPyConnection, merged: str, tombstones: Tombstones) -> str:
    """Returns the query `merged` (crawldb.URLS) with the rows of what is taken down marked; registers what it reads.

    Args:
        connection: with the views `previous` and `new` of URLs.
        merged: the query of all rows.
        tombstones: what is taken down.
    """
    query = f"SELECT {crawldb.HOST_OF_URL} FROM previous UNION SELECT {crawldb.HOST_OF_URL} FROM new"
    hosts = [host for (host,) in connection.execute(query).fetchall() if tombstones.covers_host(host)]
    connection.register("taken_hosts", duck.strings(host=hosts))
    connection.register("taken_urls", duck.strings(key=(key(url).hex() for url in tombstones.spellings)))
    return _MARKED.replace("$merged", merged)

"""Priorities of hosts: `priorities.parquet`, factors of the score of hosts in a crawl.

The stage `prioritize` writes them, and the crawl reads those that a recipe names (`crawl.priorities`).
"""

import pyarrow as pa

FILE = "priorities.parquet"
PRIORITIES = pa.schema(
    [
        pa.field("host", pa.string(), nullable=False),
        pa.field("documents", pa.int64(), nullable=False),
        pa.field("factor", pa.float64(), nullable=False),
    ]
)
"""A row per host, sorted by host: kept documents, and the factor of its score; that of a host without a row is 1."""

"""The crawl, from seeds to WARC files: one DAG run per cycle (generate, fetch per partition, update, publish)."""

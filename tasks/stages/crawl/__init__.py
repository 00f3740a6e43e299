"""The crawl: seeds to WARC files, one Airflow DAG run per cycle (generate, fetch per partition, update, publish)."""

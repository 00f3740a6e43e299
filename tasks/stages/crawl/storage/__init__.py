"""The tables and files of the crawl: crawl DB, fetch list, fetch log, WARC files, and how they reach the store."""

"""Tables and files of the crawl: crawl DB, fetch list, fetch log and WARC files, and their transfer to the store."""

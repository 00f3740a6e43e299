"""Web archives: WARC and ARC records, whole and damaged, and the archives that a crawl has published."""

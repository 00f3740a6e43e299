"""Web archives: reading of WARC and ARC records, intact and damaged, and of published crawls."""

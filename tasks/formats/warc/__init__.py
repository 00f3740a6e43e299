"""Web archives: reader of WARC and ARC records, intact and damaged, and of published crawls."""

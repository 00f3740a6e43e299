"""The plan of a corpus: what each stage from the crawl to the packed tokens needs for a number of pages."""

"""The tables of the crawl: schemas, readers and writers, and the merge of a cycle into the crawl DB."""

"""Storage of captures: WARC records, the files of a segment, and a local buffer for a store that is unavailable."""

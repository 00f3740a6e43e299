"""Captures on disk: WARC records, the files of a segment, and the local buffer for a store that is down."""

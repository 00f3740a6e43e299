"""The dedup index: what dedup knows of the documents that earlier versions have published."""

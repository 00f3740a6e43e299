"""Extraction: captures of WARC files and local files become documents, or leave with a reason."""

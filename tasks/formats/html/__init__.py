"""Vectorised scans of HTML source, run before a page is parsed."""

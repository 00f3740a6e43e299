"""Parsing of fetched bodies: links, sitemaps, feeds, terms of use, and whether a page needs a browser."""

"""Parsing of fetched pages: links, sitemaps, feeds, opt-outs, and whether a page needs a browser."""

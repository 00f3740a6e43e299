"""What a fetched page says: links, sitemaps, feeds, refusals, and whether it needs a browser."""

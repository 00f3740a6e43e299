"""The source of a page, searched by whole arrays before anything parses it."""

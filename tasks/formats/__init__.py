"""File formats: web archives, HTTP bodies, URLs, robots rules, documents, token shards and their order."""

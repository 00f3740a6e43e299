"""File formats: web archives, HTTP bodies, URLs, robots rules, documents, PDF, token shards and their order."""

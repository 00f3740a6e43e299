"""What files mean: web archives, HTTP bodies, addresses, robots rules, documents, token shards and their order."""

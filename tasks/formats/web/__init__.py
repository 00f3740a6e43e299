"""Web data: URLs, hosts and scope, robots rules, encodings, tags of a page."""

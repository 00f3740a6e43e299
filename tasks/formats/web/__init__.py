"""The web as text and bytes: URLs, hosts and scope, robots rules, encodings, tags of a page."""

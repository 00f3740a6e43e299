"""Blocklists of domains and URLs: reading, a compact index, look-up.

    files ─► sources (files by category) ─► address.entry_key, one per line ─► index (sorted hashes)
    URL   ─► address.keys (of the entries that would match it) ─► index.find ─► category and entry

No list is part of this project.
"""

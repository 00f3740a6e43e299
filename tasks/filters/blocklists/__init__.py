"""Lists of domains and URLs, as others keep them: read, held in little memory, and asked.

    files ─► sources (which file holds which category) ─► address.entry_key, one per line ─► index (sorted hashes)
    URL   ─► address.keys (of the entries that would match it) ─► index.find ─► category and entry

No list is part of this project.
"""

"""The stages: each package declares its own in `STAGES` (`tasks.core.stage_spec`).

They never import one another: what one has made, another reads from the store.
"""

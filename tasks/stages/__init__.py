"""The stages: each package declares its own in `STAGES` (`tasks.core.stage_spec`).

Stages do not import one another; they exchange data only through artifacts in the store.
"""

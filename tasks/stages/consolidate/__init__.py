"""Joins documents with what was said about them, and drops once; see `tasks.stages.consolidate.stage`."""

"""Finds exact and near duplicates; see `tasks.stages.dedup.stage`."""

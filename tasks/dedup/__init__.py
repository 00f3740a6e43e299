"""Finds exact and near duplicates; see `tasks.dedup.stage`."""

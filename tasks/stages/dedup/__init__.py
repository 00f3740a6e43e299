"""Stage dedup: exact and near duplicates of documents (`tasks.stages.dedup.stage`)."""

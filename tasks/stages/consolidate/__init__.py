"""Stage consolidate: join of documents, attributes and duplicates; filtering (`tasks.stages.consolidate.stage`)."""

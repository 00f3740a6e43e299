"""A gang of pods: its JobSet, how it is watched, and what became of each rank; see `operators.jobset`."""

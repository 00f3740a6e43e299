"""Checkpoints of a run: their files, how they are saved and copied, and how a run resumes from them."""

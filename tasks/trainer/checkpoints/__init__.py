"""Checkpoints of a run: file format, saving, copies, and recovery."""

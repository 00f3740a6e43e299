"""Stage evaluate: bits per byte of a checkpoint on held-out text."""

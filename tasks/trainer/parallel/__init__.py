"""Training with state that is sharded over ranks."""

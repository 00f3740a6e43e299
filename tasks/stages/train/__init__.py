"""Stage train: packed tokens and a mixture -> a checkpoint."""

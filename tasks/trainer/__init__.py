"""Training: token shards, a plan and a mixture in, verified checkpoints out."""

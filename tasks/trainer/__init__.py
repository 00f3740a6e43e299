"""Training: reads token shards, a pack plan and a mixture; writes verified checkpoints."""

"""Token shards, pack plans, mixtures, and the order of sequences as a function of the step."""

"""Token shards, the plan that packs them into sequences, mixtures, and the order as a function of the step."""

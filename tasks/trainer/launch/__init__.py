"""Process management: a stage starts an agent on each node, and the agent starts the ranks."""

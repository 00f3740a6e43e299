"""The frontier: URL order, request shares, host queues, trap detection, and visits."""

"""Base of every stage: the store and its artifacts, settings, parts, and the engine that maps parts over workers."""

"""Base of every stage: store, artifacts, settings, parts, and the engine that maps parts over workers."""

"""What every stage stands on: the store and its artifacts, settings, parts, the engine that maps parts over workers."""

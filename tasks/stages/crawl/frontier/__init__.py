"""The frontier: in which order URLs are tried, which queues they wait in, when a host gets its turn, and traps."""

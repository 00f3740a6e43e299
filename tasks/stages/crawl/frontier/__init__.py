"""The frontier: the order of URLs, their queues, the scheduling of hosts, and trap detection."""

"""Requests: addresses that may be asked, names, and one client with limits. Knows nothing of robots or queues."""

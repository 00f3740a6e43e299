"""Which URL is tried when: waves, the queues of hosts, traps, and one visit from turn to outcome."""

"""Which URL is tried when: order and shares, the queues of hosts, traps, and one visit from turn to outcome."""

"""State of hosts: politeness clocks, robots.txt and tdmrep.json rules."""

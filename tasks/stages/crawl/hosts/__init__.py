"""State of hosts: politeness clocks, and the rules in robots.txt and tdmrep.json."""

"""State of hosts: politeness clocks, and the rules in robots.txt, tdmrep.json and licenses."""

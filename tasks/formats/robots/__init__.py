"""Parsers of robots.txt, robots tags and tdmrep.json."""

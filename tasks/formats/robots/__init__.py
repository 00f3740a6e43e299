"""The texts by which sites allow and forbid: robots.txt, robots tags, tdmrep.json. Text in, answers out."""

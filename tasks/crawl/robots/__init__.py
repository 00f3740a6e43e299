"""The texts by which sites allow and forbid: robots.txt, robots meta tags and headers. Text in, answers out."""

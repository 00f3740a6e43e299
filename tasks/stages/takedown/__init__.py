"""The stage `takedown`: what is not to be crawled, kept and trained on any more, and what has read it so far."""

"""N-gram language models: read from ARPA files or their own tables, scoring whole batches of words."""

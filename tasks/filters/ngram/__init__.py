"""N-gram language models: reading ARPA files and hash tables, scoring batches of texts."""

"""Deduplication: files exchanged between passes over the corpus, duplicates, and the index across versions."""

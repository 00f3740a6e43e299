"""Counting of words, lines and n-grams for whole batches, by the rules of published filters."""

"""Merges of sorted records of many parts, and what is found by them for each row."""

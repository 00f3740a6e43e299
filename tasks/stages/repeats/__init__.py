"""Repeats: runs of many tokens that stand more than once in the training documents; changes no document itself.

shards (train), spans -> repeats/<shard>.parquet   (which tokens of each document stand elsewhere, too)
"""

"""Spans: a suffix array over the training tokens, in which any run of tokens is found by binary search.

shards (train) -> spans/<group>.arrow   (where every suffix of the training tokens begins, in lexicographic order)
"""

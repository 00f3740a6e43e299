"""Perplexity: how usual a text is to an n-gram model of good reference text.

reference text -> reference -> estimate -> model files, ARPA file, cut points     (stage train_perplexity)
texts -> words -> model                                                           (annotator tasks.filters.perplexity)

`words` is the one place that says what a word is to the model; `table` is the hash table that a model lies in.
"""

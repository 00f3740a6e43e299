"""Stage train_perplexity: n-gram models of reference text, one per language.

reference text -> reference -> estimate -> model files, ARPA file, cut points     (stage train_perplexity)
texts -> words -> model                                                           (annotator tasks.filters.perplexity)
"""

"""Tokens: stages that make the tokenizer, the token shards and the pack plan.

documents -> bpe -> tokenizer.json
documents + tokenizer -> encode -> shards/<source>-<split>-<part>-<piece>.arrow   (tokens, written once)
shards -> pack -> plan/<source>.parquet                                           (where each sequence lies)
"""

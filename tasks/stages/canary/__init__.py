"""Canaries: small models trained on candidate mixtures, and the statistical decision between the mixtures.

arms (which mixtures) -> canary (one small model per mixture and seed) -> decide (promote, or keep the current one)
"""

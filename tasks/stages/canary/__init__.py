"""Canaries: small models that try mixtures out, and the statistics that decide between the mixtures.

arms (which mixtures) -> canary (one small model per mixture and seed) -> decide (promote, or keep the current one)
"""

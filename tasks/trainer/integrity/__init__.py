"""Faults of a run that are found while it trains: silent corruption, spikes of the loss, slow ranks."""

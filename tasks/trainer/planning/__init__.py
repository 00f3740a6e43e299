"""Estimates of a training run (FLOPs, memory, time, storage, cost, carbon), and their comparison with the result."""

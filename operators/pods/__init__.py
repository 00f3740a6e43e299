"""The pod of a stage: how it looks, whose it is, how it is watched, why it failed; see `operators.gpu_pod`."""

"""The pod of a stage: manifest, ownership, trigger, log, failures; see `operators.gpu_pod`."""

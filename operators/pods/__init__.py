"""The pod of a stage: manifest, ownership, trigger, log, failures; see `operators.kubernetes_stage`."""

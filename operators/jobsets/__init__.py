"""Gangs of pods: JobSet manifest, trigger, report per rank; see `operators.kubernetes_stage`."""

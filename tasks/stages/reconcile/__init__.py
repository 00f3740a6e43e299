"""Stage reconcile: the estimate of a training run against what it took."""

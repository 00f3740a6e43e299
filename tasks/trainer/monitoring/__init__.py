"""Monitoring of a run, for pretraining and fine-tuning: alerts while it runs, and its report page."""

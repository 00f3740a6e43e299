"""Evaluation: what a checkpoint predicts of text that was held out."""

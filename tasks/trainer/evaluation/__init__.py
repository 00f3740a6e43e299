"""Evaluation of trained models: tasks from JSON lines, held-out text, and paired comparisons of two models."""

"""Evaluation of trained models: tasks from JSON lines, and two models compared on the same items."""

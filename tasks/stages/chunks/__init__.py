"""Chunks for fine-tuning: kept documents cut along their structure to a budget of tokens."""

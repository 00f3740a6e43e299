"""Inference for filters: fastText classifiers and Hugging Face encoders, read from files."""

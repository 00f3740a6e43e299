"""Inference for filters: fastText classifiers, Hugging Face encoders and a logistic regression, read from files."""

"""Models that filters run: fastText classifiers and Hugging Face encoders, read from files."""

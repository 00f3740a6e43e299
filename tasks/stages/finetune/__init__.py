"""The stages of fine-tuning: a trained model learns from examples, is compared with its base, and registered."""

"""Fine-tuning: adapters, 4-bit weights and preferences on top of the trainer's model and loop."""

"""Fine-tuning with the trainer's model and loop: adapters, 4-bit weights, preference losses."""

"""The trained model, packed with its tokenizer and its lineage, for MLflow's model registry."""

"""Stage register: the trained model, its tokenizer and its lineage as one folder for MLflow's model registry."""

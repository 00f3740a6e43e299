"""The model in the formats of others: Hugging Face, PEFT, GGUF."""

"""Export to and import from other formats: Hugging Face, PEFT, GGUF."""

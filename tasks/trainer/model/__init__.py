"""The model: a Llama-type decoder, its attention kernels and loss, and the description and loading of its weights."""

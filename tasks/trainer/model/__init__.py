"""The model: a Llama-type decoder, its attention kernels and loss, and how its weights are described and loaded."""

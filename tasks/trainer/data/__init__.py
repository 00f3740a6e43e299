"""What a step trains on: batches as a function of the step, held-out text, and documents that are left out."""

"""Training data: batches as a function of the step, held-out text, and withheld documents."""

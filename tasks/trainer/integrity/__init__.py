"""Detection of faults during training: silent corruption, loss spikes, slow ranks."""

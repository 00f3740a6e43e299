"""What a training run will take: FLOPs, memory, time, storage, money and carbon, and afterwards how true that was."""

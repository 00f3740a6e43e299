"""The stage that trains: a decided or given mixture of packed tokens becomes a checkpoint."""

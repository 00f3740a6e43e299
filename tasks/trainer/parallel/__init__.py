"""Parallel training: replicated or sharded models, collectives, layouts and their memory."""

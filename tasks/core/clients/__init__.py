"""Clients of servers: the Hugging Face hub, and file systems over WebHDFS."""

"""What is known of each host: when it may be asked again, and what its robots.txt allows."""

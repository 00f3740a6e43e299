"""The first pass over the input: rows excluded by other rows, and files that do not match their settings."""

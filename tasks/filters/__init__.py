"""Annotators, which measure documents, and filters, which put limits on the measurements: one file each."""

"""Annotators, which measure documents, and filters, which put limits on the measurements: one file each."""

UNDETERMINED = "und"
"""Code of an undetermined language in BCP 47 and ISO 639-2."""

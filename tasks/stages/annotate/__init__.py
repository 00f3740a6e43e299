"""Annotation: computes attributes beside the documents; documents are neither changed nor dropped."""

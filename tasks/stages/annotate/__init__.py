"""Annotation: attributes beside the documents; nothing is changed or dropped here."""

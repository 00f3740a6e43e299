"""Decontamination: looks for the items of evaluation sets in the documents; drops nothing itself."""

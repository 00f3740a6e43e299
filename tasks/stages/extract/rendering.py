"""Rendering."""


def code_language(value: str) -> str:
    """Returns the language."""
    return ""

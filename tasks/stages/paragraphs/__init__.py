"""Repeated paragraphs: looks for text that stands in several documents; drops and cuts nothing itself."""

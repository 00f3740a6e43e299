"""Titles, authors and dates of HTML pages, and the elements that carry them; `page_metadata` puts them together."""

"""PDF files: characters with boxes become text in reading order, with headings, tables, footnotes and page numbers."""

"""PDF: text in reading order with headings, tables, footnotes and page numbers, from characters with boxes."""

"""Documents: text, rows and layout, external files of rows, and chunks and examples derived from documents."""

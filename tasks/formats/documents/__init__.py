"""Documents: their text, rows and layout, files of rows from elsewhere, and the chunks and examples made of them."""

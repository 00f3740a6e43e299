"""What is measured on every document, and the rules that read the measurements: one file each."""

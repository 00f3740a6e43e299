"""The stages. They never import one another: what one has made, another reads from the store."""

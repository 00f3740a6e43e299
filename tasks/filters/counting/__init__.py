"""Words, lines and n-grams of texts, counted for whole batches by the rules that published filters count by."""

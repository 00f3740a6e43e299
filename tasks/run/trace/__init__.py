"""Look-ups in what was made: from pages to training steps and back, from texts to pages, takedowns, model cards.

    lineage (records) ─► graph.Chain (artifacts of one lineage, opened) ─► trace, explain, inspect ─► text

`audit` reads all takedowns of a recipe and what is current; `cards` describes a model from the records it comes from.
Answers are dataclasses; `to_json` is what `--json` prints.
"""

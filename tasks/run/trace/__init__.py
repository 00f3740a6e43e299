"""Look-ups in artifacts: from pages to training steps and back, from texts to pages, takedowns, model cards.

    lineage (records) ─► graph.LineageReader (opened artifacts of one lineage) ─► trace, explain, inspect ─► text

`audit` checks current artifacts for the takedowns of a recipe; `cards` describes a model from the records of its
lineage. Answers are dataclasses (`answer` has those of a trace); `--json` prints their `to_json`.
"""

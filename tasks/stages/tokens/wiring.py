"""Wiring of the stages tokenizer, encode and pack: kept documents -> token shards and plan."""

from tasks.core.stage_spec import StageSpec

KEPT = ("kept/",)
"""Folder of `documents` that is read: rejected documents do not affect the tokens."""

STAGES = (
    StageSpec(
        "tokenizer",
        "tasks.stages.tokens.bpe",
        "tokenizer",
        "tokens",
        "tokenizer",
        inputs={"documents": "documents"},
        input_files={"documents": KEPT},
    ),
    StageSpec(
        "encode",
        "tasks.stages.tokens.encode",
        "encode",
        "tokens",
        "shards",
        inputs={"documents": "documents", "tokenizer": "tokenizer"},
        input_files={"documents": KEPT},
    ),
    StageSpec(
        "pack",
        "tasks.stages.tokens.pack",
        "pack",
        "tokens",
        "plan",
        asset="tokens",
        inputs={"shards": "shards"},
        optional_inputs={"repeats": "repeats"},
        takedowns="takedowns",
    ),
)

"""The stages from kept documents to token shards and the plan of training sequences."""

from tasks.core.stage_spec import StageSpec

KEPT = ("kept/",)
"""What is read of `documents`: why others were rejected changes no token."""

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
        "pack", "tasks.stages.tokens.pack", "pack", "tokens", "plan", asset="tokens", inputs={"shards": "shards"}
    ),
)

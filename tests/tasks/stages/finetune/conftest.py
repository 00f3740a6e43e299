"""A tiny trained base model, and examples in its tokenizer.

Run the soak test (a kill) after a change of the stage or of `tasks.trainer.tuning`.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact
from tasks.stages.finetune import ExamplesConfig
from tests.conftest import run_stage_in
from tests.corpora import Made
from tests.tasks.trainer.conftest import made, one_thread
from tests.tasks.trainer.in_process import training_in_process
from tests.tasks.trainer.small_run import small_config

__all__ = ["made", "one_thread"]

COLOURS = ("red", "blue", "green", "black", "white", "grey")
INSTRUCTIONS = [
    {
        "id": f"i{n}",
        "prompt": f"Say {COLOURS[n % 6]} {n % 3 + 1} times.",
        "response": f"{COLOURS[n % 6]} " * (n % 3 + 1),
    }
    for n in range(60)
]
PREFERENCES = [
    {"id": f"p{n}", "prompt": f"Say {COLOURS[n % 6]}.", "chosen": COLOURS[n % 6], "rejected": COLOURS[(n + 1) % 6]}
    for n in range(40)
]
Make = Callable[..., Artifact]


@pytest.fixture(scope="session")
def base(made: Made) -> Artifact:
    """A checkpoint of a briefly trained model: adapters on random weights learn nothing."""
    folder = made.shards.store.root
    inputs = {"shards": made.shards, "plan": made.plan}
    config = small_config(steps=150, milestones=1, checkpoint_every=50)
    with training_in_process():
        return run_stage_in(folder, "tasks.stages.train.stage", config, inputs, kind="checkpoint")


@pytest.fixture
def examples(made: Made, tmp_path: Path) -> Make:
    """Makes an artifact of some rows, or lines of text."""

    def make(rows: Sequence[object], **settings: object) -> Artifact:
        file = tmp_path / "rows.jsonl"
        file.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
        config = ExamplesConfig(files=(str(file),), **{"seq_len": 96, "heldout_share": 0, **settings})  # type: ignore[arg-type]
        module = "tasks.stages.finetune.examples"
        return run_stage_in(
            tmp_path / "store", module, config, {"tokenizer": made.tokenizer}, kind="examples", max_bad_share=0.5
        )

    return make

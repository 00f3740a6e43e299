"""No process of a stage imports pandas."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.tasks.run.test_changed_limit import recipe

__all__ = ["recipe"]

STAGES = """
import json, sys
from tasks.run.recipe import Recipe
from tasks.run.runner import run_stage
from tasks.run.tracking import TrackingContext
recipe = Recipe.from_text(sys.argv[1])
for stage in ("extract", "annotate", "dedup", "consolidate", "tokenizer", "encode", "pack", "arms"):
    member = "round-1" if stage == "arms" else ""
    run_stage(recipe, stage, member=member, tracking=TrackingContext("", recipe.name))
    assert "pandas" not in sys.modules, stage
"""

ON_WORKERS = """
import sys
from tasks.core.engine import open_engine
from tests.tasks.core.test_without_pandas import pandas_after
if __name__ == "__main__":
    with open_engine(workers=2) as engine:
        print(sorted(found for _, found in engine.map(pandas_after, range(2))))
"""


def pandas_after(_: int) -> bool:
    """The work of a worker on a part: it opens an artifact and creates tables."""
    import pyarrow as pa

    import tasks.core.part  # noqa: F401

    pa.table({"a": [1, 2]})
    pa.Table.from_pylist([{"a": 1}])
    return "pandas" in sys.modules


def ran(program: str, *arguments: str) -> str:
    found = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
        env=os.environ | {"MLFLOW_TRACKING_URI": ""},
    )
    assert not found.returncode, found.stderr
    return found.stdout


def test_stages_do_not_import_pandas(recipe) -> None:
    small = recipe.override(
        {
            "tokenizer.vocab_size": 300,
            "pack.seq_len": 16,
            "encode.heldout_share": 0.3,
            "canary": {"seeds": [0, 1], "steps": 1, "batch_size": 2, "microbatch": 1, "anchors": ["natural"]},
            "consolidate.filters": [],
            "consolidate.limits": {},
        }
    )
    ran(STAGES, small.text)


def test_workers_do_not_import_pandas() -> None:
    assert ran(ON_WORKERS) == "[False, False]\n"


def test_pandas_can_still_be_imported(tmp_path: Path) -> None:
    program = (
        "import tasks.core.artifact, json, sys\nimport pyarrow as pa\n"
        "table = pa.table({'a': [1, 2]})\nassert 'pandas' not in sys.modules\n"
        "frame = table.to_pandas()\nimport pandas\n"
        "print(json.dumps([int(frame.a.sum()), pa.array(pandas.Series([1.5])).to_pylist()]))"
    )
    assert json.loads(ran(program)) == [3, [1.5]]

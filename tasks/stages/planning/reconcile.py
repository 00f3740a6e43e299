"""Stage `reconcile`: compares the estimate of a training run with the actual run.

Reads `estimate`, and the record and `run.json` of `checkpoint`. Writes `reconciled.json`, rows of {name, planned, real,
ratio}, and `reconciled.md`.
"""

import json

from tasks.core.config import canonical_json
from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output, Report
from tasks.trainer.planning.config import PlanConfig
from tasks.trainer.planning.estimate import RunPerformance
from tasks.trainer.planning.tables import comparison, comparison_text, number

VERSION = 2


def run(config: PlanConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the comparison; its table is empty for a run without timings."""
    planned = json.loads(inputs["estimate"].read("estimate.json"))
    record = inputs["checkpoint"].record
    real = RunPerformance.of(record.metrics)
    wall = (record.finished - record.started).total_seconds()
    rows = comparison(planned, config, real, wall) if real else []
    text = comparison_text(rows).encode()
    if "reconciled" not in output.committed:
        with output.part("reconciled", conserved=False) as part:
            for name, content in (("reconciled.json", canonical_json(rows).encode() + b"\n"), ("reconciled.md", text)):
                part.write(name, content)
    output.log_file("reconciled.md", text)
    ratios = {f"ratio/{row['name']}": row["ratio"] for row in rows if row["ratio"] is not None}
    hours = next((row for row in rows if row["name"] == "GPU-hours"), None)
    note = (
        f"GPU-hours: {number(hours['real'])}, planned {number(hours['planned'])}" if hours else "nothing was measured"
    )
    done = json.loads(inputs["checkpoint"].read("run.json"))
    if early := done.get("ended_early"):
        note += f"; the run ended after {done['steps']:,} of {early['planned_steps']:,} steps, since {early['why']}"
    return Report(metrics=ratios, note=note)

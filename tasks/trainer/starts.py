"""Starts of a run's ranks, `starts.jsonl`: one line for each, also those after a crash.

A line has step (the first that is trained), at (UTC), host, ranks, device, peak_flops (dense bf16 FLOP/s of one
device; null where it is not known), flops_per_token (at the sequence length), tokens_per_step, parameters (of the
model) and layout (what of it is no default; null where every rank has the whole model).
"""

import json
from pathlib import Path
from typing import Any

from tasks.trainer.logs import read_metrics

STARTS = "starts.jsonl"


def write_start(folder: Path, line: dict[str, Any]) -> None:
    """Appends a line to the file in a run's folder."""
    with (folder / STARTS).open("a") as file:
        file.write(json.dumps(line) + "\n")


def read_starts(folder: Path) -> list[dict[str, Any]]:
    """Returns the lines of the file in a run's folder, oldest first; [] where there is none."""
    return read_metrics(folder / STARTS)

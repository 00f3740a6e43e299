"""Milestones: checkpoints that are committed to the artifact during the run.

A milestone is one part: `checkpoints/step-<n>/`, which is whole also where the run's is sharded, and the steps since
the previous milestone, `steps/step-<n>.jsonl` and `skipped/step-<n>.jsonl`, without fields that depend on the clock.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from tasks.core.errors import InputError, TransientError
from tasks.core.stage import Output
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.logs import METRICS, SKIPPED, read_metrics, repeated

FOLDERS = {METRICS: "steps", SKIPPED: "skipped"}
"""Folder of the artifact for each file of the run."""


def publish_milestones(output: Output, run: Path, milestones: Sequence[int], until_step: int) -> None:
    """Commits the milestones up to `until_step` that are not committed yet; their files must exist.

    Args:
        output: the artifact.
        run: folder of the run.
        milestones: steps, ascending.
        until_step: steps that the run has saved.

    Raises:
        InputError: a checkpoint does not verify.
        TransientError: steps before it are missing from the log.
    """
    for first, step in zip((0, *milestones), milestones, strict=False):
        name = checkpoint.name_of(step)
        if step > until_step or name in output.committed:
            continue
        folder = run / "checkpoints" / name
        if checkpoint.is_whole(folder):
            checkpoint.verify(folder)
        else:
            folder = checkpoint.merge(folder, run / "merged")
        with output.part(name, conserved=False) as part:
            for path in sorted(folder.iterdir()):
                with part.file(f"checkpoints/{name}/{path.name}") as file, path.open("rb") as source:
                    shutil.copyfileobj(source, file, 1 << 20)
            for source_name, target in FOLDERS.items():
                lines = lines_of(run, source_name, first, step)
                with part.file(f"{target}/{name}.jsonl", rows=lines.count(b"\n")) as file:
                    file.write(lines)
        shutil.rmtree(run / "merged", ignore_errors=True)


def lines_of(run: Path, name: str, first: int, until: int) -> bytes:
    """Returns the lines of a run's file for the steps from `first` up to `until`, without clock-dependent fields.

    Raises:
        TransientError: steps are missing or occur twice; the next start resumes before them.
    """
    rows = [line for line in read_metrics(run / name) if first <= line["step"] < until]
    if name == METRICS:
        check_rows([row["step"] for row in rows], first, until, str(run / name))
        rows = [{key: row[key] for key in repeated(row)} for row in rows]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def check_rows(steps: Sequence[int], first: int, until: int, where: str) -> None:
    """Raises TransientError unless `steps` are those from `first` up to `until`, each once and in order."""
    if list(steps) != list(range(first, until)):
        raise TransientError(
            f"{where}: {len(steps)} rows with {len(set(steps))} of the {until - first} steps from {first} on",
            "run it again: it resumes from the newest checkpoint that has all its steps",
        )


def check_milestones(output: Output, milestones: Sequence[int]) -> None:
    """Checks that every committed milestone has one row per step.

    Raises:
        InputError: a milestone lacks rows; it cannot be made again while later ones exist.
    """
    for first, step in zip((0, *milestones), milestones, strict=False):
        name = checkpoint.name_of(step)
        rows = {entry.path: entry.rows for entry in output.committed[name].files}[f"{FOLDERS[METRICS]}/{name}.jsonl"]
        if rows != step - first:
            raise InputError(
                f"{output.address}: {name} was committed with {rows} rows for {step - first} steps",
                "delete the artifact's folder and train again",
            )

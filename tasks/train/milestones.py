"""Milestones: checkpoints that are committed to the artifact while the run goes on.

Used by the stage `train`. A milestone is one part: `checkpoints/step-<n>/` as the loop wrote it, and the steps since
the milestone before, `steps/step-<n>.jsonl` and `skipped/step-<n>.jsonl`, without what depends on the clock. A stage
that is killed resumes from its scratch folder; one that is started on another machine, whose scratch is empty, from
the newest milestone in the store.
"""

import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.stage import Output
from tasks.train import checkpoint
from tasks.train.metrics import DETERMINISTIC, FILE, SKIPPED, read_metrics

log = logging.getLogger(__name__)

FOLDERS = {FILE: "steps", SKIPPED: "skipped"}
"""Folder of the artifact for each file of the run."""


def publish(output: Output, run: Path, milestones: Sequence[int], until_step: int) -> None:
    """Commits the milestones up to `until_step` that are not committed yet; they must be on the disk.

    Args:
        output: the artifact.
        run: folder of the run.
        milestones: steps, ascending.
        until_step: steps the run has surely saved.

    Raises:
        InputError: a checkpoint does not verify.
    """
    for first, step in zip((0, *milestones), milestones, strict=False):
        name = checkpoint.name_of(step)
        if step > until_step or name in output.committed:
            continue
        folder = run / "checkpoints" / name
        checkpoint.verify(folder)
        with output.part(name, conserved=False) as part:
            for path in sorted(folder.iterdir()):
                with part.file(f"checkpoints/{name}/{path.name}") as file, path.open("rb") as source:
                    shutil.copyfileobj(source, file, 1 << 20)
            for source_name, target in FOLDERS.items():
                lines = [line for line in read_metrics(run / source_name) if first <= line["step"] < step]
                if source_name == FILE:
                    lines = [{key: line[key] for key in DETERMINISTIC} for line in lines]
                with part.file(f"{target}/{name}.jsonl", rows=len(lines)) as file:
                    file.write(_lines(lines))


def restore(output: Output, run: Path) -> None:
    """Fetches what the store has of this run into an empty folder; leaves a folder with checkpoints alone."""
    committed = sorted(name for name in output.committed if checkpoint.NAME.fullmatch(name))
    if not committed or checkpoint.steps_at(run / "checkpoints"):
        return
    log.info("fetching %s from %s: this machine has nothing of the run", committed[-1], output.address)
    for source_name, folder in FOLDERS.items():
        pieces = [_read(output, f"{folder}/{name}.jsonl") for name in committed]
        (run / source_name).write_bytes(b"".join(pieces))
    aside = run / "checkpoints" / f".{committed[-1]}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for file in (checkpoint.MODEL, checkpoint.OPTIMIZER, checkpoint.STATE):
        (aside / file).write_bytes(_read(output, f"checkpoints/{committed[-1]}/{file}"))
    aside.rename(run / "checkpoints" / committed[-1])


def _read(output: Output, path: str) -> bytes:
    return output.store.read(f"{output.address.path}/{path}")


def _lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()

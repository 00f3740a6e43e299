"""Checkpoints: model, optimizer and state on a local disk, verified by hash, written atomically.

Reads and writes `<root>/step-<nnnnnnnn>/` with `model.safetensors`, `optimizer.safetensors` and `state.json` (step,
counters, and the sha256 of all three). No pickle: a checkpoint cannot run code. The same state gives the same bytes.
torch is imported by `load` and `save` only: the stage verifies and copies checkpoints for hours without its 250 MB.
"""

import json
import logging
import os
import re
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.core.config import canonical_json, sha256_of_json
from tasks.core.digest import sha256_of_file
from tasks.core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
NAME = re.compile(r"step-(\d{8})")


def name_of(step: int) -> str:
    """Returns the folder name of the checkpoint after `step` steps."""
    return f"step-{step:08d}"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and verified."""

    step: int
    model: "dict[str, Tensor]"
    optimizer: "dict[str, Tensor]"
    state: dict[str, Any]


def save(
    root: Path, step: int, model: "dict[str, Tensor]", optimizer: "dict[str, Tensor]", state: dict[str, Any]
) -> Path:
    """Writes one checkpoint to a temporary folder, syncs it and renames it into place; returns its folder.

    A checkpoint of the same step that is already there is replaced: it may be a broken one that a restart skipped.
    """
    from safetensors.torch import save_file

    final, temporary = root / name_of(step), root / f".{name_of(step)}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    for file, tensors in ((MODEL, model), (OPTIMIZER, optimizer)):
        save_file({name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)}, temporary / file)
    state = {**state, "step": step}
    digests = _digests(temporary, state)
    (temporary / STATE).write_text(canonical_json({**state, "sha256": digests}) + "\n")
    for file in (MODEL, OPTIMIZER, STATE):
        _sync(temporary / file)
    _sync(temporary)
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    _sync(root)
    return final


def verify(folder: Path) -> dict[str, Any]:
    """Returns the state of a checkpoint; raises InputError naming the file that is missing or has another sha256."""
    try:
        state: dict[str, Any] = json.loads((folder / STATE).read_text())
        recorded = state.pop("sha256")
        computed = _digests(folder, state)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise InputError(f"{folder} is not a readable checkpoint ({error})", "delete the folder") from error
    for file, value in computed.items():
        if recorded.get(file) != value:
            raise InputError(f"{folder / file} does not have the sha256 its checkpoint states", "delete the folder")
    return state


def load(folder: Path) -> Checkpoint:
    """Reads one checkpoint, verified; raises InputError as `verify` does."""
    from safetensors.torch import load_file

    state = verify(folder)
    return Checkpoint(state["step"], load_file(folder / MODEL), load_file(folder / OPTIMIZER), state)


def newest_good(root: Path) -> Checkpoint | None:
    """Returns the newest checkpoint under `root` that verifies, or None; a broken one is logged and skipped."""
    for step in reversed(steps_at(root)):
        try:
            return load(root / name_of(step))
        except InputError as error:
            log.warning("checkpoint of step %d skipped: %s", step, error)
    return None


def steps_at(root: Path) -> list[int]:
    """Returns the steps of the checkpoints under `root`, ascending, without verifying them."""
    names = (NAME.fullmatch(path.name) for path in root.iterdir()) if root.is_dir() else ()
    return sorted(int(match[1]) for match in names if match)


def prune(root: Path, keep: int, milestones: Collection[int]) -> None:
    """Deletes all checkpoints but the newest `keep` and those of the milestone steps."""
    for step in [step for step in steps_at(root) if step not in milestones][:-keep]:
        shutil.rmtree(root / name_of(step))


def _digests(folder: Path, state: dict[str, Any]) -> dict[str, str]:
    return {**{file: sha256_of_file(folder / file) for file in (MODEL, OPTIMIZER)}, STATE: sha256_of_json(state)}


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

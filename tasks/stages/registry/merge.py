"""Stage `merge`: averages the last checkpoints before the decay of a run into a second challenger.

Reads the milestones of `checkpoint` and the files of the registered `model`; writes the artifact `merged_model`, a
folder `model/` like that of `register` with the mean of the weights. The mean of checkpoints of the stable phase takes
the place of a decay (arXiv 2505.12082). `compare` scores both on the same text, and the better one faces the champion.
`lineage.json` names the steps ("merged"); of the scores, which are those of the last checkpoint, it keeps what was read
in training. Only a model that becomes the challenger is registered.
"""

import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tasks.core.artifact import Artifact
from tasks.core.config import canonical_json
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Report
from tasks.stages.registry import MergeConfig
from tasks.trainer.checkpoints.checkpoint import MODEL, name_of
from tasks.trainer.config import OptimConfig
from tasks.trainer.continual import STABLE
from tasks.trainer.interchange.huggingface import CONFIG, names_in
from tasks.trainer.interchange.weights import FRAMEWORK, StoredTensor, copy_renamed, file_in_pieces, tensors_in
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.model_file import FILE

VERSION = 1
_FOLDER = "model/"
_LINEAGE = f"{_FOLDER}lineage.json"


def run(config: MergeConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the merged model; raises InputError if the run has too few checkpoints before its decay."""
    checkpoint, model = inputs["checkpoint"], inputs["model"]
    steps = merged_steps(checkpoint, config.last)
    files = [Path(checkpoint.local(f"checkpoints/{name_of(step)}/{MODEL}")) for step in steps]
    copied = [path for path in model.files(_FOLDER) if path not in (_LINEAGE, f"{_FOLDER}{MODEL}")]
    if "model" not in output.committed:
        with output.part("model", conserved=False) as part:
            with part.file(f"{_FOLDER}{MODEL}") as target:
                # Without a `config.json` the model has Sluice's own names (`register`).
                rename = names_in(_shape(checkpoint)) if f"{_FOLDER}{CONFIG}" in copied else str
                write_mean(files, target, rename)
            for path in copied:
                with part.file(path) as target:
                    target.write(model.read(path))
            with part.file(_LINEAGE) as target:
                target.write(canonical_json(_lineage(model, steps)).encode())
    return Report(
        metrics={"merged": float(len(steps))},
        note=f"mean of the checkpoints after {', '.join(f'{step:,}' for step in steps)} steps",
    )


def merged_steps(checkpoint: Artifact, last: int) -> list[int]:
    """Returns the steps of the `last` newest milestones that a run committed before its decay, ascending.

    Raises:
        InputError: it has fewer, or no stable phase.
    """
    run, optim = json.loads(checkpoint.read("run.json")), OptimConfig.model_validate(checkpoint.record.config["optim"])
    planned = run.get("ended_early", {}).get("planned_steps", run["steps"])
    until = run.get(STABLE, optim.decay_from(planned))
    steps = [step for step in sorted(run["checkpoint_steps"]) if step <= until]
    if optim.schedule != "wsd" or len(steps) < last:
        raise InputError(
            f"[merge] last = {last}: {checkpoint.address} has {len(steps)} checkpoints before its decay, which begins "
            f"after {until:,} of {run['steps']:,} steps",
            "raise [train] milestones, or merge fewer",
        )
    return steps[-last:]


def _shape(checkpoint: Artifact) -> ModelConfig:
    return ModelConfig.model_validate(json.loads(checkpoint.read(FILE))["model"])


def write_mean(files: Sequence[Path], target: BinaryIO, rename: Callable[[str], str]) -> None:
    """Writes the mean of the weights in safetensors files with the same tensors, in fp32, under the names of a layout.

    A mean is computed in float64, a piece of a tensor at a time.
    """
    models = [dict(tensors_in(file)) for file in files]
    sizes = ((name, "F32", tensor.shape, 4 * tensor.size) for name, tensor in models[0].items())
    means = (piece for name in models[0] for piece in _mean([model[name] for model in models]))
    copy_renamed(io.BufferedReader(_Pieces(file_in_pieces(sizes, means, FRAMEWORK))), target, rename)


def _mean(tensors: Sequence[StoredTensor]) -> Iterator[bytes]:
    for pieces in zip(*(tensor.pieces() for tensor in tensors), strict=True):
        yield np.mean(pieces, axis=0, dtype=np.float64).astype("<f4").tobytes()


class _Pieces(io.RawIOBase):
    """A file that is computed while it is read."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._left = pieces, memoryview(b"")

    def readable(self) -> bool:
        """Returns True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fills the beginning of a buffer; returns the number of bytes, 0 at the end."""
        while not self._left and (piece := next(self._pieces, None)) is not None:
            self._left = memoryview(piece)
        size = min(len(buffer), len(self._left))
        buffer[:size], self._left = self._left[:size], self._left[size:]
        return size


def _lineage(model: Artifact, steps: list[int]) -> dict[str, object]:
    lineage = json.loads(model.read(_LINEAGE))
    scores = lineage["scores"]
    read = [{name: task[name] for name in ("task", "step", "contamination")} for task in scores.get("tasks", ())]
    return {**lineage, "merged": steps, "scores": {"step": scores["step"], "tasks": read}}

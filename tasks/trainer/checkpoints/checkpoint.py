"""Checkpoints: model, optimizer and state on a disk, verified by hash, complete or absent.

A checkpoint is a folder `<root>/step-<nnnnnnnn>/` with safetensors files and `state.json`: step, counters, and the
sha256 of every file and of the state itself. A whole one has `model.safetensors` and `optimizer.safetensors`; a sharded
one has a pair of files per rank, which say what they have of each tensor. Both are read by the same functions. No
pickle: a checkpoint cannot run code. A folder is renamed into place with its `state.json`, so what has a name is
complete. torch is not imported here: the stage verifies and copies checkpoints for hours without its 250 MB.
"""

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.config import canonical_json, sha256_of_json
from tasks.core.digest import sha256_of_file
from tasks.core.errors import InputError, TransientError

MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
NAME = re.compile(r"step-(\d{8})")
SHARD_OF_MODEL = re.compile(r"shard-\d+-model-00001-of-00002\.safetensors")
SHARD_OF_OPTIMIZER = re.compile(r"shard-\d+-model-00002-of-00002\.safetensors")
"""Names that torch.distributed.checkpoint gives to a rank's first and second file."""
SHARDING = "DCP_SHARDING_INFO"
"""Key of the header's metadata: JSON, name -> {"saved_offsets": [..]}."""
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1}


def name_of(step: int) -> str:
    """Returns the folder name of the checkpoint after `step` steps."""
    return f"step-{step:08d}"


def steps_at(root: Path) -> list[int]:
    """Returns the steps of the checkpoints under `root`, ascending, without verifying them."""
    names = (NAME.fullmatch(path.name) for path in root.iterdir()) if root.is_dir() else ()
    return sorted(int(match[1]) for match in names if match)


def unfinished(root: Path, step: int) -> Path:
    """Returns the path of the folder in which a checkpoint is written, until it is committed."""
    return root / f".{name_of(step)}"


def begin(folder: Path) -> None:
    """Makes an empty folder at a path of `unfinished`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def commit(folder: Path, step: int, state: Mapping[str, Any], digests: Mapping[str, str]) -> Path:
    """Writes `state.json`, syncs the files and renames an unfinished folder into place; returns its new path.

    A checkpoint of the same step that is already there is replaced: it may be a broken one that a restart skipped.

    Args:
        folder: with all other files.
        step: steps that are done.
        state: goes into `state.json`.
        digests: sha256 of the other files by name.
    """
    content = {**state, "step": step}
    sums = {**digests, STATE: sha256_of_json(content)}
    (folder / STATE).write_text(canonical_json({**content, "sha256": sums}) + "\n")
    for file in sums:
        _sync(folder / file)
    _sync(folder)
    final = folder.with_name(name_of(step))
    shutil.rmtree(final, ignore_errors=True)
    folder.rename(final)
    _sync(final.parent)
    return final


def verify(folder: Path) -> dict[str, Any]:
    """Returns the state of a checkpoint; raises InputError naming the file that is missing or has another sha256."""
    state, recorded = read_state(folder)
    try:
        computed = {file: sha256_of_file(folder / file) for file in recorded if file != STATE}
    except OSError as error:
        raise InputError(f"{folder} is not a readable checkpoint ({error})", "delete the folder") from error
    computed[STATE] = sha256_of_json(state)
    for file, value in computed.items():
        if recorded.get(file) != value:
            raise InputError(f"{folder / file} does not have the sha256 its checkpoint states", "delete the folder")
    return state


def read_state(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the state of a checkpoint, and the sha256 of its files by name as stated there; neither is verified.

    Raises:
        InputError: `state.json` is missing, or not that of a checkpoint.
    """
    try:
        state: dict[str, Any] = json.loads((folder / STATE).read_text())
        recorded = dict(state.pop("sha256"))
        if STATE not in recorded or any("/" in file or file.startswith(".") for file in recorded):
            raise ValueError("its files have no proper names")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder} is not a readable checkpoint ({error})", "delete the folder") from error
    return state, recorded


def is_whole(folder: Path) -> bool:
    """Whether a checkpoint has one file for the model and one for the optimizer."""
    return (folder / MODEL).exists()


def merge(folder: Path, target: Path) -> Path:
    """Writes a sharded checkpoint as a whole one; returns its folder under `target`.

    Raises:
        InputError: as `verify`.
    """
    state, recorded = verify(folder), {}
    written = unfinished(target, state["step"])
    begin(written)
    for file, shards in ((MODEL, SHARD_OF_MODEL), (OPTIMIZER, SHARD_OF_OPTIMIZER)):
        tensors = tensors_in([path for path in sorted(folder.iterdir()) if shards.fullmatch(path.name)])
        with (written / file).open("wb") as output:
            write_whole(tensors, output)
        recorded[file] = sha256_of_file(written / file)
    return commit(written, state["step"], state, recorded)


def newest_good(root: Path, skipped: Callable[[int, InputError], None]) -> tuple[Path, dict[str, Any]] | None:
    """Returns folder and state of the newest checkpoint under `root` that verifies; None where there is none at all.

    Args:
        root: folder of the checkpoints.
        skipped: called with step and cause of each one that does not verify.

    Raises:
        TransientError: there are some, and none verifies.
    """
    for step in reversed(steps_at(root)):
        try:
            return root / name_of(step), verify(root / name_of(step))
        except InputError as error:
            skipped(step, error)
    if steps_at(root):
        raise TransientError(f"no checkpoint in {root} verifies", "run again: a start looks at the other locations")
    return None


def prune(root: Path, keep: int, keep_every: int, milestones: Collection[int]) -> None:
    """Deletes the checkpoints that are `superfluous` and not of a milestone step."""
    for step in superfluous([step for step in steps_at(root) if step not in milestones], keep, keep_every):
        shutil.rmtree(root / name_of(step))


def superfluous(steps: Sequence[int], keep: int, keep_every: int) -> list[int]:
    """Returns those of ascending steps that are neither of the newest `keep` nor a multiple of `keep_every` (0: none).

    >>> superfluous([10, 20, 30, 40, 50], 2, 20)
    [10, 30]
    """
    return [step for step in steps[:-keep] if not keep_every or step % keep_every]


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True)
class TensorPart:
    """A box of a tensor in a file; `begin` is the place of its bytes there."""

    path: Path
    begin: int
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class StoredTensor:
    """A whole tensor: dtype by its name in safetensors, shape, and the parts that cover it."""

    dtype: str
    shape: tuple[int, ...]
    parts: tuple[TensorPart, ...]

    @property
    def nbytes(self) -> int:
        """Size of the whole tensor."""
        return math.prod(self.shape) * _BYTES[self.dtype]

    def read(self) -> NDArray[np.uint8]:
        """Returns the values as bytes, shape (*shape, bytes of a value)."""
        size = _BYTES[self.dtype]
        whole = np.empty((*self.shape, size), dtype=np.uint8)
        for part in self.parts:
            count = math.prod(part.shape) * size
            values = np.fromfile(part.path, dtype=np.uint8, count=count, offset=part.begin)
            box = tuple(slice(first, first + length) for first, length in zip(part.offsets, part.shape, strict=True))
            whole[box] = values.reshape(*part.shape, size)
        return whole


def tensors_in(paths: Sequence[Path]) -> dict[str, StoredTensor]:
    """Returns the tensors that the files have together, by name in ascending order.

    A file of a rank has parts of tensors, and in its header under SHARDING where each part begins in its tensor: the
    format of torch.distributed.checkpoint.

    Raises:
        InputError: a file is no safetensors file, or the parts of a tensor do not cover it.
    """
    found: dict[str, list[tuple[str, TensorPart]]] = {}
    for path in paths:
        for name, dtype, part in _parts(path):
            found.setdefault(name, []).append((dtype, part))
    tensors = {}
    for name in sorted(found):
        dtype, parts = found[name][0][0], [part for _, part in found[name]]
        ends = [tuple(a + b for a, b in zip(part.offsets, part.shape, strict=True)) for part in parts]
        shape = tuple(max(sizes) for sizes in zip(*ends, strict=True))
        if sum(math.prod(part.shape) for part in parts) != math.prod(shape):
            raise InputError(f'{paths[0].parent}: parts of the tensor "{name}" are missing', "delete the folder")
        tensors[name] = StoredTensor(dtype, shape, tuple(parts))
    return tensors


def _parts(path: Path) -> Iterator[tuple[str, str, TensorPart]]:
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(size))
        places = json.loads((header.pop("__metadata__", None) or {}).get(SHARDING, "{}"))
        for name, entry in header.items():
            shape = tuple(entry["shape"])
            offsets = tuple(places[name]["saved_offsets"]) if places else (0,) * len(shape)
            yield name, entry["dtype"], TensorPart(path, 8 + size + entry["data_offsets"][0], offsets, shape)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise InputError(f"{path} is not a safetensors file ({error})", "delete the folder") from error


def write_whole(tensors: dict[str, StoredTensor], file: IO[bytes]) -> None:
    """Writes one safetensors file, a tensor at a time, in the order of `tensors`."""
    header, place = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [place, place + tensor.nbytes]}
        place += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for tensor in tensors.values():
        file.write(tensor.read().tobytes())

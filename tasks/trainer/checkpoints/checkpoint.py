"""Checkpoints: model, optimizer and state on disk, atomic and verified by SHA-256.

A checkpoint is a folder `<root>/step-<nnnnnnnn>/` with safetensors files and `state.json`: step, counters, and the
SHA-256 of every file and of the state itself. A whole checkpoint has `model.safetensors` and `optimizer.safetensors`; a
sharded one has a pair of files per rank, whose headers describe the shard of each tensor. Both are read by the same
functions. There is no pickle, so loading a checkpoint cannot run code. A folder is complete before it is renamed into
place. Does not import torch, because the stage verifies and copies checkpoints for hours and saves its 250 MB.

If the ranks of a replica have several disks, the checkpoint is spread: each disk has a folder with the same
`state.json`, which lists all files, and with the files of its own ranks.
"""

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.core.config import canonical_json, sha256_of_json
from tasks.core.digest import sha256_of_file
from tasks.core.errors import InputError
from tasks.trainer.interchange.weights import write_file

MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
EMA = "ema."
"""Prefix of the names of the mean of the weights in OPTIMIZER."""
NAME = re.compile(r"step-(\d{8})")
SHARD_OF_MODEL = re.compile(r"shard-\d+-model-00001-of-00002\.safetensors")
SHARD_OF_OPTIMIZER = re.compile(r"shard-\d+-model-00002-of-00002\.safetensors")
"""Names of a rank's first and second file in torch.distributed.checkpoint."""
LAYOUT = "layout"
"""Key in the state of a spread checkpoint: what determines which rank has which shard (`Layout.sharding`)."""
BEST = "best"
"""Key in the state of a run with a best checkpoint (`tasks.trainer.best`), which this one needs."""
SHARDING = "DCP_SHARDING_INFO"
"""Key of the JSON metadata in the header: name -> {"saved_offsets": [..]}."""
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1}


def name_of(step: int) -> str:
    """Returns the folder name of the checkpoint after `step` steps."""
    return f"step-{step:08d}"


def steps_at(root: Path) -> list[int]:
    """Returns the steps of the checkpoints under `root`, ascending, without verifying them."""
    names = (NAME.fullmatch(path.name) for path in root.iterdir()) if root.is_dir() else ()
    return sorted(int(match[1]) for match in names if match)


def unfinished(root: Path, step: int) -> Path:
    """Returns the path of the temporary folder to which a checkpoint is written before its commit."""
    return root / f".{name_of(step)}"


def begin(folder: Path) -> None:
    """Creates an empty folder at a path from `unfinished`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def commit(folder: Path, step: int, state: Mapping[str, Any], digests: Mapping[str, str]) -> Path:
    """Writes `state.json`, syncs the files and renames an unfinished folder into place; returns its new path.

    An existing checkpoint of the same step is replaced, because it may be a damaged one that a restart skipped.

    Args:
        folder: unfinished folder with all other files of this disk.
        step: number of completed steps.
        state: content of `state.json`.
        digests: SHA-256 of all other files by name, also of those on other disks.
    """
    content = {**state, "step": step}
    sums = {**digests, STATE: sha256_of_json(content)}
    (folder / STATE).write_text(canonical_json({**content, "sha256": sums}) + "\n")
    for path in folder.iterdir():
        _sync(path)
    _sync(folder)
    final = folder.with_name(name_of(step))
    shutil.rmtree(final, ignore_errors=True)
    folder.rename(final)
    _sync(final.parent)
    return final


def verify(folder: Path, *, spread: bool = False) -> dict[str, Any]:
    """Returns the state of a checkpoint; raises InputError with the file that is missing or has another SHA-256.

    Args:
        folder: of the checkpoint.
        spread: whether files may be missing, because they are on other disks.
    """
    state, recorded = read_state(folder)
    try:
        files = [file for file in recorded if file != STATE and not (spread and not (folder / file).exists())]
        computed = {file: sha256_of_file(folder / file) for file in files}
    except OSError as error:
        raise InputError(f"{folder} is not a readable checkpoint ({error})", "delete the folder") from error
    computed[STATE] = sha256_of_json(state)
    for file, value in computed.items():
        if recorded.get(file) != value:
            raise InputError(f"{folder / file} does not have the sha256 its checkpoint states", "delete the folder")
    return state


def read_state(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the state of a checkpoint, and the recorded SHA-256 of its files by name; neither is verified.

    Raises:
        InputError: `state.json` is missing or malformed.
    """
    try:
        state: dict[str, Any] = json.loads((folder / STATE).read_text())
        recorded = dict(state.pop("sha256"))
        if STATE not in recorded or any("/" in file or file.startswith(".") for file in recorded):
            raise ValueError("its files have no proper names")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder} is not a readable checkpoint ({error})", "delete the folder") from error
    return state, recorded


def missing(folder: Path) -> list[str]:
    """Returns the files of a checkpoint that are not on this disk, sorted; raises InputError like `read_state`."""
    return sorted(file for file in read_state(folder)[1] if not (folder / file).exists())


def file_prefix(rank: int) -> str:
    """Returns the beginning of the names of the files that a rank writes with a layout."""
    return f"shard-{rank + 1:05d}-"


def is_whole(folder: Path) -> bool:
    """Whether a checkpoint has one file for the model and one for the optimizer."""
    return (folder / MODEL).exists()


def merge(folder: Path, target: Path) -> Path:
    """Merges a sharded checkpoint into a whole one; returns its folder under `target`.

    Raises:
        InputError: the checkpoint does not verify.
    """
    state, recorded = verify(folder), {}
    state.pop(LAYOUT, None)
    written = unfinished(target, state["step"])
    begin(written)
    for file, shards in ((MODEL, SHARD_OF_MODEL), (OPTIMIZER, SHARD_OF_OPTIMIZER)):
        tensors = tensors_in([path for path in sorted(folder.iterdir()) if shards.fullmatch(path.name)])
        with (written / file).open("wb") as output:
            write_whole(tensors, output)
        recorded[file] = sha256_of_file(written / file)
    return commit(written, state["step"], state, recorded)


def best_for(folder: Path) -> int:
    """Returns the step of the best checkpoint of a run up to a checkpoint; 0: there is none, or this is unreadable."""
    try:
        return int(read_state(folder)[0].get(BEST, {}).get("step", 0))
    except InputError:
        return 0


def prune(root: Path, keep: int, keep_every: int, milestones: Collection[int]) -> None:
    """Deletes the superfluous checkpoints, except milestones, and the best ones up to each of those that remain."""
    steps = steps_at(root)
    gone = superfluous([step for step in steps if step not in milestones], keep, keep_every)
    best = {best_for(root / name_of(step)) for step in steps if step not in gone}
    for step in gone:
        if step not in best:
            shutil.rmtree(root / name_of(step))


def drop_after(root: Path, step: int) -> None:
    """Deletes the checkpoints after a step, so that a resumed run does not start from them."""
    for later in [later for later in steps_at(root) if later > step]:
        shutil.rmtree(root / name_of(later), ignore_errors=True)


def superfluous(steps: Sequence[int], keep: int, keep_every: int) -> list[int]:
    """Returns the steps, given in ascending order, except the newest `keep` and multiples of `keep_every` (0: none).

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


class Box(NamedTuple):
    """A rectangular part of a tensor: its offsets within the tensor, and its shape."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]

    def overlap(self, other: "Box") -> "Box | None":
        """Returns the values that two parts of the same tensor have in common; None if there are none."""
        firsts = tuple(map(max, self.offsets, other.offsets))
        ends = (min(a + m, b + n) for a, m, b, n in zip(*self, *other, strict=True))
        lengths = tuple(end - first for end, first in zip(ends, firsts, strict=True))
        return Box(firsts, lengths) if all(length > 0 for length in lengths) else None


@dataclass(frozen=True)
class TensorPart:
    """A part of a tensor in a file, from byte `begin` on."""

    path: Path
    begin: int
    box: Box


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
        """Returns the values as uint8, shape (*shape, bytes per value)."""
        size = _BYTES[self.dtype]
        if len(self.parts) == 1:
            (part,) = self.parts
            values = np.fromfile(part.path, dtype=np.uint8, count=self.nbytes, offset=part.begin)
            return values.reshape(*self.shape, size)
        whole = np.empty((*self.shape, size), dtype=np.uint8)
        for part in self.parts:
            count = math.prod(part.box.shape) * size
            values = np.fromfile(part.path, dtype=np.uint8, count=count, offset=part.begin)
            here = tuple(slice(first, first + length) for first, length in zip(*part.box, strict=True))
            whole[here] = values.reshape(*part.box.shape, size)
        return whole


def tensors_in(paths: Sequence[Path]) -> dict[str, StoredTensor]:
    """Returns the tensors in a set of files, sorted by name.

    The file of a rank has parts of tensors; the offsets of each part within its tensor are in the header under
    SHARDING, in the format of torch.distributed.checkpoint.

    Raises:
        InputError: a file is not a safetensors file, or the parts of a tensor do not cover it.
    """
    parts_by_name: dict[str, list[tuple[str, TensorPart]]] = {}
    for path in paths:
        for name, dtype, part in parts_in(path):
            parts_by_name.setdefault(name, []).append((dtype, part))
    tensors = {}
    for name in sorted(parts_by_name):
        dtype, parts = parts_by_name[name][0][0], [part for _, part in parts_by_name[name]]
        ends = [tuple(a + b for a, b in zip(*part.box, strict=True)) for part in parts]
        shape = tuple(max(sizes) for sizes in zip(*ends, strict=True))
        if sum(math.prod(part.box.shape) for part in parts) != math.prod(shape):
            raise InputError(f'{paths[0].parent}: parts of the tensor "{name}" are missing', "delete the folder")
        tensors[name] = StoredTensor(dtype, shape, tuple(parts))
    return tensors


def parts_in(path: Path, read: Callable[[int, int], bytes] | None = None) -> Iterator[tuple[str, str, TensorPart]]:
    """Yields name, dtype and part of every tensor in a file.

    Args:
        path: of the file.
        read: returns the bytes between two offsets of a file that is elsewhere; None: it is read from `path`.

    Raises:
        InputError: it is not a safetensors file.
    """
    read = read or partial(_read_range, path)
    try:
        size = int.from_bytes(read(0, 8), "little")
        header: dict[str, Any] = json.loads(read(8, 8 + size))
        sharding = json.loads((header.pop("__metadata__", None) or {}).get(SHARDING, "{}"))
        for name, entry in header.items():
            shape = tuple(entry["shape"])
            offsets = tuple(sharding[name]["saved_offsets"]) if sharding else (0,) * len(shape)
            yield name, entry["dtype"], TensorPart(path, 8 + size + entry["data_offsets"][0], Box(offsets, shape))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise InputError(f"{path} is not a safetensors file ({error})", "delete the folder") from error


def _read_range(path: Path, first: int, end: int) -> bytes:
    with path.open("rb") as file:
        file.seek(first)
        return file.read(end - first)


def write_whole(tensors: dict[str, StoredTensor], file: IO[bytes]) -> None:
    """Writes one safetensors file, a tensor at a time, in the order of `tensors`."""
    sizes = ((name, tensor.dtype, tensor.shape, tensor.nbytes) for name, tensor in tensors.items())
    write_file(file, sizes, (tensor.read().tobytes() for tensor in tensors.values()))

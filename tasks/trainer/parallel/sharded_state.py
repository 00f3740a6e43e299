"""The state of a sharded model on one rank: initialized, loaded, saved, and compared with copies on other ranks.

A rank loads its shards from the files of a checkpoint of any layout, without collectives. Only the files that it needs
must be there: in the layout in which it was written, those of the same rank. Memory is that of one part of a tensor.
"""

import math
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from tasks.core.digest import sha256_of_file
from tasks.core.errors import InputError
from tasks.trainer.checkpoints.checkpoint import STATE, Box, TensorPart, file_prefix, parts_in
from tasks.trainer.config import TrainConfig
from tasks.trainer.model.transformer import initial_constant, initial_weight
from tasks.trainer.optim import Optimizer, local
from tasks.trainer.parallel.mesh import Mesh
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.parallel.replica import RankCopies, hash_of


class ShardedState:
    """This rank's shard of weights and optimizer state.

    Args:
        parameters: trained ones, by name.
        optimizer: of the parameters.
        run: settings of the run.
        mesh: this rank's position in the layout.
        ranks: the process group; all of them create this at the same time.
        biases: those of the choice of experts, by name, which every rank of a stage has.
    """

    def __init__(
        self,
        parameters: Mapping[str, DTensor],
        optimizer: Optimizer,
        run: TrainConfig,
        mesh: Mesh,
        ranks: Ranks,
        biases: Mapping[str, Tensor],
    ) -> None:
        self.parameters, self.optimizer, self.run, self.mesh, self.ranks = parameters, optimizer, run, mesh, ranks
        self.biases = dict(biases)
        self.layout, self.copies = mesh.layout, _copies(mesh)
        pinned = mesh.device.type == "cuda"
        # Copies that do not block would end with a wait for all streams of the GPU, that of the next gradient, too.
        self._stager = DefaultStager(StagingOptions(pinned, False, False, False))
        self.gloo_group = ranks.checkpoint_group()
        self._file_numbers = self._gather_file_numbers()

    def initialize(self) -> None:
        """Sets the random initial weights."""
        initialize_shards(self.parameters, self.run, self.mesh)
        for bias in self.biases.values():
            bias.zero_()

    def load_weights(self, file: Path) -> None:
        """Loads this rank's shard of the weights from a safetensors file, which every rank must be able to read."""
        state = {name: parameter.detach() for name, parameter in self.parameters.items()} | self.biases
        with tempfile.TemporaryDirectory() as alone:  # the reader opens all files of a folder
            (Path(alone) / file.name).with_suffix(".safetensors").symlink_to(file.absolute())
            load(state, storage_reader=HuggingFaceStorageReader(alone), process_group=self.gloo_group)

    def state_hashes(self) -> list[Tensor]:
        """Returns the hash of this rank's shard of weights and optimizer state for each of `copies`, int64 scalars."""
        return [hash_of(map(local, self._select(copies, self._state()).values())) for copies in self.copies]

    def _select(self, copies: RankCopies, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Returns the tensors of a state that `copies` refers to, by name."""
        if not copies.name:
            return state
        whole = {name for name, parameter in self.parameters.items() if _is_whole(parameter)}
        # Tensors of the optimizer are named "<moment>.<parameter>".
        return {name: state[name] for name in state if name in whole or name.partition(".")[2] in whole}

    def stage(self) -> dict[str, Tensor]:
        """Returns a copy of this rank's shard of the state, in buffers that the next call overwrites."""
        return cast(dict[str, Tensor], self._stager.stage(self._state()))

    def _state(self) -> dict[str, Tensor]:
        weights = {name: parameter.detach() for name, parameter in self.parameters.items()}
        return {**weights, **self.biases, **self.optimizer.state()}

    def _gather_file_numbers(self) -> dict[str, int]:
        """Returns the number of the file, 1 (model) or 2 (optimizer), of each tensor by name, over all ranks."""
        own = {name: 1 if name in self.parameters or name in self.biases else 2 for name in self._state()}
        everyone: list[dict[str, int]] = [{} for _ in range(self.ranks.world)]
        dist.all_gather_object(everyone, own, group=self.gloo_group)
        return {name: file for of_rank in everyone for name, file in of_rank.items()}

    def write(self, staged: dict[str, Tensor], folder: Path) -> dict[str, str]:
        """Writes the result of `stage`, one file each for model and optimizer; returns their SHA-256 by name.

        Replicated shards are written once, by the ranks of the first replica, which share a disk.
        """
        writer = HuggingFaceStorageWriter(str(folder), fqn_to_index_mapping=self._file_numbers, save_distributed=True)
        planner = DefaultSavePlanner(dedup_save_to_lowest_rank=True)
        save(staged, storage_writer=writer, planner=planner, process_group=self.gloo_group)
        prefix = file_prefix(self.ranks.rank)
        return {path.name: sha256_of_file(path) for path in sorted(folder.glob(f"{prefix}*"))}

    def read(self, folder: Path) -> None:
        """Loads this rank's shard of a checkpoint of any layout.

        The ranks that write a tensor read it (the first replica; of ranks that share matrices, the first one has the
        norms), and broadcast it to the ranks with copies. So in the same layout a rank needs only the files it wrote.

        Raises:
            InputError: a part that this rank reads is not in `folder`.
        """
        load_shards(self._own_state(), folder, self.ranks.rank)
        if self.biases and self.mesh.at("replicate") == 0:
            self._copy_along("context", self.biases)
            self._copy_along("shard", self.biases)
        if self.layout.tensor > 1 and self.mesh.at("replicate") == 0:
            self._copy_along("tensor", self._shared_state())
        if self.layout.replicate > 1:
            self._copy_along("replicate", self._state())

    def boxes(self) -> dict[str, Box]:
        """Returns which part of each tensor `read` reads from files on this rank, by name; {} on later replicas."""
        return {name: _box(tensor) for name, tensor in self._own_state().items()}

    def _own_state(self) -> dict[str, Tensor]:
        """Returns the tensors that this rank reads from files."""
        if self.mesh.at("replicate"):
            return {}
        shared = dict(self._shared_state()) if self.mesh.at("tensor") else {}
        if self.mesh.at("shard") or self.mesh.at("context"):
            shared |= self.biases
        return {name: tensor for name, tensor in self._state().items() if name not in shared}

    def _shared_state(self) -> Mapping[str, Tensor]:
        """Returns the tensors that ranks of tensor parallelism have copies of."""
        return self._select(RankCopies("norms", "", []), self._state())

    def _copy_along(self, dimension: str, state: Mapping[str, Tensor]) -> None:
        """Broadcasts tensors from the first rank of a dimension, in place."""
        group = self.mesh.group(dimension)
        for tensor in state.values():
            dist.broadcast(local(tensor), dist.get_global_rank(group, 0), group=group)


def load_shards(state: Mapping[str, Tensor], folder: Path, rank: int) -> None:
    """Copies the values of this rank's shards from a checkpoint into them, in place.

    Args:
        state: DTensors, or whole tensors, by name.
        folder: of the checkpoint; its files are not verified.
        rank: of the process; its own files are read first, and others only as far as they are needed.

    Raises:
        InputError: a part of a shard is in none of the files, or a file is malformed.
    """
    boxes = {name: _box(tensor) for name, tensor in state.items()}
    missing = {name: size for name, box in boxes.items() if (size := math.prod(box.shape))}
    for path in _in_order(folder, rank):
        if not missing:
            return
        for name, _, part in parts_in(path):
            if name in missing:
                missing[name] -= _copy_overlap(state[name], boxes[name], part)
                if not missing[name]:
                    del missing[name]
    if missing:
        name = next(iter(missing))
        raise InputError(f'{folder} lacks {missing[name]} values of "{name}" for rank {rank}', "delete the folder")


def _in_order(folder: Path, rank: int) -> Iterator[Path]:
    paths = sorted(path for path in folder.iterdir() if path.name != STATE and not path.name.startswith("."))
    own = file_prefix(rank)
    yield from sorted(paths, key=lambda path: not path.name.startswith(own))


def _box(tensor: Tensor) -> Box:
    """Returns which part of the whole tensor this rank's shard is."""
    if not isinstance(tensor, DTensor):
        return Box((0,) * tensor.ndim, tuple(tensor.shape))
    shape, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return Box(tuple(offsets), tuple(shape))


def _copy_overlap(tensor: Tensor, box: Box, part: TensorPart) -> int:
    """Copies the overlap of a part with the box of a shard into the shard; returns its number of values."""
    if (common := box.overlap(part.box)) is None:
        return 0
    shard: Tensor = tensor.detach()
    if isinstance(shard, DTensor):
        shard = shard.to_local()
    here, there = (
        tuple(slice(f - b, f - b + n) for f, b, n in zip(common.offsets, whole.offsets, common.shape, strict=True))
        for whole in (box, part.box)
    )
    stored = np.memmap(part.path, np.uint8, "r", part.begin, (*part.box.shape, shard.element_size()))
    values = torch.from_numpy(np.array(stored[there])).view(shard.dtype).squeeze(-1)
    shard[here].copy_(values)
    return math.prod(common.shape)


@torch.no_grad()
def initialize_shards(parameters: Mapping[str, DTensor], run: TrainConfig, mesh: Mesh) -> None:
    """Sets this rank's shards of the initial weights, in place; every rank with the same chunks calls this.

    The generator of a parameter has no cheap way to the numbers of one shard. So each rank draws some of the
    parameters, all at the same time, and sends them to the others, which take their shards.
    """
    constants = {
        name: initial_constant(run.model, name, parameter.shape, run.init) for name, parameter in parameters.items()
    }
    for name, constant in constants.items():
        if constant is not None:
            parameters[name].to_local().fill_(constant)
    # A round takes as long as its largest parameter, so parameters of similar size are in the same one.
    drawn = [name for name, constant in constants.items() if constant is None]
    drawn.sort(key=lambda name: (-parameters[name].numel(), name))
    ranks, here = mesh.ranks_of_stage(), dist.get_rank()
    group = dist.new_group(ranks, use_local_synchronization=True) if len(ranks) < dist.get_world_size() else None
    for first in range(0, len(drawn), len(ranks)):
        of_ranks = list(zip(ranks, drawn[first : first + len(ranks)], strict=False))
        own = [
            initial_weight(run.model, name, parameters[name].shape, run.init_seed, run.init)
            for rank, name in of_ranks
            if rank == here
        ]
        for rank, name in of_ranks:
            parameter = parameters[name]
            whole = own.pop().to(mesh.device) if rank == here else torch.empty(parameter.shape, device=mesh.device)
            dist.broadcast(whole, rank, group)
            shard = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
            parameter.to_local().copy_(shard.to_local())
    if group:
        dist.destroy_process_group(group)


def _copies(mesh: Mesh) -> list[RankCopies]:
    """Returns the state with copies on several ranks: all state on replicas, and the norms with tensor parallelism."""
    copies = []
    if mesh.layout.replicate > 1:
        copies.append(RankCopies("", "replicas", mesh.ranks_along("replicate")))
    if mesh.layout.tensor > 1:
        copies.append(RankCopies("norms", "ranks that share its matrices", mesh.ranks_along("tensor")))
    return copies


def _is_whole(parameter: DTensor) -> bool:
    """Whether a parameter is replicated over the ranks of tensor parallelism."""
    names = parameter.device_mesh.mesh_dim_names or ()
    return "tensor" in names and parameter.placements[names.index("tensor")].is_replicate()

"""A sharded model: parameters, gradients and optimizer state are distributed over ranks.

Gradients equal those of one rank up to rounding, because collectives determine the order of their sums.

A rank loads its shards from the files of a checkpoint of any layout, without collectives. Only the files that it needs
must be there: in the layout in which it was written, those of the same rank. Memory is that of one part of a tensor.
"""

import logging
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import SymInt, Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from tasks.core.digest import sha256_of_file
from tasks.core.errors import InputError
from tasks.trainer.checkpoints.checkpoint import STATE, Box, TensorPart, file_prefix, parts_in
from tasks.trainer.config import TrainConfig, TuningSpec
from tasks.trainer.data.batches import Batch
from tasks.trainer.integrity.pace import Stopwatch
from tasks.trainer.model.shape import ModelShape
from tasks.trainer.model.transformer import Transformer, initial_constant, initial_weight
from tasks.trainer.optim import build_optimizer, local, sum_of_squares
from tasks.trainer.parallel.apply import apply
from tasks.trainer.parallel.fit import check_fit, chunks_of_rank, layout_warnings
from tasks.trainer.parallel.mesh import Mesh
from tasks.trainer.parallel.pipeline import Pipeline, PipelineChunk
from tasks.trainer.parallel.ranks import Ranks, build_sum
from tasks.trainer.parallel.replica import BITS, GPU_TOLERANCE, RankCopies, hash_of
from tasks.trainer.place import Layout
from tasks.trainer.tuning.memory import Workload
from tasks.trainer.tuning.model import outline, with_frozen_parameters

log = logging.getLogger(__name__)


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


class Sharded:
    """This rank's shard of model and optimizer of a run; the caller loads the weights, or sets them by `initialize`.

    Args:
        run: settings of the run.
        layout: how ranks share the work.
        vocab_size: tokens of the vocabulary.
        seq_len: positions of a training sequence.
        ranks: the process group, already connected.
        tuning: settings of a fine-tuning, whose frozen weights are sharded, too.

    Raises:
        RecipeError: the run cannot be trained in this layout.
    """

    def __init__(
        self,
        run: TrainConfig,
        layout: Layout,
        vocab_size: int,
        seq_len: int,
        ranks: Ranks,
        tuning: TuningSpec | None = None,
    ) -> None:
        nodes = ranks.world // ranks.local_world
        check_fit(layout, run, vocab_size, seq_len, nodes, ranks.local_world)
        if ranks.rank == 0:
            for warning in layout_warnings(layout, nodes, ranks.local_world):
                log.warning("%s", warning)
            load = Workload(run, ModelShape.of(run.model, vocab_size), seq_len, tuning)
            _log_memory(load.memory_per_rank(layout, gpu=ranks.device.type == "cuda"))
        ranks.join_alone()
        self.run, self.layout, self.ranks, self.mesh = run, layout, ranks, Mesh.of(layout, ranks)
        self.numbers = self.numbers_of(0)
        self.chunks = shards_of(run, self.mesh, vocab_size, seq_len, tuning)
        for chunk in self.chunks:
            chunk.to_empty(device=self.mesh.device)
        rows = self.chunks[0].rows
        self._positions = None if rows is None else rows.cpu()
        """This rank's positions of a sequence, on the CPU; None: all."""
        self.parameters = {
            name: cast(DTensor, parameter)
            for chunk in self.chunks
            for name, parameter in chunk.named_parameters()
            if parameter.requires_grad
        }
        self.optimizer = build_optimizer(self.parameters, run)
        self._fingerprint = install_fingerprint(self.chunks, self.mesh)
        self.share: float | None = None
        self.share_tolerance = self._fingerprint.tolerance
        self._norm, self._labels = 0.0, 1.0
        """Euclidean norm of the last gradient over all ranks before it is divided by the number of labels; this."""
        self.peers = next(group for group in self.mesh.ranks_along("replicate", "shard") if ranks.rank in group)
        self.copies = _copies(self.mesh)
        parts = [_parts_of(parameter) for parameter in self.parameters.values()]
        self._parts = torch.tensor(parts, dtype=torch.float64, device=self.mesh.device)
        self._stopwatch = Stopwatch(self.mesh.device)
        self.hashes, self.seconds, self.timed = list[list[float]](), list[float](), "fixed matrix product"
        self.stop_requested = False
        pinned = self.mesh.device.type == "cuda"
        # Copies that do not block would end with a wait for all streams of the GPU, that of the next gradient, too.
        self._stager = DefaultStager(StagingOptions(pinned, False, False, False))
        self._gloo_group = ranks.checkpoint_group()
        self._file_numbers = self._gather_file_numbers()
        compressed = run.compression if layout.replicate > 1 else None
        self._compressed = build_sum(compressed, self.mesh.group("replicate")) if compressed else None
        self.pipeline = Pipeline(self.chunks, self.mesh, run, seq_len) if layout.pipeline > 1 else None

    def forward_backward(self, parts: Mapping[int, Batch], compared: bool = False) -> tuple[float, int, bool]:
        """Computes the summed gradient, see `Replica`; `seconds` is the duration of a fixed problem on each rank.

        The step reads the device here and nowhere else, once, after all of its microbatches: sums, norm, fingerprint,
        hashes and times are in one collective.
        """
        weights = (self._select(copies, self.parameters).values() for copies in self.copies)
        own: list[Tensor | float] = [*(hash_of(map(local, some)) for some in weights), self._stopwatch.seconds()]
        for parameter in self.parameters.values():
            parameter.grad = None
        self._fingerprint.start(compared)
        loss, count = self._backward(list(parts.values()))
        own.append(self._fingerprint.total())
        gradients = {name: local(cast(DTensor, parameter.grad)) for name, parameter in self.parameters.items()}
        if self._compressed:
            self._compressed.sum(gradients, self.optimizer.steps_taken)
        # Ranks of tensor or pipeline parallelism have processed the same tokens, so only one of them counts.
        counts = self.mesh.at("tensor") == 0 and self.mesh.at("pipeline") == self.layout.pipeline - 1
        # Each rank sums the squares of its values, each divided by the number of ranks with a copy of it.
        square = sum_of_squares(list(gradients.values()), self._parts, self.layout.ranks // self.layout.pipeline)
        numbers = torch.tensor([count * counts, self.stop_requested], dtype=torch.float64)
        sums = torch.cat((torch.stack((loss * counts, square)), numbers.to(self.mesh.device, non_blocking=True)))
        (loss_sum, square_sum, total, stopped), (*self.hashes, seconds, shares) = self.ranks.sum_and_collect(sums, own)
        self.seconds = seconds if any(seconds) else []
        self.share = shares[self.ranks.rank] if compared else None
        self._norm, self._labels = math.sqrt(square_sum) if square_sum >= 0 else math.nan, max(total, 1.0)
        return loss_sum / self._labels, int(total), stopped > 0

    def _backward(self, parts: list[Batch]) -> tuple[Tensor, int]:
        """Accumulates the gradients of microbatches; returns their loss, float64 scalar, and labels on this rank."""
        count = sum(self._count(part) for part in parts)
        microbatches = [self._to_local(part) for part in parts]
        if self.pipeline:
            return self.pipeline.backward(microbatches).double(), count
        (model,) = self.chunks
        return accumulate(model, microbatches, self.layout.zero), count

    def initialize(self) -> None:
        """Sets the random initial weights."""
        initialize_shards(self.parameters, self.run, self.mesh)

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

    def numbers_of(self, shift: int) -> range:
        """Returns the numbers of the microbatches of the rank `shift` positions later in `peers`."""
        first = (self.mesh.data_rank + shift) % self.layout.data_ranks
        return range(self.run.batch_size // self.run.microbatch)[first :: self.layout.data_ranks]

    def probe(self, parts: Sequence[Batch]) -> NDArray[np.float64]:
        """Returns the summed loss of each part at this rank's positions, shape (parts,), without gradients.

        Only one of the ranks of tensor parallelism, and the last rank of a pipeline, return the loss; others return
        zeros.
        """
        losses = []
        with torch.no_grad():
            for part in parts:
                here = self._to_local(part)
                if self.pipeline:
                    losses.append(self.pipeline.loss(here, self._gloo_group))
                else:
                    losses.append(float(self.chunks[0].loss(here.tokens, here.documents, here.labels, here.bounds)))
        return np.array(losses) * (self.mesh.at("tensor") == 0)

    def terms(self, part: Batch) -> int:
        """Returns the number of terms in the loss of a whole part on the CPU."""
        return self.chunks[0].counted(part.documents, part.labels)

    def _to_local(self, part: Batch) -> Batch:
        """Returns a microbatch on the device: tokens and labels at this rank's positions, and all of its documents."""
        here, rows = part.on(self.mesh.device), self.chunks[0].rows
        return here if rows is None else replace(here, tokens=here.tokens[:, rows], labels=here.labels[:, rows])

    def _count(self, part: Batch) -> int:
        """Returns the number of terms in the loss of a microbatch on the CPU at this rank's positions."""
        labels = part.labels if self._positions is None else part.labels[:, self._positions]
        return self.chunks[0].counted(part.documents, labels)

    def load_weights(self, file: Path) -> None:
        """Loads this rank's shard of the weights from a safetensors file, which every rank must be able to read."""
        state = {name: parameter.detach() for name, parameter in self.parameters.items()}
        with tempfile.TemporaryDirectory() as alone:  # the reader opens all files of a folder
            (Path(alone) / file.name).with_suffix(".safetensors").symlink_to(file.absolute())
            load(state, storage_reader=HuggingFaceStorageReader(alone), process_group=self._gloo_group)

    def clip(self, limit: float) -> float:
        """Limits the norm of the mean gradient over all ranks, see `Replica`: the optimizer divides what `.grad` has.

        Dividing and clipping take no pass over the gradient.
        """
        norm = self._norm / self._labels
        self.optimizer.divisor = self._labels * (norm / limit if limit < norm < math.inf else 1.0)
        return norm

    def stage(self) -> dict[str, Tensor]:
        """Returns a copy of this rank's shard of the state, in buffers that the next call overwrites."""
        return cast(dict[str, Tensor], self._stager.stage(self._state()))

    def _state(self) -> dict[str, Tensor]:
        return {**{name: parameter.detach() for name, parameter in self.parameters.items()}, **self.optimizer.state()}

    def _gather_file_numbers(self) -> dict[str, int]:
        """Returns the number of the file, 1 (model) or 2 (optimizer), of each tensor by name, over all ranks."""
        own = {name: 1 if name in self.parameters else 2 for name in self._state()}
        everyone: list[dict[str, int]] = [{} for _ in range(self.ranks.world)]
        dist.all_gather_object(everyone, own, group=self._gloo_group)
        return {name: file for of_rank in everyone for name, file in of_rank.items()}

    def write(self, staged: dict[str, Tensor], folder: Path) -> dict[str, str]:
        """Writes the result of `stage`, one file each for model and optimizer; returns their SHA-256 by name.

        Replicated shards are written once, by the ranks of the first replica, which share a disk.
        """
        writer = HuggingFaceStorageWriter(str(folder), fqn_to_index_mapping=self._file_numbers, save_distributed=True)
        planner = DefaultSavePlanner(dedup_save_to_lowest_rank=True)
        save(staged, storage_writer=writer, planner=planner, process_group=self._gloo_group)
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
        shared = self._shared_state() if self.mesh.at("tensor") else {}
        return {name: tensor for name, tensor in self._state().items() if name not in shared}

    def _shared_state(self) -> Mapping[str, Tensor]:
        """Returns the tensors that ranks of tensor parallelism have copies of."""
        return self._select(RankCopies("norms", "", []), self._state())

    def _copy_along(self, dimension: str, state: Mapping[str, Tensor]) -> None:
        """Broadcasts tensors from the first rank of a dimension, in place."""
        group = self.mesh.group(dimension)
        for tensor in state.values():
            dist.broadcast(local(tensor), dist.get_global_rank(group, 0), group=group)


def shards_of(
    run: TrainConfig, mesh: Mesh, vocab_size: int, seq_len: int, tuning: TuningSpec | None = None
) -> list[Transformer]:
    """Returns this rank's chunks of the model, sharded, on the meta device; of a fine-tuning, the whole model."""
    if tuning is None:
        with torch.device("meta"):
            own = chunks_of_rank(run.model.layers, mesh.layout, mesh.at("pipeline"))
            chunks = [PipelineChunk(run.model, vocab_size, layers) for layers in own]
        for chunk in chunks:
            apply(chunk, mesh, run, seq_len)
        return list(chunks)
    whole = with_frozen_parameters(outline(run.model, tuning))
    # A model that contains another one, its frozen reference, is sharded after it.
    for model in [module for module in whole.modules() if isinstance(module, Transformer)][::-1]:
        apply(model, mesh, run, seq_len)
    if tuning.loss == "dpo" and isinstance(whole.head, FSDPModule):
        whole.head.set_unshard_in_backward(True)  # this loss computes its gradients in the backward pass
    return [whole]


@torch.no_grad()
def initialize_shards(parameters: Mapping[str, DTensor], run: TrainConfig, mesh: Mesh) -> None:
    """Sets this rank's shards of the initial weights, in place; every rank with the same chunks calls this.

    The generator of a parameter has no cheap way to the numbers of one shard. So each rank draws some of the
    parameters, all at the same time, and sends them to the others, which take their shards.
    """
    constants = {name: initial_constant(name, parameter.shape) for name, parameter in parameters.items()}
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
            initial_weight(run.model, name, parameters[name].shape, run.init_seed)
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


def accumulate(model: Transformer, microbatches: Sequence[Batch], zero: int) -> Tensor:
    """Adds the gradients of microbatches to those of a model without a pipeline; returns their loss, float64 scalar."""
    assert isinstance(model, FSDPModule)
    total = torch.zeros((), dtype=torch.float64, device=microbatches[0].tokens.device)
    for index, part in enumerate(microbatches, start=1):
        last = index == len(microbatches)
        model.set_is_last_backward(last)
        model.set_requires_gradient_sync(last or zero > 1)
        model.set_requires_all_reduce(last)  # replicas sum once a step; until then a rank sums its own shards
        model.set_reshard_after_backward(last or zero > 2)
        loss = model.loss(part.tokens, part.documents, part.labels, part.bounds)
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    return total


def _log_memory(needs: Mapping[str, int]) -> None:
    """Logs the result of `memory_per_rank`."""
    parts = ", ".join(f"{name} {size / 2**30:.2f}" for name, size in needs.items())
    log.info("a rank needs about %.2f GiB (%s)", sum(needs.values()) / 2**30, parts)


class FingerprintReduceScatter(DefaultReduceScatter):
    """A reduce-scatter for FSDP that can compute a fingerprint of this rank's contribution to the gradient.

    With FSDP, the gradient of a single rank exists only in the input buffers of the reduce-scatter.

    On a CPU, where recomputed gradients are bit-identical, the fingerprint is a hash. On a GPU it is the Euclidean
    norm.

    Args:
        device: of the gradients.
        alone: whether there is nothing to sum, since the rank has no other to share its state with. Then FSDP copies
            the input to the output, and both are the same memory.
    """

    def __init__(self, device: torch.device, *, alone: bool) -> None:
        self.tolerance, self.alone = 0.0 if device.type == "cpu" else GPU_TOLERANCE, alone
        self._total = torch.zeros((), dtype=torch.float64 if self.tolerance else torch.int64, device=device)
        self._filling: Tensor | None = None
        self._on = False

    def start(self, on: bool) -> None:
        """Begins a gradient, with or without a fingerprint."""
        self._on = on
        self._total.zero_()

    def allocate(self, size: Sequence[int | SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Returns the input buffer, or on the next call the output buffer, and then reads the complete input."""
        if self._filling is None:
            self._filling = super().allocate(size, dtype=dtype, device=device)
            return self._filling
        filled, self._filling = self._filling, None
        if self._on and self.tolerance:
            self._total += torch.linalg.vector_norm(filled).double().square()
        elif self._on:
            self._total += hash_of([filled])
        if not self.alone:
            output: Tensor = super().allocate(size, dtype=dtype, device=device)
            return output
        if filled.is_cuda:
            filled.record_stream(torch.cuda.current_stream())  # FSDP allocates an output in the stream that reads it
        return filled

    def total(self) -> Tensor:
        """Returns the fingerprint of all inputs since `start`, a scalar that float64 represents exactly."""
        return self._total.sqrt() if self.tolerance else self._total.bitwise_and(2**BITS - 1)


def install_fingerprint(chunks: Sequence[torch.nn.Module], mesh: Mesh) -> FingerprintReduceScatter:
    """Installs one fingerprinting reduce-scatter in all FSDP modules of this rank, and returns it."""
    reduce_scatter = FingerprintReduceScatter(mesh.device, alone=mesh.state.size() == 1)
    for chunk in chunks:
        for module in chunk.modules():
            if isinstance(module, FSDPModule):
                module.set_custom_reduce_scatter(reduce_scatter)
    return reduce_scatter


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


def _parts_of(parameter: DTensor) -> int:
    """Returns the number of parts into which a parameter is divided; each is on one rank or more."""
    mesh = parameter.device_mesh
    return math.prod(mesh.size(dim) for dim, place in enumerate(parameter.placements) if not place.is_replicate())

"""A model whose parameters, gradients and optimizer state are sharded over ranks.

Gradients are those of one rank up to rounding: sums over ranks are taken by the collectives, in their order.
"""

import logging
import math
import tempfile
from collections.abc import Mapping, Sequence
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

from tasks.core.digest import sha256_of_file
from tasks.core.errors import InputError
from tasks.trainer.config import TrainConfig
from tasks.trainer.data.batches import Batch
from tasks.trainer.integrity.corruption import BITS, GPU_TOLERANCE, RankCopies, hash_of
from tasks.trainer.integrity.pace import Stopwatch
from tasks.trainer.model.loss import IGNORED
from tasks.trainer.model.shape import ModelShape
from tasks.trainer.model.transformer import initial_weight
from tasks.trainer.optim import build_optimizer, local
from tasks.trainer.parallel.apply import apply
from tasks.trainer.parallel.fit import check_fit, memory_per_rank
from tasks.trainer.parallel.mesh import Mesh
from tasks.trainer.parallel.pipeline import Pipeline, PipelineChunk, chunks_of
from tasks.trainer.parallel.ranks import TIMEOUT, Ranks, build_sum
from tasks.trainer.place import Layout

log = logging.getLogger(__name__)


class Sharded:
    """The part of a run's model that this rank has.

    Args:
        run: settings of the run.
        layout: how ranks share the work.
        vocab_size: tokens of the vocabulary.
        seq_len: positions of a training sequence.
        ranks: the process group, already connected.

    Raises:
        RecipeError: the run cannot be trained in this layout.
    """

    def __init__(self, run: TrainConfig, layout: Layout, vocab_size: int, seq_len: int, ranks: Ranks) -> None:
        check_fit(layout, run, vocab_size, seq_len, ranks.world)
        if ranks.rank == 0:
            needs = memory_per_rank(
                layout, run, ModelShape.of(run.model, vocab_size), seq_len, gpu=ranks.device.type == "cuda"
            )
            parts = ", ".join(f"{name} {size / 2**30:.2f}" for name, size in needs.items())
            log.info("a rank needs about %.2f GiB (%s)", sum(needs.values()) / 2**30, parts)
        ranks.join_alone()
        self.run, self.layout, self.ranks, self.mesh = run, layout, ranks, Mesh.of(layout, ranks)
        self.numbers = self.numbers_of(0)
        with torch.device("meta"):
            self.chunks = [
                PipelineChunk(run.model, vocab_size, layers) for layers in chunks_of(run.model.layers, self.mesh)
            ]
        for chunk in self.chunks:
            apply(chunk, self.mesh, run, seq_len)
            chunk.to_empty(device=self.mesh.device)
        self.parameters = {
            name: cast(DTensor, parameter) for chunk in self.chunks for name, parameter in chunk.named_parameters()
        }
        self._initialise(run)
        self.optimizer = build_optimizer(self.parameters, run)
        self._contribution = contribution_of(self.chunks, self.mesh)
        self.share, self.share_tolerance = 0.0, self._contribution.tolerance
        self.peers = next(group for group in self.mesh.ranks_along("replicate", "shard") if ranks.rank in group)
        self.copies = _copies(self.mesh)
        self._stopwatch = Stopwatch(self.mesh.device)
        self.hashes, self.seconds, self.timed = list[list[float]](), list[float](), "fixed matrix product"
        self.stop_requested = False
        """Whether this rank has got a SIGTERM, which the next gradient tells all ranks."""
        pinned = self.mesh.device.type == "cuda"
        self._stager = DefaultStager(StagingOptions(pinned, False, False, pinned))
        self._everyone = dist.new_group(backend="gloo", timeout=TIMEOUT)
        self._replica = _replica_group(self.mesh)
        self._files = self._all_files()
        compressed = run.compression if layout.replicate > 1 else None
        self._compressed = build_sum(compressed, self.mesh.group("replicate")) if compressed else None
        self.pipeline = Pipeline(self.chunks, self.mesh, len(self.numbers)) if layout.pipeline > 1 else None

    def _initialise(self, run: TrainConfig) -> None:
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                whole = initial_weight(run.model, name, parameter.shape, run.init_seed).to(self.mesh.device)
                mine = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
                parameter.to_local().copy_(mine.to_local())

    def forward_backward(self, parts: Mapping[int, Batch]) -> tuple[float, int, bool]:
        """Computes the mean gradient of the whole batch into the `.grad` of the parameters.

        Args:
            parts: the microbatches of this rank by number; those of `numbers`, or to check other ranks theirs.

        Returns:
            Mean loss in nats per token, tokens with a label, and whether any rank got a SIGTERM. After it `hashes` and
            now and then `seconds` have what each rank began with, and how long a fixed problem takes it; `share` is the
            fingerprint of this rank's part of the gradient.
        """
        own = [hash_of(map(local, self._copied(copies, self.parameters).values())) for copies in self.copies]
        own.append(torch.tensor(self._stopwatch.seconds(), dtype=torch.float64))
        for parameter in self.parameters.values():
            parameter.grad = None
        loss, count = self._backward(list(parts.values()))
        self.share = self._contribution.take()
        if self._compressed:
            gradients = {name: local(cast(DTensor, param.grad)) for name, param in self.parameters.items()}
            self._compressed.sum(gradients, self.optimizer.steps_taken)
        # Ranks that share matrices or layers have computed the same tokens.
        counts = self.mesh.at("tensor") == 0 and self.mesh.at("pipeline") == self.layout.pipeline - 1
        mine = [loss * counts, count * counts, self.stop_requested]
        sums = torch.tensor(mine, dtype=torch.float64, device=self.mesh.device)
        (loss_sum, total, stopped), (*self.hashes, seconds) = self.ranks.sum_and_collect(sums, own)
        self.seconds = seconds if any(seconds) else []
        for parameter in self.parameters.values():
            assert isinstance(parameter.grad, DTensor)
            parameter.grad.to_local().div_(max(total, 1))
        return loss_sum / max(total, 1), int(total), stopped > 0

    def _backward(self, parts: list[Batch]) -> tuple[float, int]:
        """Sums the gradients of microbatches; returns their summed loss and the number of labels of this rank."""
        microbatches = [self._mine(part) for part in parts]
        count = sum(int((labels != IGNORED).sum()) for _, labels, _ in microbatches)
        if self.pipeline:
            return float(self.pipeline.backward(microbatches)), count
        total = torch.zeros((), dtype=torch.float64, device=self.mesh.device)
        (model,) = self.chunks
        assert isinstance(model, FSDPModule)
        for index, (tokens, labels, documents) in enumerate(microbatches, start=1):
            last = index == len(microbatches)
            model.set_is_last_backward(last)
            model.set_requires_gradient_sync(last or self.layout.zero > 1)
            model.set_reshard_after_backward(last or self.layout.zero > 2)
            loss = model.loss(tokens, documents, labels)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return float(total), count

    def state_hashes(self) -> list[Tensor]:
        """Returns for each of `copies` the hash of this rank's part of weights and optimizer state, int64 scalar."""
        return [hash_of(map(local, self._copied(copies, self._state()).values())) for copies in self.copies]

    def _copied(self, copies: RankCopies, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Returns the tensors of a state that `copies` means, by name."""
        if not copies.name:
            return state
        whole = {name for name, parameter in self.parameters.items() if _is_whole(parameter)}
        # The optimizer's tensors are named "<moment>.<parameter>".
        return {name: state[name] for name in state if name in whole or name.partition(".")[2] in whole}

    def numbers_of(self, shift: int) -> range:
        """Returns the microbatches of the rank that is so many places further in `peers`."""
        first = (self.mesh.data_rank + shift) % self.layout.data_ranks
        return range(self.run.batch_size // self.run.microbatch)[first :: self.layout.data_ranks]

    def probe(self, parts: Sequence[Batch]) -> NDArray[np.float64]:
        """Returns the summed loss of each part at this rank's positions, shape (parts,), without gradients.

        Of ranks that share every matrix, and so compute the same loss, one returns it and the others zeros; in a
        pipeline the last one.
        """
        losses = []
        with torch.no_grad():
            for part in parts:
                tokens, labels, documents = self._mine(part)
                if self.pipeline:
                    losses.append(self.pipeline.loss(tokens, labels, documents, self._everyone))
                else:
                    losses.append(float(self.chunks[0].loss(tokens, documents, labels)))
        return np.array(losses) * (self.mesh.at("tensor") == 0)

    def _mine(self, part: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Returns tokens and labels of a microbatch at this rank's positions, and its documents, on the device."""
        rows, device = self.chunks[0].rows, self.mesh.device
        given = (part.tokens, part.labels, part.documents)
        tokens, labels, documents = (tensor.to(device, non_blocking=True) for tensor in given)
        return (tokens, labels, documents) if rows is None else (tokens[:, rows], labels[:, rows], documents)

    def load_weights(self, file: Path) -> None:
        """Loads this rank's part of the weights from a safetensors file, which every rank can read."""
        state = {name: parameter.detach() for name, parameter in self.parameters.items()}
        with tempfile.TemporaryDirectory() as alone:  # the reader opens every file of a folder
            (Path(alone) / file.name).with_suffix(".safetensors").symlink_to(file.absolute())
            load(state, storage_reader=HuggingFaceStorageReader(alone), process_group=self._everyone)

    def clip(self, limit: float) -> float:
        """Scales the gradient so that its Euclidean norm over all ranks is at most `limit`; returns the norm before.

        Every rank adds the squares of the values that it has, each divided by the number of ranks that have it, too.
        """
        ranks = self.layout.ranks // self.layout.pipeline
        total = torch.zeros((), dtype=torch.float64, device=self.mesh.device)
        for parameter in self.parameters.values():
            grad = parameter.grad
            assert isinstance(grad, DTensor)
            shares = math.prod(
                grad.device_mesh.size(dim) for dim, place in enumerate(grad.placements) if not place.is_replicate()
            )
            total += torch.linalg.vector_norm(grad.to_local(), dtype=torch.float64).square() * shares / ranks
        dist.all_reduce(total)
        norm = math.sqrt(float(total)) if float(total) >= 0 else math.nan
        if limit < norm < math.inf:
            for parameter in self.parameters.values():
                assert isinstance(parameter.grad, DTensor)
                parameter.grad.to_local().mul_(limit / norm)
        return norm

    def stage(self) -> dict[str, Tensor]:
        """Returns a copy of this rank's part of the state, in memory that the next call overwrites."""
        return cast(dict[str, Tensor], self._stager.stage(self._state()))

    def _state(self) -> dict[str, Tensor]:
        return {**{name: parameter.detach() for name, parameter in self.parameters.items()}, **self.optimizer.state()}

    def _all_files(self) -> dict[str, int]:
        """Returns which of a rank's two files a tensor goes to, 1 or 2, by name; those of all ranks of a pipeline."""
        mine = {name: 1 if name in self.parameters else 2 for name in self._state()}
        everyone: list[dict[str, int]] = [{} for _ in range(self.ranks.world)]
        dist.all_gather_object(everyone, mine, group=self._everyone)
        return {name: file for one in everyone for name, file in one.items()}

    def write(self, staged: dict[str, Tensor], folder: Path) -> dict[str, str]:
        """Writes what `stage` returned, one file with the model's part and one with the optimizer's; once per replica.

        The ranks of the first replica write everything: they share a disk.
        """
        writer = HuggingFaceStorageWriter(str(folder), fqn_to_index_mapping=self._files, save_distributed=True)
        planner = DefaultSavePlanner(dedup_save_to_lowest_rank=True)
        save(staged, storage_writer=writer, planner=planner, process_group=self._everyone)
        mine = f"shard-{self.ranks.rank + 1:05d}-"
        return {path.name: sha256_of_file(path) for path in sorted(folder.glob(f"{mine}*"))}

    def read(self, folder: Path | None) -> None:
        """Loads this rank's part of a checkpoint of any layout; the first replica reads, the others copy from it.

        Raises:
            InputError: a rank of the first replica has no checkpoint on its disk.
        """
        if self.mesh.at("replicate") == 0:
            if folder is None:
                raise InputError(
                    f"rank {self.ranks.rank} does not see the checkpoints of rank 0",
                    "a replica's ranks must share a disk: raise replicate in [place.train.layout], or use one node",
                )
            load(self._state(), storage_reader=HuggingFaceStorageReader(str(folder)), process_group=self._replica)
        if self.layout.replicate > 1:
            group = self.mesh.group("replicate")
            for tensor in self._state().values():
                dist.broadcast(local(tensor), dist.get_global_rank(group, 0), group=group)


class Contribution(DefaultReduceScatter):
    """The sum over ranks of some layers' gradients, which takes a fingerprint of what this rank adds.

    FSDP has a rank's own gradient nowhere but in the buffers that it sums, one per layer and reduction.

    On a CPU, where a gradient has the same bits when it is computed again, the fingerprint is a hash of them. On a GPU
    it is the Euclidean norm.

    Args:
        device: of the gradients.
    """

    def __init__(self, device: torch.device) -> None:
        self.tolerance = 0.0 if device.type == "cpu" else GPU_TOLERANCE
        self._total = torch.zeros((), dtype=torch.float64 if self.tolerance else torch.int64, device=device)
        self._filling: Tensor | None = None

    def allocate(self, size: Sequence[int | SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Returns memory for what is added, and with the next call for the sum: then the first is filled, and read."""
        memory: Tensor = super().allocate(size, dtype=dtype, device=device)
        if self._filling is None:
            self._filling = memory
            return memory
        if self.tolerance:
            self._total += torch.linalg.vector_norm(self._filling).double().square()
        else:
            self._total += hash_of([self._filling])
        self._filling = None
        return memory

    def take(self) -> float:
        """Returns the fingerprint of all that was added since the last call."""
        total = float(self._total.sqrt() if self.tolerance else self._total.bitwise_and(2**BITS - 1))
        self._total.zero_()
        return total


def contribution_of(chunks: Sequence[torch.nn.Module], mesh: Mesh) -> Contribution:
    """Returns what reads the gradients of all FSDP modules of this rank from now on."""
    made = Contribution(mesh.device)
    for chunk in chunks:
        for module in chunk.modules():
            if isinstance(module, FSDPModule):
                module.set_custom_reduce_scatter(made)
    return made


def _copies(mesh: Mesh) -> list[RankCopies]:
    """Returns what ranks have copies of: replicas all their state, and ranks that share matrices the norms."""
    found = []
    if mesh.layout.replicate > 1:
        found.append(RankCopies("", "replicas", mesh.ranks_along("replicate")))
    if mesh.layout.tensor > 1:
        found.append(RankCopies("norms", "ranks that share its matrices", mesh.ranks_along("tensor")))
    return found


def _is_whole(parameter: DTensor) -> bool:
    """Whether all ranks that share matrices have the same of a parameter."""
    names = parameter.device_mesh.mesh_dim_names or ()
    return "tensor" in names and parameter.placements[names.index("tensor")].is_replicate()


def _replica_group(mesh: Mesh) -> dist.ProcessGroup:
    """Returns the ranks of this rank's replica, over gloo; every rank takes part in making the groups of all."""
    size = mesh.layout.ranks // mesh.layout.replicate
    members = [list(range(first, first + size)) for first in range(0, mesh.layout.ranks, size)]
    mine, _ = dist.new_subgroups_by_enumeration(members, timeout=TIMEOUT, backend="gloo")  # type: ignore[no-untyped-call]
    return cast(dist.ProcessGroup, mine)

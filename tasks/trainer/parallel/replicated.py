"""A replicated model: data parallelism with results bit-identical to those of one rank.

Gradients are summed over microbatches in a tree that does not depend on the number of ranks (`ranks`), so 1 and 2 ranks
write byte-identical checkpoints, unless gradients are compressed (`ranks.build_sum`).
"""

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from tasks.core.digest import sha256_of_file
from tasks.core.errors import InputError
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.config import TrainConfig
from tasks.trainer.data.batches import Batch
from tasks.trainer.model.experts import Loads
from tasks.trainer.model.transformer import Transformer, set_initial_weights
from tasks.trainer.optim import build_optimizer, clip, load_optimizer
from tasks.trainer.parallel.compilation import best_kernel
from tasks.trainer.parallel.ranks import Ranks, build_sum, tree_sum
from tasks.trainer.parallel.replica import GPU_TOLERANCE, RankCopies, hash_of
from tasks.trainer.parallel.start import CPU, check_fp8


class Replicated:
    """Replicated model and optimizer of a run.

    Args:
        run: settings of the run.
        vocab_size: tokens of the vocabulary.
        ranks: the process group, already connected.
        model: the model; None: a new model, whose weights the caller loads or sets by `initialize`.

    Raises:
        InputError: there are more ranks than microbatches.
    """

    layout = None
    """None: every rank has the whole model."""

    def __init__(self, run: TrainConfig, vocab_size: int, ranks: Ranks, model: Transformer | None = None) -> None:
        self.run, self.ranks = run, ranks
        check_ranks(run, ranks.world)
        if run.precision == "fp8":
            check_fp8(CPU, None)
        self.numbers = self.numbers_of(0)
        self.model = (model or Transformer(run.model, vocab_size)).to(ranks.device)
        self.chunks = [self.model]
        self._choose_kernel()
        if run.z_loss:
            self.model.add_z_loss(run.z_loss)
        self.optimizer = build_optimizer(dict(self.model.named_parameters()), run)
        self.loads = Loads(run.model, self.model.layers.items())
        self._gradient = _flat_gradient(self.model)
        self._compressed = build_sum(run.compression) if run.compression and ranks.world > 1 else None
        all_ranks = list(range(ranks.world))
        self.peers, self.copies = all_ranks, [RankCopies("", "replicas", [all_ranks])] if ranks.world > 1 else []
        self.hashes, self.seconds = list[list[float]](), list[float]()
        self.share: float | None = None
        self.timed, self.z_loss = "step", 0.0
        self.share_tolerance = GPU_TOLERANCE if ranks.device.type == "cuda" else 0.0
        self.stop_requested = False
        self._staged: dict[str, Tensor] = {}

    def initialize(self) -> None:
        """Sets the random initial weights."""
        set_initial_weights(self.model, self.run.model, self.run.init_seed, self.run.init)

    def _choose_kernel(self) -> None:
        """Sets the attention kernel of the model, and of a frozen reference within it."""
        dtype = torch.float32 if self.run.precision == "fp32" else torch.bfloat16
        kernel = best_kernel(self.ranks.device, dtype, self.run.model)
        for module in self.model.modules():
            if isinstance(module, Transformer):
                module.kernel = kernel

    def forward_backward(self, parts: Mapping[int, Batch], compared: bool = False) -> tuple[float, int, bool]:
        """Computes the mean gradient, see `Replica`; `seconds` is the computation time of each rank."""
        started = time.perf_counter()
        own: list[Tensor | float] = [hash_of(self.model.parameters())] if self.copies else []

        def compute(number: int) -> list[Tensor]:
            return self._backward(parts[number])

        gradient, sums = tree_sum(list(parts), compute)
        sums[2] = float(self.stop_requested)
        # Bit-identical on a CPU; on a GPU the order of sums is not fixed.
        self.share = float(torch.linalg.vector_norm(gradient) if self.share_tolerance else hash_of([gradient]))
        own.append(time.perf_counter() - started)
        self._sum(gradient)
        (loss_sum, count, stopped, z_sum, *loads), (*self.hashes, self.seconds) = self.ranks.sum_and_collect(sums, own)
        self.loads.set(loads)
        self.z_loss = z_sum / max(count, 1)
        # If all documents of the batch are withheld, there are no labels and no mean.
        self._gradient.copy_(gradient.div_(max(count, 1)))
        return loss_sum / max(count, 1), int(count), stopped > 0

    def _sum(self, gradient: Tensor) -> None:
        """Sums the gradients of all ranks, in place."""
        if self._compressed is None:
            self.ranks.sum([gradient])
            return
        params = dict(self.model.named_parameters())
        parts = torch.split(gradient, [param.numel() for param in params.values()])
        gradients = {name: part.view_as(params[name]) for name, part in zip(params, parts, strict=True)}
        self._compressed.sum(gradients, self.optimizer.steps_taken)

    def _backward(self, part: Batch) -> list[Tensor]:
        """Returns the summed gradient, and (summed loss, tokens with a label, 0, z-loss, loads), of one microbatch."""
        here = part.on(self.ranks.device)
        self._gradient.zero_()
        self.loads.take()
        with self._autocast():
            loss = self.model.loss(here.tokens, here.documents, here.labels, here.bounds)
        loss.backward()  # type: ignore[no-untyped-call]
        sums = torch.zeros(4, dtype=torch.float64, device=self.ranks.device)
        sums[0] = loss.detach()
        sums[1] = self.model.counted(part.documents, part.labels)
        sums[3] = self.model.z_loss.take()
        return [self._gradient, torch.cat((sums, self.loads.take().to(sums)))]

    def state_hashes(self) -> list[Tensor]:
        """Returns the hash of weights and optimizer state for each of `copies`, int64 scalars."""
        return [hash_of([*self.model.state_dict().values(), *self.optimizer.state().values()])] if self.copies else []

    def numbers_of(self, shift: int) -> range:
        """Returns the numbers of the microbatches of the rank `shift` positions later in `peers`."""
        microbatches = self.run.batch_size // self.run.microbatch
        return range(microbatches)[(self.ranks.rank + shift) % self.ranks.world :: self.ranks.world]

    def probe(self, parts: Sequence[Batch]) -> NDArray[np.float64]:
        """Returns the summed loss of each part, shape (parts,), with the current weights and without gradients."""
        losses = []
        for part in parts:
            here = part.on(self.ranks.device)
            with torch.no_grad(), self._autocast():
                losses.append(float(self.model.loss(here.tokens, here.documents, here.labels, here.bounds)))
        return np.array(losses)

    def terms(self, part: Batch) -> int:
        """Returns the number of terms in the loss of a part on the CPU."""
        return self.model.counted(part.documents, part.labels)

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.ranks.device.type, torch.bfloat16, enabled=self.run.precision == "bf16")

    def load_weights(self, file: Path) -> None:
        """Loads weights from a safetensors file on rank 0, and broadcasts them to all ranks."""
        if self.ranks.rank == 0:
            self.model.load_state_dict(load_file(file))
        self.ranks.copy(self.model.state_dict().values())

    def clip(self, limit: float) -> float:
        """Scales the gradient so that its Euclidean norm is at most `limit`; returns the norm before."""
        return clip(self._gradient, limit)

    def stage(self) -> dict[str, dict[str, Tensor]]:
        """Returns a copy of the state by file, in buffers that the next call overwrites; {} on ranks other than 0."""
        if self.ranks.rank:
            return {}
        staged = {}
        for file, tensors in (
            (checkpoint.MODEL, self.model.state_dict()),
            (checkpoint.OPTIMIZER, self.optimizer.state()),
        ):
            staged[file] = {name: self._staged_copy(name, tensors[name].detach()) for name in sorted(tensors)}
        return staged

    def _staged_copy(self, name: str, tensor: Tensor) -> Tensor:
        if name not in self._staged:
            self._staged[name] = torch.empty_like(tensor, device="cpu")
        return self._staged[name].copy_(tensor)

    def write(self, staged: dict[str, dict[str, Tensor]], folder: Path) -> dict[str, str]:
        """Writes the result of `stage`; returns the SHA-256 of the files by name."""
        for file, tensors in staged.items():
            save_file(tensors, folder / file)
        return {file: sha256_of_file(folder / file) for file in staged}

    def boxes(self) -> dict[str, checkpoint.Box] | None:
        """Returns {} on ranks that read nothing from files, and None on rank 0, which reads everything."""
        return {} if self.ranks.rank else None

    def read(self, folder: Path) -> None:
        """Loads a checkpoint on rank 0, and broadcasts the state to all ranks."""
        if self.ranks.rank == 0:
            with whole_checkpoint(folder) as whole:
                self.model.load_state_dict(load_file(whole / checkpoint.MODEL))
                load_optimizer(self.optimizer, load_file(whole / checkpoint.OPTIMIZER))
        self.ranks.copy(self.model.state_dict().values())
        self.ranks.copy(self.optimizer.state().values())


def check_ranks(run: TrainConfig, world: int) -> None:
    """Raises InputError if there are more ranks than microbatches."""
    microbatches = run.common_batch // run.microbatch
    if world > microbatches:
        raise InputError(
            f"{world} ranks cannot share {microbatches} microbatches a step",
            "use fewer ranks, a smaller microbatch or a larger batch_size",
        )


@contextmanager
def whole_checkpoint(folder: Path) -> Iterator[Path]:
    """Yields the folder of a whole checkpoint: `folder`, or a temporary merged copy of its shards."""
    if checkpoint.is_whole(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".whole-") as temporary:
        yield checkpoint.merge(folder, Path(temporary))


def _flat_gradient(model: Transformer) -> Tensor:
    """Returns one fp32 vector whose parts are the `.grad` of the parameters, to sum them in one collective."""
    params = list(model.parameters())
    flat = torch.zeros(sum(p.numel() for p in params), dtype=torch.float32, device=params[0].device)
    offset = 0
    for param in params:
        param.grad = flat[offset : offset + param.numel()].view_as(param)
        offset += param.numel()
    return flat

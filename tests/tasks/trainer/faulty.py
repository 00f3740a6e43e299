"""Ranks with faults, as processes.

Faults by name: `poison`, tokens that are not a number to the model; `damage`, a step in which the weights become so;
`weight`, `gradient`, `share` and `activation`: a bit that flips, the last one once or whenever a rank computes;
`self_test`: a rank that fails its self-test; `slow`: a rank that needs longer for the fixed problem.
"""

import os
from pathlib import Path
from typing import Any

import torch

from tasks.trainer.config import TrainSpec
from tasks.trainer.integrity import corruption
from tasks.trainer.launch import failure
from tasks.trainer.loop import Trainer
from tasks.trainer.model.transformer import Transformer
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.parallel.sharded import Sharded  # here: forked ranks need not import it, for 1.5 s each
from tests.tasks.trainer.forks import forked
from tests.tasks.trainer.gangs import free_port


def poison(trainer: Trainer, poisonous: list[int]) -> None:
    """Makes the input of the model NaN at certain tokens."""
    tokens = torch.tensor(poisonous)

    def spoil(module: object, inputs: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
        read, part = inputs[0], slice(None)
        if output.shape[1] < read.shape[1]:
            # With shared matrices, each rank embeds some of the positions.
            at = trainer.replica.mesh.at("tensor") * output.shape[1]
            part = slice(at, at + output.shape[1])
        return output.masked_fill(torch.isin(read[:, part], tokens)[..., None], float("nan"))

    for chunk in chunks_of(trainer):
        if chunk.embedding is not None:
            chunk.embedding.register_forward_hook(spoil)


def damage(trainer: Trainer, step: int) -> None:
    """Makes the weights NaN in a step, like a bad batch that passes all limits."""
    take = trainer.replica.optimizer.step

    def spoilt(lr: float) -> None:
        take(lr)
        if trainer.step == step:
            with torch.no_grad():
                trainer.replica.model.norm.weight.fill_(float("nan"))

    trainer.replica.optimizer.step = spoilt


def flip(tensor: torch.Tensor, bit: int, largest: bool = False) -> None:
    """Flips one bit of the smallest value that is not 0, or of the largest one."""
    flat = tensor.detach().view(-1)
    at = int(flat.abs().argmax() if largest else flat.abs().masked_fill(flat == 0, float("inf")).argmin())
    flat[at : at + 1].view(torch.int32).bitwise_xor_(1 << bit)


def flip_weight(trainer: Trainer, rank: int, step: int, bit: int) -> None:
    """Flips a bit of a rank's weights after a step."""
    take = trainer.replica.optimizer.step

    def wrong(lr: float) -> None:
        take(lr)
        if (trainer.ranks.rank, trainer.step) == (rank, step):
            flip(norm_of(trainer), bit)

    trainer.replica.optimizer.step = wrong


def norm_of(trainer: Trainer) -> torch.Tensor:
    """A rank's share of a norm's weight."""
    if not isinstance(trainer.replica, Sharded):
        return trainer.replica.model.norm.weight
    norms = (tensor for name, tensor in trainer.replica.parameters.items() if name.endswith("ffn_norm.weight"))
    return next(norms).to_local()


def flip_gradient(trainer: Trainer, rank: int, step: int, bit: int) -> None:
    """Flips a bit of a rank's summed gradient before its optimizer reads it."""
    clip = trainer.replica.clip

    def wrong(limit: float) -> float:
        norm = clip(limit)
        if (trainer.ranks.rank, trainer.step) == (rank, step):
            flip(trainer.replica.model.norm.weight.grad, bit)
        return norm

    trainer.replica.clip = wrong


def flip_share(trainer: Trainer, rank: int, step: int, bit: int) -> None:
    """Flips one bit of a rank's gradient, once, before it is added to the sum."""
    backward, left = trainer.replica._backward, [1]

    def wrong(part: object) -> list[torch.Tensor]:
        found = backward(part)
        if (trainer.ranks.rank, trainer.step) == (rank, step) and left:
            left.pop()
            flip(found[0], bit)
        return found

    trainer.replica._backward = wrong


def activation(trainer: Trainer, rank: int, step: int, bit: int, last: int | None = None) -> None:
    """Flips a bit of the output of a rank's layers: once in a step, or at every computation from that step on."""
    done: list[int] = []

    def wrong(module: object, inputs: object, output: torch.Tensor) -> torch.Tensor:
        hit = trainer.step == step and not done if last is None else step <= trainer.step <= last
        if trainer.ranks.rank != rank or not hit:
            return output
        done.append(step)
        other = output.detach().clone()
        flip(other, bit, largest=True)
        return output + (other - output.detach())

    for layer in layers_of(trainer):
        layer.register_forward_hook(wrong)


def layers_of(trainer: Trainer) -> list[torch.nn.Module]:
    """The layers of a rank."""
    return [layer for chunk in chunks_of(trainer) for layer in chunk.layers.values()]


def chunks_of(trainer: Trainer) -> list[Transformer]:
    """A rank's share of the model."""
    return trainer.replica.chunks if isinstance(trainer.replica, Sharded) else [trainer.replica.model]


def slow(trainer: Trainer, rank: int) -> None:
    """Makes a rank slower at the timing problem."""
    timed = trainer.replica._stopwatch.seconds
    if trainer.ranks.rank == rank:
        trainer.replica._stopwatch.seconds = lambda: timed() * 50


def nan(trainer: Trainer, number: int, step: int) -> None:
    """Makes the output of a microbatch NaN in a step, on any rank."""
    trouble = trainer.batches.microbatches(step, [number])[number].tokens

    def spoil(module: object, inputs: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
        return output * float("nan") if torch.equal(inputs[0], trouble) else output

    for chunk in chunks_of(trainer):
        if chunk.embedding is not None:
            chunk.embedding.register_forward_hook(spoil)


FAULTS = {
    "nan": nan,
    "poison": poison,
    "damage": damage,
    "weight": flip_weight,
    "gradient": flip_gradient,
    "share": flip_share,
    "activation": activation,
    "slow": slow,
}


def ranks_of(spec: TrainSpec, ranks: int, **faults: Any) -> list[int]:
    """Runs all ranks once; returns their exit codes."""
    shared = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    shared |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    return forked(_rank, [(spec, rank, shared, faults) for rank in range(ranks)])


def _rank(spec: TrainSpec, rank: int, shared: dict[str, str], faults: dict[str, Any]) -> None:
    os.environ |= {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    try:
        if faults.pop("self_test", None) == rank:
            corruption.self_test = lambda device: 7
        with Ranks.from_environment() as ranks:
            trainer = Trainer(spec, ranks)
            for name, given in faults.items():
                FAULTS[name](trainer, **given)
            trainer.train()
    except Exception as error:
        failure.record(Path(spec.out), rank, error)
        os._exit(1)
    os._exit(0)

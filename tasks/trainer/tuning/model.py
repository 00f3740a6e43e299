"""The model of a fine-tuning: the base model with optional adapters, and the DPO loss.

Reads the `model.safetensors` of the base one tensor at a time, and quantizes each before it reads the next: a base that
is trained in 4 bits never is in memory in another form. The merged model is written in the same way.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import load
from torch import Tensor, nn

from tasks.trainer.checkpoints.checkpoint import StoredTensor, tensors_in, write_whole
from tasks.trainer.config import LoraConfig, TrainSpec, TuningSpec
from tasks.trainer.model.attention import Bounds
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.loss import IGNORED
from tasks.trainer.model.model_file import load_initial
from tasks.trainer.model.transformer import Transformer, initial_weight
from tasks.trainer.optim import local
from tasks.trainer.tuning.lora import LoraLinear, Nf4Linear, adapters, attach, dequantize, freeze, quantize, scale_of

Weights = Mapping[str, StoredTensor]
"""Weights in a file, by the names of `Transformer`."""
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def build_tuned(spec: TrainSpec) -> Transformer:
    """Returns the model in fp32; initially equivalent to the base, up to the rounding of 4-bit weights.

    Its parameters and its state dict contain only what is trained: all weights, or the adapters.

    Raises:
        InputError: the base's weights cannot be read, or do not match the specification.
    """
    assert spec.tuning is not None
    model = outline(spec.run.model, spec.tuning).to_empty(device="cpu")
    load_base(model, spec)
    return model


def load_base(model: Transformer, spec: TrainSpec) -> None:
    """Sets the weights of a model with memory (see `fill`); raises InputError as `build_tuned`."""
    assert spec.initial is not None
    load_initial(lambda file: fill(model, tensors_in([file]), spec.run.init_seed), spec.initial)


def outline(config: ModelConfig, tuning: TuningSpec) -> Transformer:
    """Returns the model of a fine-tuning on the meta device."""
    with torch.device("meta"):
        if tuning.loss == "dpo":
            model: Transformer = PreferenceTransformer(
                config, tuning.vocab_size, tuning.beta, copies_base=tuning.lora is None
            )
        else:
            model = Transformer(config, tuning.vocab_size)
        if tuning.lora:
            attach(model, tuning.lora)
    return model


def with_frozen_parameters(model: Transformer) -> Transformer:
    """Turns the frozen weights of a model into parameters without a gradient, which FSDP shards, in place."""
    for module in model.modules():
        for name in sorted(module._non_persistent_buffers_set):
            buffer = module._buffers.pop(name)
            module._non_persistent_buffers_set.discard(name)
            frozen = None if buffer is None else nn.Parameter(buffer, requires_grad=False)
            module.register_parameter(name, frozen)
    return model


@torch.no_grad()
def fill(model: Transformer, base: Weights, seed: int) -> None:
    """Sets the weights to those of the base, and adapters to values without an effect: A is random, B is zero.

    A parameter may be sharded; each rank then sets its part.

    Args:
        model: an outline with memory.
        base: the weights, of which one at a time is read.
        seed: of A.

    Raises:
        ValueError: the base has other tensors than the model.
    """
    places = _places(model)
    if different := places.keys() ^ base.keys():
        raise ValueError(f"it has other tensors than the model: {', '.join(sorted(different)[:3])}")
    for name, stored in base.items():
        weight = _read(stored)
        for module, own in places[name]:
            if isinstance(module, Nf4Linear) and own == "weight":
                _check_shape(name, weight, module.shape)
                for buffer, values in module.encoded(weight).items():
                    _set(getattr(module, buffer), values)
            else:
                _check_shape(name, weight, getattr(module, own).shape)
                _set(getattr(module, own), weight)
    for name, adapter in adapters(model).items():
        shape = adapter.lora_a.shape
        _set(adapter.lora_a, initial_weight(model.config, f"{name}.lora_a", shape, seed))
        local(adapter.lora_b).zero_()


def _places(model: Transformer) -> dict[str, list[tuple[nn.Module, str]]]:
    """Returns where each weight of the base is in the model: modules, and names in them."""
    places = defaultdict(list)
    for path, module in model.named_modules():
        if isinstance(module, LoraLinear):
            continue
        own = [*module._parameters, *module._buffers]
        if isinstance(module, Nf4Linear):
            own = ["weight", "bias"] if module.bias is not None else ["weight"]
        prefix = path.removeprefix("reference").removeprefix(".").removesuffix(".base")
        for name in own:
            if isinstance(module, Nf4Linear) or getattr(module, name) is not None:
                places[f"{prefix}.{name}"].append((module, name))
    return places


def _read(stored: StoredTensor) -> Tensor:
    """Returns a tensor of a file in its dtype."""
    if stored.dtype not in _DTYPES:
        raise ValueError(f"a weight has the dtype {stored.dtype}")
    return torch.from_numpy(stored.read()).view(_DTYPES[stored.dtype]).squeeze(-1)


def _check_shape(name: str, weight: Tensor, shape: torch.Size) -> None:
    if weight.shape != shape:
        raise ValueError(f"{name} has the shape {list(weight.shape)}, and in the model {list(shape)}")


def _set(target: Tensor, values: Tensor) -> None:
    """Copies values to a tensor, or this rank's part of them to its part of a sharded one."""
    if hasattr(target, "placements"):
        from torch.distributed.tensor import DTensor, distribute_tensor  # imports torch._dynamo: 1.5 CPU-seconds

        assert isinstance(target, DTensor)
        mesh = target.device_mesh
        values = values.to(mesh.device_type, target.dtype)
        values = local(distribute_tensor(values, mesh, target.placements, src_data_rank=None))
    local(target).copy_(values)


def write_merged(spec: TrainSpec, adapters: bytes, file: IO[bytes]) -> None:
    """Writes the safetensors file of a whole model, with adapters merged.

    Args:
        spec: the fine-tuning, with its base.
        adapters: content of the safetensors file of a whole checkpoint.
        file: receives the model.

    Raises:
        InputError: as `build_tuned`.
    """
    tuning, initial = spec.tuning, spec.initial
    assert tuning is not None
    assert tuning.lora is not None
    assert initial is not None
    lora = tuning.lora
    load_initial(lambda base: write_whole(merged(tensors_in([base]), load(adapters), lora), file), initial)


def merged(base: Weights, adapter: Mapping[str, Tensor], config: LoraConfig) -> dict[str, StoredTensor]:
    """Returns the weights of a plain model that is equivalent to a base with adapters; computed when they are read.

    Args:
        base: weights of the base.
        adapter: `lora_a` and `lora_b` of the adapted projections, after the name of the projection.
        config: of the adapters.
    """
    weights: dict[str, StoredTensor] = {}
    for name, stored in base.items():
        projection = name.removesuffix(".weight")
        quantized = config.base == "nf4" and name.startswith("layers.") and len(stored.shape) == 2
        pair = tuple(adapter[key] for key in (f"{projection}.lora_a", f"{projection}.lora_b") if key in adapter)
        weights[name] = _MergedTensor("F32", stored.shape, stored.parts, stored.dtype, quantized, pair, config)
    return weights


@dataclass(frozen=True)
class _MergedTensor(StoredTensor):
    """W + scale B A of a stored W, in float32."""

    stored_dtype: str
    quantized: bool
    adapter: tuple[Tensor, ...]
    config: LoraConfig

    def read(self) -> NDArray[np.uint8]:
        weight = _read(StoredTensor(self.stored_dtype, self.shape, self.parts)).float()
        if self.quantized:
            weight = dequantize(*quantize(weight), weight.shape)
        if self.adapter:
            a, b = self.adapter
            weight = weight + scale_of(self.config) * (b @ a)
        return weight[..., None].view(torch.uint8).numpy()


class PreferenceTransformer(Transformer):
    """A model trained by direct preference optimization (Rafailov et al. 2023, arXiv 2305.18290, equation 7).

    For a pair of texts with one prompt the loss is -log sigmoid(beta ((log p(chosen) - log r(chosen)) - (log
    p(rejected) - log r(rejected)))), where p is the trained model, r the frozen reference with the initial weights, and
    log p(text) the sum over the learned tokens. Documents 0 and 1 of a sequence are chosen and rejected, then 2 and 3,
    and so on.

    The reference is the model itself without its adapters or, with `copies_base`, a frozen copy of the base.
    """

    def __init__(self, config: ModelConfig, vocab_size: int, beta: float, *, copies_base: bool) -> None:
        super().__init__(config, vocab_size)
        self.beta = beta
        self.reference = Reference(config, vocab_size) if copies_base else None

    def loss(self, x: Tensor, documents: Tensor, labels: Tensor, bounds: Bounds | None = None) -> Tensor:
        """Returns the loss summed over the pairs of the sequences, in nats, float32 scalar; arguments as for `hidden`.

        The logits of all positions with a label are in memory at the same time.
        """
        # The reference first: FSDP prefetches in the backward pass in the order of the newest forward pass.
        with torch.no_grad(), self._without_adapters():
            if self.reference is None:
                reference = log_likelihoods(self, x, documents, labels, bounds)
            else:
                reference = self.reference(x, documents, labels, bounds)
        policy = log_likelihoods(self, x, documents, labels, bounds)
        ratio = policy - reference
        margin = self.beta * (ratio[:, 0::2] - ratio[:, 1::2])
        return -(F.logsigmoid(margin) * _pairs(documents, labels, _selection(documents, labels, bounds)[1])).sum()

    def counted(self, documents: Tensor, labels: Tensor) -> int:
        """Returns the number of pairs that the loss is summed over; the arguments are on the CPU."""
        rows, positions = (labels.numpy() != IGNORED).nonzero()
        is_learned = np.zeros((len(labels), 2 * (int(documents.numpy().max()) // 2 + 1)), bool)
        is_learned[rows, documents.numpy()[rows, positions]] = True
        return int((is_learned[:, 0::2] & is_learned[:, 1::2]).sum())

    @contextmanager
    def _without_adapters(self) -> Iterator[None]:
        disabled = adapters(self).values()
        for adapter in disabled:
            adapter.active = False
        try:
            yield
        finally:
            for adapter in disabled:
                adapter.active = True


class Reference(Transformer):
    """A frozen model, whose output is the log-likelihoods of documents."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__(config, vocab_size)
        freeze(self)

    # `forward`, because FSDP gathers the weights of a module that is called.
    def forward(  # type: ignore[override]
        self, tokens: Tensor, documents: Tensor, labels: Tensor, bounds: Bounds | None = None
    ) -> Tensor:
        """Returns `log_likelihoods` of the arguments."""
        return log_likelihoods(self, tokens, documents, labels, bounds)


def log_likelihoods(
    model: Transformer, tokens: Tensor, documents: Tensor, labels: Tensor, bounds: Bounds | None = None
) -> Tensor:
    """Returns the summed log-likelihood in nats of the labels of each document, float32 [batch, documents].

    Args:
        model: the model that predicts the tokens.
        tokens: int64 [batch, positions].
        documents: int64 [batch, positions], 0-based numbers.
        labels: int64 [batch, positions].
        bounds: of the documents; see `Kernel`. Without `learned`, a GPU is waited for.
    """
    learned, count = _selection(documents, labels, bounds)
    rows = model.hidden(tokens, documents, bounds).flatten(0, 1).index_select(0, learned)
    log_p = torch.log_softmax(_logits(model, rows).float(), dim=-1)
    expected = labels.flatten().index_select(0, learned)
    learned_log_p = log_p.gather(1, expected[:, None])[:, 0]
    by_position = torch.zeros(labels.numel(), device=labels.device).index_copy(0, learned, learned_log_p)
    return _per_document(by_position.view(labels.shape), documents, count)


def _logits(model: Transformer, rows: Tensor) -> Tensor:
    """Returns the logits of hidden states, [rows, vocab_size]; a head of its own is called, so that FSDP gathers it."""
    if model.head is None:
        return model.capped(F.linear(rows, model.head_weight.to(rows.dtype)))
    logits: Tensor = model.head(rows)
    return model.capped(logits[:, : model.vocab_size])


def _selection(documents: Tensor, labels: Tensor, bounds: Bounds | None = None) -> tuple[Tensor, int]:
    """Returns the positions with a label, int64 [labels], and the number of documents of a sequence."""
    if bounds is not None and bounds.learned is not None:
        return bounds.learned, bounds.documents
    return (labels.flatten() != IGNORED).nonzero()[:, 0], int(documents.max()) + 1


def _pairs(documents: Tensor, labels: Tensor, count: int) -> Tensor:
    """Returns 1 for each pair in which both texts have a label, else 0; float32 [batch, pairs]."""
    learned = (_per_document((labels != IGNORED).float(), documents, count) > 0).float()
    return learned[:, 0::2] * learned[:, 1::2]


def _per_document(values: Tensor, documents: Tensor, count: int) -> Tensor:
    """Sums float32 [batch, positions] by document; returns float32 [batch, count], padded to an even count."""
    return torch.zeros(len(values), count + count % 2, device=values.device).scatter_add(1, documents, values)

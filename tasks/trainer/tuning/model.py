"""The model of a fine-tuning: the base model with optional adapters, and the DPO loss.

Reads the `model.safetensors` of the base.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save
from torch import Tensor

from tasks.core.errors import InputError
from tasks.trainer.checkpoints.checkpoint import MODEL, is_whole, name_of, verify
from tasks.trainer.config import ModelConfig, TrainSpec
from tasks.trainer.model.attention import Bounds
from tasks.trainer.model.loss import IGNORED
from tasks.trainer.model.model_file import load_initial
from tasks.trainer.model.transformer import Transformer
from tasks.trainer.tuning.lora import adapters, attach, freeze, merged_weights


def build_tuned(spec: TrainSpec) -> Transformer:
    """Returns the model in fp32; initially equivalent to the base, up to the rounding of 4-bit weights.

    Its parameters and its state dict contain only what is trained: all weights, or the adapters.

    Raises:
        InputError: the base's weights cannot be read, or do not match the specification.
    """
    tuning, config = spec.tuning, spec.run.model
    assert tuning is not None
    assert spec.initial is not None
    if tuning.loss == "dpo":
        model: Transformer = PreferenceTransformer(config, tuning.vocab_size, tuning.beta)
    else:
        model = Transformer(config, tuning.vocab_size)
    load_initial(lambda file: _load(model, file), spec.initial)
    if tuning.lora:
        attach(model, tuning.lora, spec.run.init_seed)
    if isinstance(model, PreferenceTransformer):
        model.keep_reference()
    return model


def merged_bytes(spec: TrainSpec) -> bytes:
    """Returns the safetensors file of the whole model after the last step, with the adapters merged.

    Reads the last checkpoint in the run's folder.

    Raises:
        InputError: as `build_tuned`; or the checkpoint does not verify.
    """
    folder = Path(spec.out) / "checkpoints" / name_of(spec.run.steps)
    if not is_whole(folder):
        raise InputError(f"{folder} is not a whole checkpoint", "run the stage again")
    verify(folder)
    model = build_tuned(spec)
    model.load_state_dict(load_file(folder / MODEL))
    content: bytes = save(merged_weights(model))
    return content


def _load(model: Transformer, file: Path) -> None:
    model.load_state_dict(load_file(file))


class PreferenceTransformer(Transformer):
    """A model trained by direct preference optimization (Rafailov et al. 2023, arXiv 2305.18290, equation 7).

    For a pair of texts with one prompt the loss is -log sigmoid(beta ((log p(chosen) - log r(chosen)) - (log
    p(rejected) - log r(rejected)))), where p is the trained model, r the frozen reference with the initial weights, and
    log p(text) the sum over the learned tokens. Documents 0 and 1 of a sequence are chosen and rejected, then 2 and 3,
    and so on.

    The reference is the model itself without its adapters or, if it has none, a frozen copy of its weights.
    """

    def __init__(self, config: ModelConfig, vocab_size: int, beta: float) -> None:
        super().__init__(config, vocab_size)
        self.beta = beta
        self.reference: Transformer | None = None

    def keep_reference(self) -> None:
        """Copies the current weights as the reference, unless there are adapters to disable."""
        if not adapters(self):
            reference = Transformer(self.config, self.vocab_size)
            reference.load_state_dict(self.state_dict())
            freeze(reference)
            self.reference = reference

    def loss(self, x: Tensor, documents: Tensor, labels: Tensor, bounds: Bounds | None = None) -> Tensor:
        """Returns the loss summed over the pairs of the sequences, in nats, float32 scalar; arguments as for `hidden`.

        The logits of all positions with a label are in memory at the same time.
        """
        policy = log_likelihoods(self, x, documents, labels, bounds)
        with torch.no_grad(), self._without_adapters():
            reference = log_likelihoods(self.reference or self, x, documents, labels, bounds)
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
        disabled = adapters(self)
        for adapter in disabled:
            adapter.active = False
        try:
            yield
        finally:
            for adapter in disabled:
                adapter.active = True


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
    logits = F.linear(rows, model.head_weight.to(rows.dtype)).float()
    expected = labels.flatten().index_select(0, learned)
    log_p = torch.log_softmax(logits, dim=-1).gather(1, expected[:, None])[:, 0]
    by_position = torch.zeros(labels.numel(), device=labels.device).index_copy(0, learned, log_p)
    return _per_document(by_position.view(labels.shape), documents, count)


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

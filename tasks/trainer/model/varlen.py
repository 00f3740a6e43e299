"""Variable-length flash attention over concatenated documents (Dao 2023, arXiv 2307.08691); GPUs only."""

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn import attention
from torch.nn.attention.varlen import varlen_attn

from tasks.core.errors import InputError
from tasks.trainer.model.attention import Attend, Bounds

_FLASH = {"FA4": (9, 10), "FA3": (9,)}
"""Flash attention packages that torch can use, newest first, and the SM major versions that they support."""
_PARAMETERS = inspect.signature(varlen_attn).parameters
# Since torch 2.13 the window size sets causal attention, before that a flag; grouped queries must be enabled.
_OPTIONS: dict[str, Any] = {
    **({"window_size": (-1, 0)} if "window_size" in _PARAMETERS else {"is_causal": True}),
    **({"enable_gqa": True} if "enable_gqa" in _PARAMETERS else {}),
}


def varlen(documents: Tensor, rows: Tensor | None = None, bounds: Bounds | None = None) -> Attend:
    """A `Kernel`: causal attention within documents, of bf16 or fp16, for all positions of the sequences.

    Without `bounds` they are computed here, which waits for the GPU; batches of a training have them.

    Raises:
        InputError: `rows` is not None.
    """
    if rows is not None:
        raise InputError("the attention kernel `varlen` computes only whole sequences", "use `flex`")
    if bounds is None:
        bounds = Bounds.of(documents.cpu().numpy())
    starts, longest = bounds.starts.to(documents.device), bounds.longest

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Any = varlen_attn(_flat(q), _flat(k), _flat(v), starts, starts, longest, longest, **_OPTIONS)
        joined: Tensor = out.unflatten(0, (q.shape[0], q.shape[2])).transpose(1, 2)
        return joined

    return attend


def activate_flash(device: torch.device) -> str:
    """Activates the newest flash attention implementation that the GPU and the installed packages support.

    Returns:
        "FA4" (package flash-attn-4), "FA3" (flash-attn-3), or "FA2", which is built into torch.
    """
    major, _ = torch.cuda.get_device_capability(device)
    for name, majors in _FLASH.items():
        if major in majors and name in attention.list_flash_attention_impls():
            try:
                attention.activate_flash_attention_impl(name)
            except ImportError:
                continue
            return name
    return "FA2"


def _flat(x: Tensor) -> Tensor:
    """Flattens [batch, heads, sequence, head_dim] to [batch x sequence, heads, head_dim]."""
    return x.transpose(1, 2).flatten(0, 1)

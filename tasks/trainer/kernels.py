"""Which attention kernel a device has, and which flash attention torch uses there.

| kernel | devices | dtypes | queries of a rank |
|---|---|---|---|
| `sdpa_mask` | CPU | all | some or all |
| `flex` | GPU; CPU forward | all | some or all |
| `varlen` | GPU from SM 8.0 | bf16, fp16 | all |
"""

import torch
from torch.nn import attention

from tasks.trainer.model.attention import Kernel, sdpa_mask

_FLASH = {"FA4": (9, 10), "FA3": (9,)}
"""Flash attention in packages of their own that torch can use, newest first, and the SM majors they run on."""


def best_kernel(device: torch.device, dtype: torch.dtype, context: int = 1) -> Kernel:
    """Returns the kernel to train with. On a GPU it is never SDPA with a mask, which has no fast kernel there.

    Args:
        device: of the model.
        dtype: of queries, keys and values.
        context: ranks that share the positions of a sequence.
    """
    if device.type == "cpu":
        return sdpa_mask
    # Imported here: torch._dynamo behind them takes a second or two, which runs on a CPU do not need.
    flash = dtype in (torch.bfloat16, torch.float16) and torch.cuda.get_device_capability(device) >= (8, 0)
    if flash and context == 1:
        from tasks.trainer.model.varlen import varlen

        return varlen
    from tasks.trainer.model.flex import flex

    return flex


def activate_flash(device: torch.device) -> str:
    """Makes torch compute flash attention in this process by the newest implementation that card and packages allow.

    Returns:
        "FA4" (package flash-attn-4), "FA3" (flash-attn-3), or "FA2", which is torch's own.
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

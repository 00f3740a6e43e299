"""Adapters in the layout of PEFT: `adapter_config.json`, and `adapter_model.safetensors` with its names.

Imports no torch. The base is a folder of Hugging Face (`huggingface_folder`), loaded first.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from tasks.trainer.interchange.huggingface import llama_name

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_OURS = re.compile(r"(.+)\.lora_([ab])")


def adapter_config(lora: Mapping[str, Any], base: str) -> bytes:
    """Returns the content of CONFIG.

    Args:
        lora: settings of the adapters, as in `run.json` of a fine-tuning.
        base: names the base; PEFT shows it, and loads it where it is a folder or a name of the hub.
    """
    targets = [llama_name(f"layers.0.{_place(target)}.weight").split(".")[-2] for target in lora["targets"]]
    content = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora["rank"],
        "lora_alpha": lora["alpha"],
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": sorted(targets),
    }
    return (json.dumps(content, indent=2) + "\n").encode()


def adapter_name(name: str) -> str:
    """Returns PEFT's name of one of our adapters' matrices; raises KeyError for one that is none.

    >>> adapter_name("layers.3.attention.wq.lora_a")
    'base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight'
    """
    found = _OURS.fullmatch(name)
    if found is None:
        raise KeyError(name)
    module = llama_name(f"{found[1]}.weight").removesuffix(".weight")
    return f"base_model.model.{module}.lora_{found[2].upper()}.weight"


def _place(target: str) -> str:
    """Returns where in a layer a projection is: "attention.wq", "ffn.w1"."""
    return f"{'ffn' if target[1:].isdigit() else 'attention'}.{target}"

"""An exported model in llama.cpp beside `transformers`: tokens of prompts, and greedy texts.

    python -m benchmarks.llama_cpp MODEL --peers FOLDER [--tokens 220]

MODEL is a folder that `python -m tasks export .. gguf` has made. `--peers` names a folder for an environment with
llama.cpp (`xllamacpp`, whose wheel has it built). Both continue each prompt greedily, in fp32. llama.cpp adds in
another order, so where the two likeliest tokens are closer than rounding the texts part: `same` counts the tokens
until there, and `margin` is the difference of their logits at that place.

Writes `benchmarks/results/llama_cpp.json`.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import keep, peer_python

PEERS = ("xllamacpp==2026.10.11549",)
PROMPTS = (
    "The river runs",
    "import os\n\n\ndef main():\n    ",
    "café 東京 – don't 123",
    "Returns the name of",
    "  1. \t Naïve 🏳️‍🌈",
)
_PROGRAM = """
import json, sys
import xllamacpp
given = json.load(open(sys.argv[1]))
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.warmup, params.cpuparams.n_threads = given["model"], given["context"], False, 2
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
server = xllamacpp.Server(params)
greedy = {"temperature": 0, "samplers": ["top_k"], "top_k": 1, "max_tokens": given["tokens"], "repeat_penalty": 1.0}
json.dump([server.handle_completions({"prompt": one, **greedy}) for one in given["prompts"]], open(sys.argv[2], "w"))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=220)
    given = parser.parse_args()
    python = peer_python(given.peers, PEERS)
    answers = _llama_cpp(python, given.model.absolute(), given.tokens)
    rows = [_beside(given.model, *one, given.tokens) for one in zip(PROMPTS, answers, strict=True)]
    keep("llama_cpp", {"peers": list(PEERS), "tokens": given.tokens, "prompts": rows})


def _llama_cpp(python: str, model: Path, tokens: int) -> list[dict[str, Any]]:
    """Returns llama.cpp's answers to the prompts."""
    context = json.loads((model / "config.json").read_text())["max_position_embeddings"]
    with tempfile.TemporaryDirectory() as name:
        asked, told = Path(name) / "asked.json", Path(name) / "told.json"
        settings = {"model": str(model / "model.gguf"), "context": max(512, context), "tokens": tokens}
        asked.write_text(json.dumps({**settings, "prompts": PROMPTS}))
        subprocess.run([python, "-c", _PROGRAM, str(asked), str(told)], check=True, capture_output=True)
        found: list[dict[str, Any]] = json.loads(told.read_text())
    return found


def _beside(model: Path, prompt: str, answer: dict[str, Any], tokens: int) -> dict[str, Any]:
    """Returns how far the greedy text of `transformers` and that of llama.cpp are the same."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    begun = tokenizer(prompt, return_tensors="pt").input_ids
    whole = loaded.generate(begun, max_new_tokens=tokens, do_sample=False)
    written = whole[0, begun.shape[1] :].tolist()
    text = answer["choices"][0]["text"]
    # A token may be a part of a letter, which neither side shows: the text up to whole letters counts.
    same = sum(text.startswith(tokenizer.decode(written[: at + 1]).rstrip("\ufffd")) for at in range(len(written)))
    with torch.no_grad():
        best = loaded(whole).logits[0, begun.shape[1] - 1 : -1].topk(2).values
    margins = (best[:, 0] - best[:, 1]).tolist()
    return {
        "prompt": prompt,
        "prompt_tokens": [begun.shape[1], answer["usage"]["prompt_tokens"]],
        "written": len(written),
        "same": same,
        "margin": round(min(margins[max(0, same - 2) : same + 1]), 6) if same < len(written) else None,
    }


if __name__ == "__main__":
    main()

"""Exports in other programs: tokens in the readers of other trainers, a model in llama.cpp.

    python -m benchmarks.exports tokens
    python -m benchmarks.exports gguf MODEL [--tokens 220]

`tokens`: makes token shards of random documents, exports them, and reads the folder back with `webdataset` and
`datasets` in an environment of their own, and with Megatron-LM's documented layout in 15 lines that share no code with
the writer. By format: documents, tokens, whether all are equal, and the seconds of the export. Writes `exports.json`.

`gguf`: MODEL is a folder that `python -m tasks export .. gguf` has made. llama.cpp (`xllamacpp`, whose wheel has it
built) and `transformers` continue each prompt greedily, in fp32. llama.cpp adds in another order, so where the two
likeliest tokens are closer than rounding the texts part: `same` counts the tokens until there, and `margin` is the
difference of their logits at that place. Writes `llama_cpp.json`.
"""

import argparse
import hashlib
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import keep, last_line, parser, peer_python
from tasks.core import ranges
from tasks.core.artifact import ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.engine import open_engine
from tasks.core.stage import Output, Report, part_names
from tasks.core.store import Store
from tasks.formats.documents.document import document_id
from tasks.formats.documents.key_index import merge
from tasks.formats.tokens.index import Indexed, write_index
from tasks.formats.tokens.shard import ShardBuffer, ShardSet, TokenFormat, shard_name, write_shard
from tasks.run.export import FORMATS, export

FMT = TokenFormat(50_000, 0, "none")
PARTS, DOCUMENTS = 4, 5_000
READERS = ("webdataset==1.0.2", "datasets==5.2.0", "numpy", "pyarrow")
_HEAD = "import glob, hashlib, json, sys\nfound = {}\n"
_TAIL = """
digest = hashlib.sha256()
for key in sorted(found):
    digest.update(key.encode() + b" " + ",".join(map(str, found[key])).encode() + b"\\n")
print(json.dumps([len(found), sum(map(len, found.values())), digest.hexdigest()]))
"""
READ = {
    "webdataset": """
import webdataset as wds
for sample in wds.WebDataset(sorted(glob.glob(sys.argv[1] + "/*.tar")), shardshuffle=False).decode():
    found[sample["__key__"]] = sample["npy"].tolist()
""",
    "huggingface": """
import datasets
for split in datasets.load_dataset(sys.argv[1], cache_dir=sys.argv[1] + "-cache").values():
    for row in split:
        found[row["id"]] = row["input_ids"]
""",
    "megatron": """
import struct, numpy as np, pyarrow.parquet as pq
for path in glob.glob(sys.argv[1] + "/*.idx"):
    index, tokens = open(path, "rb").read(), open(path[:-3] + "bin", "rb").read()
    magic, version, code, count, bounds = struct.unpack_from("<9sQBQQ", index)
    assert (magic, version) == (b"MMIDIDX\\0\\0", 1)
    kind = {4: "<i4", 8: "<u2"}[code]
    lengths = np.frombuffer(index, "<i4", count, 34)
    offsets = np.frombuffer(index, "<i8", count, 34 + 4 * count)
    ids = pq.read_table(path[:-3] + "documents.parquet").column("id").to_pylist()
    for doc_id, n, at in zip(ids, lengths.tolist(), offsets.tolist()):
        found[doc_id] = np.frombuffer(tokens, kind, n, at).tolist()
""",
}
LLAMA_CPP = ("xllamacpp==2026.10.11549",)
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


def tokens(_: argparse.Namespace) -> None:
    """Exports in every format and reads each back."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(f"{folder}/store")
        expected = make_tokens(store)
        python = peer_python("exports", READERS)
        result = {}
        for kind in FORMATS:
            began = time.perf_counter()
            out = export(store, "made", "dev", kind, f"{folder}/{kind}")
            seconds = time.perf_counter() - began
            documents, count, digest = json.loads(last_line(python, _HEAD + READ[kind] + _TAIL, str(out)))
            result[kind] = {
                "documents": documents,
                "tokens": count,
                "equal": digest == expected,
                "export_seconds": round(seconds, 2),
            }
        keep("exports", {"readers": READERS, "formats": result})


def make_tokens(store: Store) -> str:
    """Writes shards and tokenizer of random documents; returns the sha256 of all (id, tokens), sorted by id."""
    draw = np.random.default_rng(7)
    expected: dict[str, list[int]] = {}
    shards = Output(store, ArtifactId("made/shards", "dev"), "made")
    for number, part_name in enumerate(part_names(PARTS)):
        urls = [f"https://example.org/{number}/{index}" for index in range(DOCUMENTS)]
        ids = [document_id(url, "sha1:A") for url in urls]
        tokens = [draw.integers(1, FMT.vocab_size, size).astype(FMT.dtype) for size in draw.integers(1, 900, DOCUMENTS)]
        expected.update(zip(ids, (row.tolist() for row in tokens), strict=True))
        name = shard_name("web", "heldout" if number == 0 else "train", number, 0)
        buffer = ShardBuffer(
            name.split("-")[0], name.split("-")[1], [bytes.fromhex(i) for i in ids], tokens, [1] * DOCUMENTS
        )
        with shards.part(part_name, conserved=False) as part:
            with ranges.checksummed_file(part, f"shards/{name}.arrow", rows=DOCUMENTS) as file:
                offsets = write_shard(file, buffer, FMT).tolist()
            rows = enumerate(zip(buffer.uids, urls, offsets, map(len, tokens), strict=True))
            write_index(part, [Indexed(name, row, *rest) for row, rest in rows])
    with open_engine(workers=0) as engine:
        merge(shards, engine, [shards.committed[name] for name in part_names(PARTS)])
    tokenizer = Output(store, ArtifactId("made/tokenizer", "dev"), "made")
    with tokenizer.part("tokenizer.json", conserved=False) as part, part.file("tokenizer.json") as file:
        file.write(b"{}")
    made = {kind: commit(output, "made", 1, Config(), [], Report()) for kind, output in
            (("tokenizer", tokenizer), ("shards", shards))}  # fmt: skip
    assert ShardSet.open(made["shards"]).n_documents("web") == (PARTS - 1) * DOCUMENTS
    digest = hashlib.sha256()
    for key in sorted(expected):
        digest.update(f"{key} {','.join(map(str, expected[key]))}\n".encode())
    return digest.hexdigest()


def gguf(given: argparse.Namespace) -> None:
    """Continues the prompts by llama.cpp and by `transformers`."""
    python = peer_python("llama_cpp", LLAMA_CPP)
    answers = _llama_cpp(python, given.model.absolute(), given.tokens)
    rows = [_beside(given.model, *one, given.tokens) for one in zip(PROMPTS, answers, strict=True)]
    keep("llama_cpp", {"peers": LLAMA_CPP, "tokens": given.tokens, "prompts": rows})


def _llama_cpp(python: str, model: Path, tokens: int) -> list[dict[str, Any]]:
    """Returns llama.cpp's answers to the prompts."""
    context = json.loads((model / "config.json").read_text())["max_position_embeddings"]
    with tempfile.TemporaryDirectory() as name:
        given, answers = Path(name) / "given.json", Path(name) / "answers.json"
        settings = {"model": str(model / "model.gguf"), "context": max(512, context), "tokens": tokens}
        given.write_text(json.dumps({**settings, "prompts": PROMPTS}))
        subprocess.run([python, "-c", _PROGRAM, str(given), str(answers)], check=True, capture_output=True)
        found: list[dict[str, Any]] = json.loads(answers.read_text())
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
    same = sum(text.startswith(str(tokenizer.decode(written[: at + 1])).rstrip("\ufffd")) for at in range(len(written)))
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


def main() -> None:
    options = parser(__doc__)
    commands = options.add_subparsers(required=True)
    one = commands.add_parser("tokens", help="token exports in other readers")
    one.set_defaults(run=tokens)
    one = commands.add_parser("gguf", help="a model in llama.cpp")
    one.add_argument("model", type=Path, help="folder of an export")
    one.add_argument("--tokens", type=int, default=220, help="tokens of each text")
    one.set_defaults(run=gguf)
    given = options.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()

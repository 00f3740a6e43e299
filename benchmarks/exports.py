"""Exports in other programs: tokens in the readers of other trainers, a model in llama.cpp and in lm-eval.

    python -m benchmarks.exports tokens
    python -m benchmarks.exports gguf MODEL [--tokens 220]
    python -m benchmarks.exports lm_eval MODEL EVALS [--items 200] [--shots 2]

`tokens`: writes token shards of random documents, exports them, and reads the folder back with `webdataset` and
`datasets` in a separate environment, and with Megatron-LM's documented layout in 15 lines that share no code with
the writer. By format: documents, tokens, whether all are equal, and the seconds of the export. Writes `exports.json`.

`gguf`: MODEL is a folder written by `sluice export .. gguf`. llama.cpp (`xllamacpp`, whose wheel includes it)
and `transformers` continue each prompt greedily, in fp32. llama.cpp sums in another order, so if the two
likeliest tokens are closer than rounding the texts diverge: `same` counts the tokens until there, and `margin` is the
difference of their logits at that token. Writes `llama_cpp.json`.

`lm_eval`: the scores of tasks against those of lm-eval 0.4.13, on the same model and rows. Needs the extra `lm-eval`,
and `transformers` and `accelerate`. MODEL is the folder `model/` of a registered model, EVALS one with `arc_easy`,
`svamp` and `simple_arithmetic_nospaces` as JSON lines of llm-foundry. A task of each kind is scored three times: by the
code of the stage; by lm-eval on the same model through `for_lm_eval`; and by lm-eval's own class `hf` on the same
folder. The last shares no code with ours: templates, examples, tokens, forward pass and scores are its own. The
comparison covers every metric with its standard error, and every item's log-likelihoods and text. Writes
`lm_eval.json`.
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
import pyarrow as pa

from benchmarks.harness import keep, last_line, parser, peer_python
from tasks.core import parquet, ranges
from tasks.core.artifact import ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.engine import open_engine
from tasks.core.stage import Output, Report, part_names
from tasks.core.store import Store
from tasks.formats.documents.document import document_id
from tasks.formats.documents.external_files import find
from tasks.formats.documents.json_rows import parsed_rows
from tasks.formats.documents.key_index import merge
from tasks.formats.tokens.index import IndexedShard, write_index
from tasks.formats.tokens.shard import ShardSet, TokenFormat, shard_name, write_shard
from tasks.run.export import FORMATS, export
from tasks.trainer.evaluation.config import TaskConfig
from tasks.trainer.evaluation.scoring import FOLDER, score_tasks
from tasks.trainer.inference import Scorer
from tasks.trainer.serve import TextModel, for_lm_eval
from tests.shards import buffer_of

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
Scores = dict[str, dict[str, Any]]
"""Of each task `metrics` {metric: {value, stderr}} and `items`, log-likelihoods or text of each."""

_RANDOM_ERROR = "perplexity"
"""lm-eval takes its error from random samples; ours is computed."""
_BOOTSTRAP = 2
"""Random samples for it; 0 would leave out the errors of all metrics."""


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
        buffer = buffer_of(
            name.split("-")[0], name.split("-")[1], [bytes.fromhex(i) for i in ids], tokens, [1] * DOCUMENTS
        )
        with shards.part(part_name, conserved=False) as part:
            sizes = np.array(list(map(len, tokens)))
            with ranges.checksummed_file(part, f"shards/{name}.arrow", DOCUMENTS, int(sizes.sum())) as file:
                offsets = write_shard(file, buffer, FMT)
            write_index(part, [IndexedShard(name, buffer.uids, pa.array(urls), offsets, sizes)])
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
    """Continues the prompts with llama.cpp and `transformers`."""
    python = peer_python("llama_cpp", LLAMA_CPP)
    answers = _llama_cpp(python, given.model.absolute(), given.tokens)
    rows = [_beside(given.model, *one, given.tokens) for one in zip(PROMPTS, answers, strict=True)]
    keep("llama_cpp", {"peers": LLAMA_CPP, "tokens": given.tokens, "prompts": rows})


def _llama_cpp(python: str, model: Path, tokens: int) -> list[dict[str, Any]]:
    """Returns llama.cpp's continuations of the prompts."""
    context = json.loads((model / "config.json").read_text())["max_position_embeddings"]
    with tempfile.TemporaryDirectory() as name:
        given, answers = Path(name) / "given.json", Path(name) / "answers.json"
        settings = {"model": str(model / "model.gguf"), "context": max(512, context), "tokens": tokens}
        given.write_text(json.dumps({**settings, "prompts": PROMPTS}))
        subprocess.run([python, "-c", _PROGRAM, str(given), str(answers)], check=True, capture_output=True)
        found: list[dict[str, Any]] = json.loads(answers.read_text())
    return found


def _beside(model: Path, prompt: str, answer: dict[str, Any], tokens: int) -> dict[str, Any]:
    """Returns how many tokens the greedy texts of `transformers` and llama.cpp have in common."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()  # type: ignore[no-untyped-call]
    begun = tokenizer(prompt, return_tensors="pt").input_ids
    whole = loaded.generate(begun, max_new_tokens=tokens, do_sample=False)
    written = whole[0, begun.shape[1] :].tolist()
    text = answer["choices"][0]["text"]
    # A token may be a part of a character, which neither side prints: only complete characters are compared.
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


def tasks_of(evals: Path, items: int, shots: int) -> list[TaskConfig]:
    """Returns a task of each kind."""
    more = {"limit": items, "shots": shots}
    return [
        TaskConfig(name="arc_easy", kind="multiple_choice", path=f"{evals}/arc_easy.jsonl*", choices="choices",
                   answer="gold", prompt="{{query}}\nAnswer:", **more),
        TaskConfig(name="arithmetic", kind="cloze", path=f"{evals}/simple_arithmetic_nospaces.jsonl*",
                   answer="continuation", prompt="{{context}}", delimiter="", **more),
        TaskConfig(name="svamp", kind="generate", path=f"{evals}/svamp.jsonl*", prompt="Question: {{context}}\nA:",
                   max_new_tokens=16, stop=("\n", "Question:"), **more),
    ]  # fmt: skip


def lm_eval_config(task: TaskConfig, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the same task in lm-eval's terms."""
    from datasets import Dataset, DatasetDict

    common: dict[str, Any] = {
        "task": task.name, "test_split": "test",
        "custom_dataset": lambda **_: DatasetDict(test=Dataset.from_list(rows)),
        "doc_to_text": task.prompt, "doc_to_target": f"{{{{{task.answer}}}}}", "target_delimiter": task.delimiter,
        "fewshot_delimiter": task.shots_delimiter, "num_fewshot": task.shots, "fewshot_split": "test",
        "fewshot_config": {"sampler": "first_n"},
    }  # fmt: skip
    if task.kind == "multiple_choice":
        metrics: tuple[str, ...] = ("acc", "acc_norm", "acc_bytes")
        own: dict[str, Any] = {"output_type": "multiple_choice", "doc_to_choice": f"{{{{{task.choices}}}}}"}
    elif task.kind == "cloze":
        # lm-eval puts its delimiter before the answers of examples, but not before the scored answer.
        target = task.delimiter + common["doc_to_target"]
        metrics, own = ("acc", "perplexity"), {"output_type": "loglikelihood", "doc_to_target": target}
        own["target_delimiter"] = ""
    else:
        options = {"until": list(task.stop), "max_gen_toks": task.max_new_tokens, "do_sample": False}
        strip = [{"function": "regex", "regex_pattern": task.extract or "(?s).*"}, {"function": "take_first"}]
        own = {"output_type": "generate_until", "generation_kwargs": options}
        own |= {"filter_list": [{"name": "stripped", "filter": strip}]}
        metrics = ("exact_match",)
    listed = [{"metric": name, "aggregation": "perplexity" if name == "perplexity" else "mean"} for name in metrics]
    return {**common, **own, "metric_list": listed}


def theirs(model: Any, tasks: list[TaskConfig]) -> Scores:
    """Scores the tasks with lm-eval."""
    from lm_eval import simple_evaluate
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks import TaskManager

    nothing_else = TaskManager(include_defaults=False)  # otherwise it reads about ten thousand task files
    found: Scores = {}
    for task in tasks:
        (file,) = find(task.path, "the benchmark")
        rows = [row for _, row in parsed_rows(file)][: task.limit]
        made = ConfigurableTask(config=lm_eval_config(task, rows))
        result = simple_evaluate(
            model=model, tasks=[made], log_samples=True, bootstrap_iters=_BOOTSTRAP, task_manager=nothing_else
        )
        values = {key.partition(",")[0]: value for key, value in result["results"][task.name].items() if "," in key}
        metrics = {
            name: {"value": float(value), "stderr": values[f"{name}_stderr"]}
            for name, value in values.items()
            if not name.endswith("_stderr")
        }
        samples = sorted(result["samples"][task.name], key=lambda sample: sample["doc_id"])
        found[task.name] = {"metrics": metrics, "items": [_replies(task, sample) for sample in samples]}
    return found


def _replies(task: TaskConfig, sample: dict[str, Any]) -> Any:
    replies = [reply[0] for reply in sample["resps"]]
    return replies[0] if task.kind == "generate" else [float(reply[0]) for reply in replies]


def ours(folder: Path, tasks: list[TaskConfig]) -> Scores:
    """Scores the tasks with the code of the stage."""
    model = TextModel(folder)
    described = model.description
    scorer = Scorer(model.model, model.tokenizer, described["eos_id"], described["seq_len"], 16_384)
    found: Scores = {}
    with tempfile.TemporaryDirectory() as store:
        output = Output(Store(store), ArtifactId("test/scores", "dev"), "f" * 64)
        for task, score in zip(tasks, score_tasks(tasks, [0], lambda step: scorer, output), strict=True):
            files = output.store.list(f"{output.address.path}/{FOLDER}")
            paths = [path for path in files if f"/task.{task.name}." in path]
            column = "text" if task.kind == "generate" else "log_likelihoods"
            items = [row for path in paths for row in parquet.read(output.store.local(path)).column(column).to_pylist()]
            found[task.name] = {"metrics": score["metrics"], "items": items}
    return found


def compared(mine: Scores, others: Scores) -> dict[str, Any]:
    """Returns for each task the metrics of both, and the largest differences of metrics, errors and items."""
    return {name: _compared(mine[name], others[name]) for name in mine}


def _compared(mine: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    both = {name: (mine["metrics"][name], other) for name, other in others["metrics"].items()}
    errors = [abs(a["stderr"] - b["stderr"]) for name, (a, b) in both.items() if name != _RANDOM_ERROR]
    values = {name: [a["value"], b["value"]] for name, (a, b) in both.items()}
    assert len(mine["items"]) == len(others["items"]), "both have scored the same rows"
    pairs = list(zip(mine["items"], others["items"], strict=True))
    texts = isinstance(pairs[0][0], str)
    apart = [max(abs(x - y) for x, y in zip(a, b, strict=True)) for a, b in pairs] if not texts else []
    return {
        "items": len(pairs),
        "metrics": values,
        "largest_difference": max(abs(a - b) / max(1.0, abs(a)) for a, b in values.values()),
        "largest_difference_of_stderr": max(errors),
        **({"equal_texts": sum(a == b for a, b in pairs)} if texts else {"largest_difference_of_log_p": max(apart)}),
    }


def lm_eval(given: argparse.Namespace) -> None:
    """Scores tasks with the stage's code and with lm-eval."""
    from lm_eval.models.huggingface import HFLM

    tasks = tasks_of(given.evals.absolute(), given.items, given.shots)
    mine = ours(given.model, tasks)
    own_class = HFLM(pretrained=str(given.model), device="cpu", dtype="float32", batch_size=8)
    described = TextModel(given.model).description
    figures = {
        "parameters": described["parameters"]["total"],
        "context": described["seq_len"],
        "shots": given.shots,
        "through_for_lm_eval": compared(mine, theirs(for_lm_eval(given.model), tasks)),
        "lm_eval_hf": compared(mine, theirs(own_class, tasks)),
    }
    keep("lm_eval", {**figures, "cpu_seconds": round(time.process_time(), 1)})


def main() -> None:
    options = parser(__doc__)
    commands = options.add_subparsers(required=True)
    one = commands.add_parser("tokens", help="token exports in other readers")
    one.set_defaults(run=tokens)
    one = commands.add_parser("gguf", help="a model in llama.cpp")
    one.add_argument("model", type=Path, help="folder of an export")
    one.add_argument("--tokens", type=int, default=220, help="tokens of each text")
    one.set_defaults(run=gguf)
    one = commands.add_parser("lm_eval", help="scores of tasks in lm-eval")
    one.add_argument("model", type=Path, help="folder of a registered model")
    one.add_argument("evals", type=Path, help="folder with arc_easy, svamp and simple_arithmetic_nospaces")
    one.add_argument("--items", type=int, default=200)
    one.add_argument("--shots", type=int, default=2)
    one.set_defaults(run=lm_eval)
    given = options.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()

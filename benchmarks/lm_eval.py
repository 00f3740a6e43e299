"""The scores of tasks beside those of lm-eval 0.4.13, on the same model and rows.

    python -m benchmarks.lm_eval MODEL EVALS [--items 200] [--shots 2]

Needs the extra `lm-eval`, and for its own class of models `transformers` and `accelerate`. MODEL is the folder `model/`
of a registered model, EVALS one with `arc_easy`, `svamp` and `simple_arithmetic_nospaces` as JSON lines of llm-foundry.
A task of each kind is scored three times: by the code of the stage; by lm-eval on the same model through `for_lm_eval`;
and by lm-eval's own class `hf` on the same folder. The last shares no code with ours: templates, examples, tokens,
forward pass and scores are its own. Compared are every metric with its standard error, and every item's log-likelihoods
and text.

Writes `lm_eval.json`.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import keep, parser
from tasks.core import parquet
from tasks.core.artifact import ArtifactId
from tasks.core.stage import Output
from tasks.core.store import Store
from tasks.formats.documents.external_files import find
from tasks.formats.documents.json_rows import parsed_rows
from tasks.trainer.evaluation.config import TaskConfig
from tasks.trainer.evaluation.scoring import FOLDER, score_tasks
from tasks.trainer.inference import Scorer
from tasks.trainer.serve import TextModel, for_lm_eval

Scores = dict[str, dict[str, Any]]
"""Of each task `metrics` {metric: {value, stderr}} and `items`, log-likelihoods or text of each."""

_RANDOM_ERROR = "perplexity"
"""lm-eval takes its error from random samples; ours is computed."""
_BOOTSTRAP = 2
"""Random samples for it; 0 would leave out the errors of all metrics."""


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
        # lm-eval has its delimiter before the answers of examples, and none before the answer that is scored.
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
    """Scores the tasks by lm-eval."""
    from lm_eval import simple_evaluate
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks import TaskManager

    nothing_else = TaskManager(include_defaults=False)  # it would read some ten thousand files of tasks
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
    """Scores the tasks by the code of the stage."""
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


def main() -> None:
    options = parser(__doc__)
    options.add_argument("model", type=Path)
    options.add_argument("evals", type=Path)
    options.add_argument("--items", type=int, default=200)
    options.add_argument("--shots", type=int, default=2)
    given = options.parse_args()
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


if __name__ == "__main__":
    main()

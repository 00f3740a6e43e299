"""Stage `finetune`: a base model and examples -> a fine-tuned model, with the training loop of pretraining.

Reads `base` (`model.json` and its last weights) and `examples`. Writes for every milestone
`checkpoints/step-<nnnnnnnn>/{model.safetensors, optimizer.safetensors, state.json}` (with LoRA, only of the adapters)
and the log rows up to it, then `model.json`, `run.json` (the mapping of steps to sequences), `loss.parquet` and, if
adapters are merged, `merged/model.safetensors`. Examples of documents that are taken down before or during the run are
blank from the next checkpoint on, and examples that spoil a step immediately (`withheld.json`). Training runs in child
processes and is supervised (`launch.supervised`); a killed stage resumes from the newest checkpoint that verifies, and
writes the same bytes.

On several nodes, every node starts this stage: node 0 runs it, and the others `join` it, as in `tasks.stages.train`.
"""

import json
from dataclasses import replace
from functools import partial
from typing import Any

from tokenizers import Tokenizer

from tasks.core.artifact import Artifact
from tasks.core.config import canonical_json
from tasks.core.engine import Engine
from tasks.core.errors import InputError, RecipeError
from tasks.core.stage import Inputs, Output, Part, Report
from tasks.formats.documents.examples import SUMMARY, Examples
from tasks.formats.hooks import Hooks
from tasks.formats.tokens import marks
from tasks.formats.tokens.exposure import SOURCE, source_files, tokenizer_of, unrecorded
from tasks.formats.tokens.order import VERSION as ORDER
from tasks.formats.tokens.readings import recipes_of, withheld_examples, write_losses
from tasks.formats.tokens.shard import TokenFormat
from tasks.trainer.checkpoints.checkpoint import MODEL, name_of
from tasks.trainer.config import TrainSpec
from tasks.trainer.data.notice import initial_model_note
from tasks.trainer.launch import supervised
from tasks.trainer.launch.supervised import SupervisedRun
from tasks.trainer.model.model_file import FILE, MERGED, describe, stop_ids
from tasks.trainer.place import TrainPlace
from tasks.trainer.spec import tuning_spec
from tasks.trainer.tuning.config import FinetuneConfig, unsupported_settings

VERSION = 5


def run(config: FinetuneConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Fine-tunes the base; see the module docstring.

    Raises:
        InputError: base and examples do not match, or every step was skipped.
        RecipeError: the place has a layout that fine-tuning does not support.
    """
    _check_layout(config, output)
    examples = inputs["examples"]
    rows = partial(withheld_examples, examples)
    run = SupervisedRun(output, partial(tuning_spec, config, inputs), rows, recipes_of(examples))
    _check_template(examples, inputs["base"])
    initial_note = initial_model_note(inputs["base"], output)
    metrics = run.train()
    opened_examples = Examples(examples)
    if "model" not in output.committed:
        with output.part("model", conserved=False) as part:
            _describe(part, config, run, opened_examples, inputs["base"], _ends(examples), metrics)
            if config.lora and config.lora.merge:
                _merge(part, output, run.spec)
    report = run.finish(_report(config, opened_examples, metrics))
    return replace(report, note=f"{report.note}; {initial_note}")


def join(config: FinetuneConfig, inputs: Inputs, output: Output) -> None:
    """Runs the ranks of a node other than 0; see `supervised.join`."""
    _check_layout(config, output)
    supervised.join(output, partial(tuning_spec, config, inputs))


HOOKS = Hooks(join=join)


def _check_layout(config: FinetuneConfig, output: Output) -> None:
    """Raises RecipeError if fine-tuning does not support the layout of the place."""
    for problem in unsupported_settings(TrainPlace.of(output.place).layout, config.loss):
        cause, _, remedy = problem.rpartition(": ")
        raise RecipeError(cause, remedy)


def _check_template(examples: Artifact, base: Artifact) -> None:
    """Raises InputError if the base is an imported model whose tokenizer has changed since the examples were made.

    With another chat template, the same `tokenizer.json` makes other examples.
    """
    theirs = tokenizer_of(base) if unrecorded(base) else None
    used = next((ref for ref in examples.record.inputs if ref.role == "tokenizer"), None)
    if theirs is None or used is None or used.address.partition("@")[0] != theirs.address.name:
        return
    if used.content != theirs.record.content:
        raise InputError(
            f"{examples.address} was made with {used.address}, and the base {base.address} has {theirs.address}",
            "give the run another version, so that its examples are made for this base",
        )


def _describe(
    part: Part,
    config: FinetuneConfig,
    run: SupervisedRun,
    examples: Examples,
    base: Artifact,
    ends: set[int],
    metrics: list[dict[str, Any]],
) -> None:
    tokens = TokenFormat(**{name: examples.summary[name] for name in ("vocab_size", "eos_id", "tokenizer_sha256")})
    of_base = json.loads(base.read(FILE))
    # It reads what its base reads, whatever the length of packed sequences; or the longest text that it has learned.
    context, stop = max(of_base["seq_len"], examples.longest), {*stop_ids(of_base), *ends}
    model = describe(run.spec.run.model, tokens, context, stop) | {"adapters": config.lora is not None}
    described = {FILE: model, "run.json": _describe_run(config, run.spec, examples)}
    files = {name: f"{canonical_json(content)}\n".encode() for name, content in described.items()}
    files |= {f"{SOURCE}{name}": content for name, content in source_files(base).items()}
    for name, content in files.items():
        with part.file(name) as file:
            file.write(content)
    write_losses(part, metrics)
    if content := run.notice.marks_content():
        with part.file(marks.FILE) as file:
            file.write(content)


def _ends(examples: Artifact) -> set[int]:
    """Returns the tokens that end a response of an imported chat template; raises InputError without the tokenizer."""
    if not (names := json.loads(examples.read(SUMMARY))["template"].get("stop")):
        return set()
    tokenizer = tokenizer_of(examples)
    if tokenizer is None:
        raise InputError(f"the tokenizer of {examples.address} is gone", "restore it, or make the examples again")
    loaded = Tokenizer.from_str(tokenizer.read("tokenizer.json").decode())
    return {number for name in names if (number := loaded.token_to_id(name)) is not None}


def _merge(part: Part, output: Output, spec: TrainSpec) -> None:
    """Writes the whole model, with the adapters of the last milestone, which is committed."""
    from tasks.trainer.tuning.model import write_merged

    weights = output.store.read(f"{output.address.path}/checkpoints/{name_of(spec.run.steps)}/{MODEL}")
    with part.file(MERGED) as file:
        write_merged(spec, weights, file)


def _describe_run(config: FinetuneConfig, spec: TrainSpec, examples: Examples) -> dict[str, Any]:
    """Returns the content of `run.json`: the order of sequences (`Order.of_run`), and the method of fine-tuning."""
    assert spec.initial is not None
    return {
        "base": spec.initial.artifact,
        "loss": config.loss,
        "lora": config.lora.model_dump(mode="json") if config.lora else None,
        "template": examples.summary["template"],
        "weights": spec.weights,
        "sequences": {source: examples.sequences for source in spec.weights},
        "order": ORDER,
        "batch_size": config.batch_size,
        "seed": config.seed,
        "seq_len": examples.summary["seq_len"],
        "steps": config.steps,
        "checkpoint_steps": list(spec.run.milestone_steps),
    }


def _report(config: FinetuneConfig, examples: Examples, metrics: list[dict[str, Any]]) -> Report:
    """Returns the report: mean loss over the first and the last twentieth of the steps, and epochs."""
    losses = [line["loss"] for line in metrics if line["loss"] is not None]
    if not losses:
        raise InputError("every step was skipped", "see the reasons in the log; a lower [finetune.optim] lr may help")
    count = max(1, len(losses) // 20)
    first, last = (sum(part_of_losses) / len(part_of_losses) for part_of_losses in (losses[:count], losses[-count:]))
    epochs = config.steps * config.batch_size / examples.sequences
    return Report(
        metrics={
            "loss": last,
            "first_loss": first,
            "epochs": epochs,
            "steps": config.steps,
            "skipped_steps": len(metrics) - len(losses),
        },
        note=f"loss {first:.3f} -> {last:.3f} in {config.steps} steps, {epochs:.2g} epochs",
    )

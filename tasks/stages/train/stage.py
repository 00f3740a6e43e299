"""Stage `train`: shards, plan and mixture -> a trained model with its milestones.

Reads the token shards, the pack plan, the mixture (by default that of the recipe; `tasks.trainer.spec`) and, if
configured, the checkpoint with the initial weights (`tasks.trainer.model.model_file`). Writes for every milestone
`checkpoints/step-<nnnnnnnn>/{model.safetensors, optimizer.safetensors, state.json}` and the log rows up to it
(`locations`), the best one as well (`best`), with `[train.ema]` the mean of the weights as
`averaged/step-<nnnnnnnn>/model.safetensors`, then `model.json` (architecture), `run.json` (the mapping of steps to
sequences, for trace) and `loss.parquet`. Documents that are taken down before or during the run are blank from the next
checkpoint on, and `withheld.json` records the step (`notice`, `withheld`). Training runs in child processes and is
supervised (`launch.supervised`). A killed stage resumes from the newest checkpoint that verifies at any location, and
writes the same bytes.

On several nodes (`gang`), every node starts this stage; node 0 runs it, and the others `join` it. These write no
output, but copy the files of their ranks to the locations of checkpoints (`NodeCopies`).
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tasks.core.config import canonical_json
from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.hooks import Hooks
from tasks.formats.tokens import marks
from tasks.formats.tokens.exposure import INITIAL
from tasks.formats.tokens.marks import withheld_rows
from tasks.formats.tokens.order import VERSION as ORDER
from tasks.formats.tokens.plan import Plan
from tasks.formats.tokens.readings import write_losses
from tasks.trainer.best import End
from tasks.trainer.checkpoints.checkpoint import EMA, MODEL, OPTIMIZER, name_of, tensors_in, write_whole
from tasks.trainer.config import TrainConfig, TrainSpec
from tasks.trainer.continual import described, settings_of_month, start_step
from tasks.trainer.continual import note as continual_note
from tasks.trainer.data.notice import initial_model_note
from tasks.trainer.defaults import origins
from tasks.trainer.launch import supervised
from tasks.trainer.launch.supervised import SupervisedRun
from tasks.trainer.model.model_file import AVERAGED, changed_settings, describe
from tasks.trainer.spec import epochs, make_spec, open_plan

log = logging.getLogger("sluice.train")

VERSION = 5


def run(config: TrainConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Trains the model of the recipe; see the module docstring."""
    config = settings_of_month(config, inputs)
    run = SupervisedRun(output, partial(make_spec, config, inputs), partial(withheld_rows, inputs["shards"]))
    initial_note = _initial_note(config, inputs, output)
    metrics = run.train()
    if run.spec.run.ema and run.spec.run.ema.weights == "ema" and AVERAGED not in output.committed:
        best = [run.end.best["step"]] if run.end.best else []
        _write_averaged(output, sorted({*milestones(run.spec, run.end), *best}))
    if "model" not in output.committed:
        of_month = described(config, inputs, run.end.steps)
        _describe(output, run.spec, run.end, metrics, run.notice.marks_content(), of_month)
    report = run.finish(_report(metrics, run.spec, run.end))
    return replace(report, note=f"{report.note}{initial_note}")


def join(config: TrainConfig, inputs: Inputs, output: Output) -> None:
    """Runs the ranks of a node other than 0; see `supervised.join`."""
    supervised.join(output, partial(make_spec, settings_of_month(config, inputs), inputs))


HOOKS = Hooks(join=join)


def _initial_note(config: TrainConfig, inputs: Inputs, output: Output) -> str:
    """Returns a clause for the note of the run: its initial weights, takedowns since, and changed settings."""
    if not config.init_from:
        return ""
    if INITIAL not in inputs:
        recipe = output.address.name.partition("/")[0]
        name = config.init_from.partition("@")[0] if "@" in config.init_from else f"{recipe}/checkpoint"
        note = f"; began from random weights, since no other version of {name} was complete"
        log.warning("[%s] %s", output.address, note.removeprefix("; "))
        return note
    checkpoint = inputs[INITIAL]
    note = f"; {initial_model_note(checkpoint, output, start_step(config, inputs))}{continual_note(config, inputs)}"
    changed = changed_settings(checkpoint, config.model)
    return f"{note}, with {changed}" if changed else note


def _write_averaged(output: Output, steps: Sequence[int]) -> None:
    """Writes the part `averaged`: `averaged/step-<n>/model.safetensors`, the mean of the weights of each checkpoint.

    What is no parameter, the biases of the choice of experts, is that of the checkpoint.
    """
    with output.part(AVERAGED, conserved=False) as part:
        for step in steps:
            folder = f"{output.address.path}/checkpoints/{name_of(step)}"
            files = (Path(output.store.local(f"{folder}/{name}")) for name in (MODEL, OPTIMIZER))
            weights, moments = (tensors_in([path]) for path in files)
            means = {name: moments.get(f"{EMA}{name}", tensor) for name, tensor in sorted(weights.items())}
            with part.file(f"{AVERAGED}/{name_of(step)}/{MODEL}") as file:
                write_whole(means, file)


def _describe(
    output: Output,
    spec: TrainSpec,
    end: End,
    metrics: list[dict[str, Any]],
    withheld_marks: bytes,
    of_month: dict[str, Any],
) -> None:
    """Writes the part `model`: `model.json`, `run.json`, `loss.parquet`, and the marks of withheld documents if any."""
    plan = open_plan(spec)
    with output.part("model", conserved=False) as part:
        for name, content in (
            ("model.json", describe(spec.run.model, plan.format, plan.seq_len)),
            ("run.json", {**describe_run(spec, plan, end), **of_month}),
        ):
            with part.file(name) as file:
                file.write((canonical_json(content) + "\n").encode())
        if withheld_marks:
            with part.file(marks.FILE) as file:
                file.write(withheld_marks)
        write_losses(part, metrics)


def milestones(spec: TrainSpec, end: End) -> list[int]:
    """Returns the steps whose checkpoints are in the artifact, sorted: the milestones up to the end, and the end."""
    return sorted({*(step for step in spec.run.milestone_steps if step < end.steps), end.steps})


def describe_run(spec: TrainSpec, plan: Plan, end: End) -> dict[str, Any]:
    """Returns the content of `run.json`: the settings that determine which step reads which sequence (`Order.of_run`).

    `settings` has learning rate, batch and precision, and whether they are defaults of the model's size. A run with a
    single mixture stage has no "anneal", and one without batch-size warm-up no "ramp". `steps` and `checkpoint_steps`,
    the milestones, are those of the end; a run that ended early also has its `planned_steps`, and one with
    `[train.best]` the best checkpoint.
    """
    return {
        "weights": spec.weights,
        **({"anneal": spec.anneal.model_dump()} if spec.anneal else {}),
        "sequences": plan.summary["sequences"],
        "order": ORDER,
        "batch_size": spec.run.batch_size,
        **({"ramp": [(stage.steps, stage.batch_size) for stage in spec.run.ramp]} if spec.run.ramp else {}),
        "seed": spec.run.seed,
        "seq_len": plan.seq_len,
        "steps": end.steps,
        "checkpoint_steps": milestones(spec, end),
        **end.described(spec.run.steps),
        "vocab_size": plan.format.vocab_size,
        "tokenizer_sha256": plan.format.tokenizer_sha256,
        "settings": origins(spec.run, plan.seq_len),
    }


def _report(metrics: list[dict[str, Any]], spec: TrainSpec, end: End) -> Report:
    """Returns the report: mean loss over the last twentieth of the steps, and weight and epochs of each source."""
    losses = [line["loss"] for line in metrics if line["loss"] is not None]
    tail = losses[-max(1, len(losses) // 20) :]
    loss, tokens, steps = sum(tail) / len(tail), metrics[-1]["tokens"], end.steps
    epochs_by_source = epochs(spec.run, open_plan(spec).sequences, spec.weights, spec.anneal, steps)
    early = f" of {spec.run.steps}, since {end.early}," if end.early else ""
    best = {f"best_{name}": end.best[name] for name in ("step", "bpb")} if end.best else {}
    of_best = f"; the best checkpoint is that of step {end.best['step']:,}" if end.best else ""
    return Report(
        metrics={
            "loss": loss,
            "tokens": tokens,
            "steps": steps,
            **best,
            "skipped_steps": len(metrics) - len(losses),
            **{f"weight/{source}": weight for source, weight in spec.weights.items()},
            **({f"anneal_weight/{source}": w for source, w in spec.anneal.weights.items()} if spec.anneal else {}),
            **{f"epochs/{source}": times for source, times in epochs_by_source.items()},
        },
        note=f"loss {loss:.3f} after {steps} steps{early} and {tokens:,} tokens{of_best}",
    )

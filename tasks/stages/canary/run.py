"""Stages canary and confirm: train one small model on one arm with one seed, and evaluate it on every source.

Read `arms` (confirm: those of `finalist`), `shards` and `plan`; the member's name determines arm and seed. Write
``result.json`: {arm, seed, kind, weights, steps, tokens, bpb {source: bits per byte of its held-out text}, target_bpb,
loss_curve [[step, loss], ...]}. With tasks, `bpb` also has their metrics, in bits: "<task>/answer" and, if it has
choices, "<task>/choice" (`items.continuous`); `target_bpb` has that of the answers, and the cycle chooses.

Documents that were taken down before the start are not read, even if the plan contains them (`notice`);
`withheld.json` then lists them, and the record lists the takedowns as inputs.
A canary trains on one node, regardless of the place's nodes for training; it resumes like a training (`recovery`).

An arm of settings reads the shards and the plan of its variant, and is measured on the held-out text of the current
settings (`heldout`, with its `heldout_tokenizer`), which its own `tokenizer` encodes.

The run measures held-out text and tasks itself, after its last step: where it trains, and without loading torch in
the process of the stage. Items of tasks are encoded by the `tokenizer` of the arm.

Seeds are paired: with the same seed, every arm has the same initial weights and the same order within each source, so
that arms differ only in their mixture, or their settings.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tasks.core.engine import Engine
from tasks.core.errors import InputError, RecipeError
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.tokens import marks
from tasks.formats.tokens.marks import withheld_rows
from tasks.formats.tokens.plan import Plan
from tasks.formats.tokens.shard import FOLDER as SHARDS
from tasks.formats.tokens.shard import HELDOUT, ShardSet
from tasks.stages.canary import CanaryConfig, heldout
from tasks.stages.canary.registration import ARMS, HOOKS, RESULT, Arm, column, parse_member, targets
from tasks.trainer.config import HeldoutConfig, TrainSpec
from tasks.trainer.data.heldout import HeldoutDocument, heldout_documents, write
from tasks.trainer.data.notice import takedown_refs
from tasks.trainer.evaluation import items
from tasks.trainer.launch.supervised import SupervisedRun
from tasks.trainer.logs import BPB
from tasks.trainer.spec import make_spec, mix

__all__ = ["HOOKS", "VERSION", "run"]
VERSION = 5
_CURVE_POINTS = 50


def run(config: CanaryConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Trains and evaluates one member; raises InputError if `arms` does not list it."""
    if RESULT not in output.committed:
        arm_name, seed = parse_member(output.member)
        arm = _arm(inputs, arm_name)
        plan = Plan.open(inputs["plan"])
        measured = _documents(config, inputs, plan, arm)
        spec_of = partial(_spec, config, inputs, arm, seed, measured)
        run = SupervisedRun(output, spec_of, partial(withheld_rows, inputs["shards"]), canary=True)
        lines = run.train()
        tasks = [column(task.name, metric) for task in config.scored or () for metric in items.metrics_of(task)]
        bpb = _measured(lines[-1], [*measured, *tasks])
        target = targets(config, {source: len(documents) for source, documents in measured.items()})
        answers = {task: column(task, items.ANSWER) for task in config.tasks}
        result = {
            **arm,
            "seed": seed,
            "steps": config.steps,
            "tokens": config.steps * config.batch_size * plan.seq_len,
            "bpb": bpb,
            "target_bpb": round(sum(weight * bpb[answers.get(name, name)] for name, weight in target.items()), 6),
            "loss_curve": _curve(lines),
        }
        with output.part(RESULT, conserved=False) as part:
            with part.file(RESULT) as file:
                file.write(json.dumps(result, indent=1, sort_keys=True).encode() + b"\n")
            if content := run.notice.marks_content():
                with part.file(marks.FILE) as file:
                    file.write(content)
            part.metric("target_bpb", float(result["target_bpb"]))
            for source, value in bpb.items():
                part.metric(f"bpb/{source}", value)
    metrics = dict(output.committed[RESULT].metrics)
    path = f"{output.address.path}/{marks.FILE}"
    content = output.store.read(path) if output.store.exists(path) else b""
    note = f"{metrics['target_bpb']:.4f} bits per byte on the target"
    return Report(metrics=metrics, note=note, inputs=takedown_refs(output.store, content))


def _arm(inputs: Inputs, name: str) -> Arm:
    arms = json.loads(inputs["arms"].read(ARMS))
    for arm in arms:
        if arm["arm"] == name:
            return dict(arm)
    names = ", ".join(arm["arm"] for arm in arms)
    raise InputError(f'{inputs["arms"].address} has no arm "{name}"', f"it has {names}")


def _spec(
    config: CanaryConfig,
    inputs: Inputs,
    arm: Arm,
    seed: int,
    documents: Mapping[str, Sequence[HeldoutDocument]],
    folder: Path,
) -> TrainSpec:
    """Returns the run of an arm, which measures the documents after its last step."""
    files = Inputs({role: inputs[role] for role in ("shards", "plan")})
    training, plan = config.training(seed, arm), Plan.open(inputs["plan"])
    sequences = {source: plan.sequences[source] for source in plan.sources}
    weights, anneal = mix(training, sequences, arm["weights"], plan.summary["by"])
    spec = make_spec(training, files, folder)
    path = folder / "input" / "heldout.json"
    write(path, documents)
    measuring = HeldoutConfig(every=config.steps, max_tokens=config.heldout_tokens)
    changed = {"run": training.model_copy(update={"heldout": measuring}), "heldout": str(path)}
    if config.scored:
        file = folder / "input" / "tasks.json"
        items.write_encoded(file, _items(config, inputs, plan))
        changed["tasks"] = str(file)
    return spec.model_copy(update={"weights": weights, "anneal": anneal, **changed})


def _documents(config: CanaryConfig, inputs: Inputs, plan: Plan, arm: Arm) -> dict[str, list[HeldoutDocument]]:
    """Returns the held-out documents of every source that has any: for arms of settings, the same text for all."""
    if config.settings:
        left_out = {bytes.fromhex(uid) for uid in arm.get("left_out", ())}
        shards, tokenizers = ShardSet.open(inputs["heldout"]), (inputs["heldout_tokenizer"], inputs["tokenizer"])
        return heldout.measured(shards, config.heldout_tokens, left_out, tokenizers, plan.format.eos_id)
    sources = [source for source, count in sorted(plan.summary["heldout_documents"].items()) if count]
    # Whole files are fetched for these shards only.
    shards = ShardSet.open(inputs["shards"].restricted_to(tuple(f"{SHARDS}/{name}-{HELDOUT}-" for name in sources)))
    return {source: heldout_documents(shards, source, config.heldout_tokens) for source in sources}


def _items(config: CanaryConfig, inputs: Inputs, plan: Plan) -> dict[str, list[items.EncodedItem]]:
    """Returns the items of the tasks in the tokens of the arm; raises InputError if one cannot be read or scored."""
    described = {"tokenizer_sha256": plan.format.tokenizer_sha256}
    tokenizer = Tokenizer.from_str(items.matching_tokenizer(inputs["tokenizer"], described))
    return {task.name: items.encoded(task, tokenizer, plan.format.eos_id, plan.seq_len) for task in config.scored or ()}


def _measured(last: Mapping[str, Any], sources: Iterable[str]) -> dict[str, float]:
    """Returns the bits per byte of every source, and of metrics of tasks, from the log line of the last step."""
    found = {source: last[f"{BPB}/{source}"] for source in sorted(sources)}
    if infinite := [source for source, value in found.items() if value is None]:
        raise RecipeError(
            f"the bits per byte of {', '.join(infinite)} are not finite after the last step",
            "lower [canary.optim] lr, or raise its warmup_steps; in a sweep, leave the rate out of [canary.widths] lr",
        )
    return {source: round(value, 6) for source, value in found.items()}


def _curve(lines: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """Returns about `_CURVE_POINTS` pairs [step, loss] of the run, including the last one."""
    rows = [(line["step"], line["loss"]) for line in lines if line["loss"] is not None]
    stride = max(1, len(rows) // _CURVE_POINTS)
    return [[step, round(loss, 5)] for step, loss in rows[::-1][::stride][::-1]]

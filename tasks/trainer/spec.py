"""Builds the specification of a training or a fine-tuning, and the mixture of a run.

Reads the records of the artifacts `shards` and `plan`, and of `mixture` and `initial` if they exist; for a fine-tuning
those of `examples` and `base`. Writes the held-out documents that the run measures into a folder. Plan and shards of
training text are not fetched: ranks read the ranges that they need, of artifacts that `open_artifact` opens.
"""

import json
import logging
import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.config import nearest
from tasks.core.errors import InputError, RecipeError
from tasks.core.stage import Inputs
from tasks.core.store import Store
from tasks.formats.documents.examples import SOURCE, SUMMARY
from tasks.formats.tokens.components import JOINT, component_weights, group_names, largest_weights
from tasks.formats.tokens.exposure import INITIAL
from tasks.formats.tokens.labels import SOURCE as BY_SOURCE
from tasks.formats.tokens.labels import UNKNOWN
from tasks.formats.tokens.mixture import Anneal, repetitions, replay_weights
from tasks.formats.tokens.plan import Plan
from tasks.formats.tokens.shard import ShardSet
from tasks.trainer import continual
from tasks.trainer.config import EARLIER, ArtifactSpec, ForkSpec, TrainConfig, TrainSpec
from tasks.trainer.data import heldout
from tasks.trainer.model.model_file import base_weights, initial_weights
from tasks.trainer.tuning.config import FinetuneConfig

log = logging.getLogger("sluice.train")
_MONTH = re.compile(r"\d{4}-\d{2}")
USEFUL_EPOCHS = 4.0
"""Epochs up to which repeated text is about as useful as new text (see `TrainConfig.repetition_cap`)."""
REPLAY_SHARES = ((0.25, 0.5), (1.0, 0.25), (math.inf, 0.05))
"""(most new sequences per old one, share of replay): half of every batch for a small increment (TiC-LM, arXiv
2504.02107), a quarter to a twentieth for one as large as what was read before (arXiv 2403.08763)."""
KINDS = {"sft": "instructions", "dpo": "preferences"}
"""The kind of examples that each loss reads."""


def make_spec(config: TrainConfig, inputs: Inputs, folder: Path) -> TrainSpec:
    """Returns the specification of a training run in a folder, into which its inputs are written.

    Raises:
        InputError: the plan was packed from other shards, the initial weights belong to another model or tokenizer, or
            there is no held-out text to measure.
        RecipeError: the mixture is not possible (see `mix`).
    """
    shards = inputs["shards"]
    if any(ref.content != shards.record.content for ref in inputs["plan"].record.inputs if ref.role == "shards"):
        raise InputError(
            f"{inputs['plan'].address} was packed from other shards than {shards.address}", "run the stage pack again"
        )
    plan = Plan.open(inputs["plan"])
    start = continual.start_step(config, inputs)
    initial = initial_weights(config, plan.format, inputs[INITIAL], start) if INITIAL in inputs else None
    weights, anneal = _mixture(config, plan, inputs)
    heldout_file = ""
    if config.heldout:
        heldout_file = str(folder / "input" / "heldout.json")
        heldout.write(Path(heldout_file), heldout.heldout_by_source(ShardSet.open(shards), config.heldout.max_tokens))
    return TrainSpec(
        run=config,
        weights=weights,
        anneal=anneal,
        initial=initial,
        fork=_fork(config, inputs),
        shards=artifact_spec(shards),
        heldout=heldout_file,
        plan=artifact_spec(inputs["plan"]),
        out=str(folder),
    )


def _fork(config: TrainConfig, inputs: Inputs) -> ForkSpec | None:
    """Returns the checkpoint that a run goes on from; raises InputError if the other run has not kept it."""
    if config.fork is None:
        return None
    run, kept = inputs["fork"], json.loads(inputs["fork"].read("run.json"))["checkpoint_steps"]
    if config.fork.step not in kept:
        raise InputError(
            f"[train.fork] step: {run.address} has no checkpoint of step {config.fork.step:,}",
            f"name one of {', '.join(f'{step:,}' for step in kept)}",
        )
    return ForkSpec(run=artifact_spec(run), step=config.fork.step)


def tuning_spec(config: FinetuneConfig, inputs: Inputs, folder: Path) -> TrainSpec:
    """Returns the specification of a fine-tuning run in a folder; its inputs are `examples` and `base`.

    Raises:
        InputError: the base does not exist or has another tokenizer, or the examples are of the wrong kind.
    """
    if "base" not in inputs:
        raise InputError(f"[finetune] base: no version of {config.base} is complete", "train one, or name another")
    examples = inputs["examples"]
    summary = json.loads(examples.read(SUMMARY))
    if summary["kind"] != KINDS[config.loss]:
        raise InputError(
            f'[finetune] loss = "{config.loss}" reads {KINDS[config.loss]}, and {examples.address} has '
            f"{summary['kind']}",
            "set [finetune] loss, or [examples] kind and files",
        )
    model, initial = base_weights(inputs["base"], summary["tokenizer_sha256"])
    return TrainSpec(
        run=config.training(model),
        weights={SOURCE: 1.0},
        shards=artifact_spec(examples),
        initial=initial,
        tuning=config.tuning_spec(summary["vocab_size"], summary["eos_id"], summary["seq_len"]),
        plan=None,
        out=str(folder),
    )


def artifact_spec(artifact: Artifact) -> ArtifactSpec:
    """Returns the location of an artifact for the ranks of a run."""
    return ArtifactSpec(store=artifact.store.root, artifact=str(artifact.address), content=artifact.record.content)


def open_artifact(spec: ArtifactSpec) -> Artifact:
    """Opens an artifact that a run reads; raises InputError if it changed since the run was specified."""
    artifact = Artifact.open_at(Store(spec.store), ArtifactId.parse(spec.artifact))
    if artifact.record.content != spec.content:
        raise InputError(f"{spec.artifact} in {spec.store} was made again since this run began", "run the stage again")
    return artifact


def open_plan(spec: TrainSpec) -> Plan:
    """Opens the plan of a pretraining; raises InputError as `open_artifact` does."""
    assert spec.plan is not None, "a fine-tuning has no plan"
    return Plan.open(open_artifact(spec.plan))


def mix(
    config: TrainConfig,
    sequences: Mapping[str, int],
    decided: Mapping[str, float] | None = None,
    by: str = BY_SOURCE,
) -> tuple[dict[str, float], Anneal | None]:
    """Returns the weights of the first stage, and the second stage if there is one.

    Args:
        config: settings of the run.
        sequences: number of sequences of every source that has any.
        decided: weights chosen by canaries; they replace `config.mixture`.
        by: the columns whose values are the sources (`[pack] by`).

    Raises:
        RecipeError: a mixture or replay names an unknown source, replay leaves no new one, or a source would be
            read more often than `repetition_cap`.
    """
    early = decided if decided is not None else _over(config, config.mixture, sequences, by, "mixture")
    weights = _replay(config, early, sequences)
    anneal = None
    if config.anneal:
        late = _over(config, config.anneal.mixture, sequences, by, "anneal.mixture")
        anneal = Anneal(from_step=config.anneal_from, weights=_replay(config, late, sequences))
    _check_repetition(config, sequences, weights, anneal)
    return weights, anneal


def epochs(
    config: TrainConfig,
    sequences: Mapping[str, int],
    weights: Mapping[str, float],
    anneal: Anneal | None,
    steps: int | None = None,
) -> dict[str, float]:
    """Returns how often the run reads each source: 1.0 is one epoch, inf for a source without sequences.

    `steps` is their number if the run ended early.
    """
    steps = config.steps if steps is None else steps
    stages = [(weights, config.samples(min(config.anneal_from, steps)))]
    if anneal:
        stages.append((anneal.weights, max(0, config.samples(steps) - config.samples(anneal.from_step))))
    totals: dict[str, float] = {}
    for shares, samples in stages:
        for source, times in repetitions(shares, sequences, samples).items():
            totals[source] = totals.get(source, 0.0) + times
    return totals


def _mixture(config: TrainConfig, plan: Plan, inputs: Inputs) -> tuple[dict[str, float], Anneal | None]:
    """Returns the weights of both stages: from the canaries, from the recipe, or by number of sequences."""
    decided = json.loads(inputs["mixture"].read("mixture.json"))["weights"] if "mixture" in inputs else None
    return mix(config, {source: plan.sequences[source] for source in plan.sources}, decided, plan.summary["by"])


def _over(
    config: TrainConfig, mixture: Mapping[str, float], sequences: Mapping[str, int], by: str, field: str
) -> dict[str, float]:
    most = {}
    if config.alpha and config.repetition_cap is not None:
        most = largest_weights(sequences, config.repetition_cap, config.samples(config.steps))
    where = f"[train] {field}, among the sources with a whole sequence"
    return component_weights(mixture, sequences, by, config.alpha, most, where)


def _replay(config: TrainConfig, weights: Mapping[str, float], sequences: Mapping[str, int]) -> dict[str, float]:
    if config.replay is None:
        return dict(weights)
    names = _before_newest(sequences) if config.replay.old == (EARLIER,) else config.replay.old
    known = {name for component in sequences for name in group_names(component)}
    for source in names:
        if source not in known:
            raise RecipeError(
                f'[train] replay.old, among the sources with a whole sequence: no source is called "{source}"',
                nearest(source, known),
            )
    old = [component for component in sequences if not {*names}.isdisjoint(group_names(component))]
    if set(old) >= set(sequences):
        raise RecipeError(
            "[train] replay.old names every source, so that none is new",
            "leave out the new ones, or [train] replay",
        )
    if not old:  # nothing to replay: the first month
        return dict(weights)
    share = config.replay.share or replay_share(sequences, old)
    return replay_weights(weights, sequences, old, share)


def replay_share(sequences: Mapping[str, int], old: Collection[str]) -> float:
    """Returns the default share of old sequences in a batch, by the size of the increment (`REPLAY_SHARES`).

    >>> replay_share({"may": 90, "june": 10}, ["may"]), replay_share({"may": 10, "june": 90}, ["may"])
    (0.5, 0.05)
    """
    before = sum(sequences[source] for source in old)
    increment = (sum(sequences.values()) - before) / max(1, before)
    return next(share for most, share in REPLAY_SHARES if increment <= most)


def _before_newest(sequences: Mapping[str, int]) -> tuple[str, ...]:
    """Returns the months before the newest one and, if there are any, documents without a time.

    Of joint values the first one is the month.

    Raises:
        RecipeError: a source is neither a month nor `unknown`.
    """
    sources = sorted({component.partition(JOINT)[0] for component in sequences})
    months = [source for source in sources if _MONTH.fullmatch(source)]
    if other := [source for source in sources if source not in months and source != UNKNOWN]:
        raise RecipeError(
            f'[train] replay.old = ["{EARLIER}"]: the source "{other[0]}" is not a month',
            'set [pack] by = "fetched_at" and [encode] columns = ["fetched_at"], or name the old sources',
        )
    old = months[:-1]
    return (*old, *(source for source in sources if source == UNKNOWN)) if old else ()


def _check_repetition(
    config: TrainConfig, sequences: Mapping[str, int], weights: Mapping[str, float], anneal: Anneal | None
) -> None:
    """Raises RecipeError with every source that is read too often; without a cap, logs a warning."""
    totals = {
        source: times for source, times in epochs(config, sequences, weights, anneal).items() if source in sequences
    }
    # Shares are rounded; a run that needs exactly the cap must not be refused for that.
    cap = USEFUL_EPOCHS if config.repetition_cap is None else config.repetition_cap
    excessive = {source: times for source, times in totals.items() if times > cap * (1 + 1e-3)}
    if not excessive:
        return
    if config.repetition_cap is None:
        for source, times in excessive.items():
            log.warning('the run reads "%s" %.1f times; beyond %g, repetition has little value', source, times, cap)
        return
    causes = [
        f'"{source}" ({sequences[source]:,} sequences) {times:.2f} times: it fits with '
        f"{_fitting(source, cap / times, weights, anneal)}"
        for source, times in excessive.items()
    ]
    raise RecipeError(
        f"{config.steps:,} steps of {config.batch_size} sequences read more often than [train] repetition_cap = "
        f"{cap:g} allows: {'; '.join(causes)}",
        f"lower these weights, train {math.floor(config.steps * cap / max(excessive.values())):,} steps, raise the "
        "cap, or feed more text",
    )


def _fitting(source: str, factor: float, weights: Mapping[str, float], anneal: Anneal | None) -> str:
    """Returns the largest weights of a source that respect the cap, as text; rounded down to four decimals."""
    stages = [("weight", weights.get(source, 0.0))] + (
        [("anneal weight", anneal.weights.get(source, 0.0))] if anneal else []
    )
    return " and ".join(f"{name} {math.floor(share * factor * 10_000) / 10_000:g}" for name, share in stages if share)

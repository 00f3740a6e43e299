"""What a cycle states before its first run: arms, rules, settings and target; no arm repeats a source too often.

Does not import scipy, which takes longer than the rest of a small run's process.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tasks.core.artifact import Artifact
from tasks.core.errors import RecipeError
from tasks.core.stage import Output
from tasks.formats.hooks import Hooks
from tasks.formats.tokens.components import component_weights, largest_weights
from tasks.formats.tokens.mixture import Mixture, repetitions
from tasks.stages.canary import CanaryConfig, arm_of
from tasks.stages.canary.cost import CycleCost
from tasks.trainer.evaluation.items import external_of

ARMS = "arms.json"
RESULT = "result.json"
"""File of the result of each member."""

Arm = dict[str, Any]
"""An arm, as in `arms.json`: arm (its name), kind, weights; and, if they differ from those of a plain run: again (other
data), lr_share (of the learning rate), confirms (the model of the confirmation). An arm of settings also has set (the
settings by dotted path) and, if there are any, left_out (ids of held-out documents that are not measured). One of a
sweep of widths has dim and lr."""

Cycle = dict[str, Any]
"""Content of `cycle.json`, see `arms`."""


def parse_member(member: str) -> tuple[str, int]:
    """Returns (arm, seed) of a member's name, with or without its round.

    >>> parse_member("arm-2-seed-1"), parse_member("round-1-arm-0-again-seed-4")
    (('arm-2', 1), ('arm-0-again', 4))
    """
    return arm_of(member), int(member.rpartition("-seed-")[2])


def seeds_of(config: CanaryConfig, arm: Arm) -> tuple[int, ...]:
    """Returns the fresh seeds of an arm of the confirmation."""
    return config.fresh_seeds[: arm.get("seeds", config.confirmations)]


def external(config: CanaryConfig) -> dict[str, list[str]]:
    """Returns the files of the tasks; their bytes are in the fingerprint."""
    return external_of(config.scored or ())


HOOKS = Hooks(external=external)


def continues(config: CanaryConfig, previous: Artifact | None) -> bool:
    """Returns whether the current mixture is that of the previous decision: the recipe's has not changed since."""
    if previous is None:
        return False
    before = previous.record.config
    return (before.get("current"), before.get("alpha", {})) == (config.current, config.alpha)


def column(task: str, metric: str) -> str:
    """Returns the name of a metric of a task among the bits per byte of a run; no source has a "/" in its name."""
    return f"{task}/{metric}"


def targets(config: CanaryConfig, counts: Mapping[str, int]) -> dict[str, float]:
    """Returns the weight of each source's held-out bits per byte, and of each task's bits, in the target.

    Args:
        config: settings of the cycle.
        counts: number of held-out documents by source.

    Raises:
        RecipeError: a source of the target is unknown or has no held-out document.
    """
    measurable = [source for source, count in sorted(counts.items()) if count]
    if not measurable:
        raise RecipeError("no source has a held-out document", "raise [encode] heldout_share or heldout_min")
    measurable += config.tasks
    if not config.target:
        return {source: 1 / len(measurable) for source in measurable}
    return Mixture(weights=config.target).over(measurable, "[canary] target").weights


def require_repetition(
    config: CanaryConfig, weights: Mapping[str, float], sequences: Mapping[str, int], whose: str
) -> None:
    """Raises RecipeError if a mixture reads a source more often than `repetition_cap`; `whose` names the mixture."""
    needed = repetitions(weights, sequences, config.steps * config.batch_size)
    source, epochs = max(needed.items(), key=lambda item: item[1])
    if epochs > config.repetition_cap:
        raise RecipeError(
            f'{whose} reads "{source}" {epochs:.1f} times, above [canary] repetition_cap = {config.repetition_cap:g}',
            "lower its weight or [canary] steps, raise the cap, or add text of the source",
        )


def begin(
    config: CanaryConfig,
    arms: list[Arm],
    rules: list[str],
    sequences: Mapping[str, int],
    kept: Mapping[str, float] = MappingProxyType({}),
    most_arms: int | None = None,
) -> Cycle:
    """Returns a cycle with its first round, which registers arms, rules and settings; see `decision.Registered`."""
    settings = {
        "rounds": config.rounds,
        "seeds": list(config.seeds),
        "fresh_seeds": list(config.fresh_seeds),
        "target": config.target,
        "guarded": list(config.guarded),
        "budget": config.budget.model_dump(mode="json"),
        **({"tasks": list(config.tasks)} if config.tasks else {}),
    }
    about = {"sequences": dict(sequences), "kept": dict(kept), "most_arms": most_arms}
    names = [arm["arm"] for arm in arms]
    return {
        "registered": {**about, "rules": rules, "settings": settings},
        "arms": arms,
        "results": [],
        "rounds": [{"round": 1, "arms": names, "probability": None, "proposed": None, "stopped": None}],
    }


def write(output: Output, files: Mapping[str, bytes]) -> None:
    """Writes the files of a stage as one part with the name of the first, unless it is committed already."""
    name = next(iter(files))
    if name not in output.committed:
        with output.part(name, conserved=False) as part:
            for path, content in files.items():
                with part.file(path) as file:
                    file.write(content)


def rules(config: CanaryConfig, cost: CycleCost, arms: int) -> list[str]:
    """Returns the rules of a cycle as sentences, which `cycle.json` states before the first run.

    Args:
        config: settings of the cycle.
        cost: of the cycle.
        arms: number of arms of the first round.
    """
    share = (1 - config.confidence) / 2
    guarded = "source or task" if config.tasks else "source"
    lines = [
        f"At most {config.rounds} rounds; none follows if the best mixture is lower than the current one with a "
        f"probability above {config.sure:g}, or the budget is spent.",
        f"The finalist and the current mixture are trained with {config.confirmations} fresh seeds. It is promoted "
        f"only if Student's interval ({config.confidence:.0%}) of the paired differences is above 0, and no guarded "
        f"{guarded} becomes worse by more than {config.guard_share:.0%}. At most {share:.1%} of equal mixtures are "
        "promoted.",
        "The current mixture is also trained with other data (A/A). If that would have been promoted, nothing is.",
    ]
    if config.lr_check:
        lines.append("At one fifth of the learning rate, the mean difference must have the same sign.")
    if config.signal_floor:
        lines.append(
            f"A source votes in the target unless its signal-to-noise ratio is surely below {config.signal_floor:g}."
        )
    if config.tasks:
        votes = f"only if this ratio is at least {config.signal_floor:g}" if config.signal_floor else "in any case"
        lines.append(
            f"The tasks {', '.join(config.tasks)} are measured by bits per byte of the right answers and, if they have "
            "choices, by -log2 of the mean normalized choice probability. Of these two, a task's metric is that with "
            f"the larger signal-to-noise ratio in all runs of the screening; it votes in the target {votes}. The fresh "
            "seeds are judged by this metric."
        )
    if config.widths:
        lines.append(
            f"The current mixture is also trained at the widths {', '.join(map(str, config.widths.dims))} with the "
            f"learning rates {', '.join(f'{lr:g}' for lr in config.widths.lr)}, {cost.swept:.1f} runs of the small "
            "model in all. That says which rate fits which width; no mixture depends on it."
        )
    budget = "no budget is set" if cost.limit == float("inf") else f"the budget pays for {cost.limit:.1f} runs"
    return [*lines, f"Cost of the longest cycle: {cost.text(cost.most(arms))}; {budget}."]


CURRENT_OF_RECIPE = "[canary] current, among the sources with a whole sequence"
"""What the mixture of the recipe is, for messages."""


def in_components(
    config: CanaryConfig, mixture: Mapping[str, float], sequences: Mapping[str, int], by: str, where: str
) -> dict[str, float]:
    """Returns a mixture of the recipe by component, its groups divided by the exponents of the settings.

    Args:
        config: settings of the cycle.
        mixture: weights by component or group; empty for the natural mixture.
        sequences: number of sequences by component.
        by: the columns that make the components.
        where: what the mixture is, for messages.
    """
    most = largest_weights(sequences, config.repetition_cap, config.steps * config.batch_size) if config.alpha else {}
    return component_weights(mixture, sequences, by, config.alpha, most, where)

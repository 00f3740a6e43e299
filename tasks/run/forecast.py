"""Forecasts: the funnel of a version under other limits, and the plan of a training or fine-tuning.

`compare` reads the inputs and the record of the version's documents. The settings before the change are those in this
record, not those of the recipe, because a version may have been made with overrides. `plan` reads the recipe, the
records of its checkpoints, and optionally the `config.json` of another model.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.config import assign, changes, parse
from tasks.core.errors import InputError, RecipeError
from tasks.core.ledger import newest
from tasks.core.store import Store
from tasks.filters.catalogue import filter_names
from tasks.formats.documents.document import CONTAMINATION, PARAGRAPHS
from tasks.formats.documents.tombstones import in_force
from tasks.run.catalogue import STAGES
from tasks.run.inputs import named_inputs
from tasks.run.lineage import artifact_of_version
from tasks.run.recipe import Recipe
from tasks.run.recipe_validation import all_kinds
from tasks.run.result import Json
from tasks.stages.canary import CanaryConfig
from tasks.stages.canary.cost import CycleCost
from tasks.stages.consolidate.aligned_inputs import AlignedInputs
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.what_if import render, what_if
from tasks.stages.finetune import ExamplesConfig
from tasks.stages.tokens import PackConfig, TokenizerConfig
from tasks.trainer.config import TrainConfig
from tasks.trainer.defaults import doubts
from tasks.trainer.interchange.huggingface import read_shape
from tasks.trainer.model import model_file
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.shape import ModelShape
from tasks.trainer.parallel.start import CPU
from tasks.trainer.planning.config import PEAKS, PlanConfig
from tasks.trainer.planning.estimate import (
    FROM_PLAN,
    RunEstimate,
    RunPerformance,
    estimate,
    has_gpu,
    planned_start,
)
from tasks.trainer.planning.tables import (
    OF_A_GPU,
    RATES,
    ComparisonRow,
    comparable_on_any_device,
    comparison,
    comparison_text,
    implausible,
    plan_text,
)
from tasks.trainer.tuning.config import FinetuneConfig
from tasks.trainer.tuning.memory import Workload


@dataclass(frozen=True)
class TrainingPlan:
    """The plan of a training run, and its comparison with the run.

    Attributes:
        planned: the estimate.
        compared: planned and real values; [] if the run has not ended.
        omitted: texts in place of the figures of the table that do not apply, by the names of its rows.
        notes: what the recipe's canaries cost, and why figures are left out.
    """

    planned: RunEstimate
    compared: list[ComparisonRow]
    omitted: dict[str, str]
    notes: list[str]

    def to_json(self) -> Json:
        """Returns the fields as JSON values."""
        return asdict(self)

    def text(self) -> str:
        """Returns the plan and the comparison as tables, and the notes."""
        compared = [comparison_text(self.compared)] if self.compared else []
        return "\n".join([plan_text(self.planned, self.omitted), *compared, *self.notes]).rstrip()


def compare(
    store: Store,
    recipe: str,
    config: ConsolidateConfig,
    values: Mapping[str, Any],
    version: str,
    source_version: str = "",
    examples: int = 5,
) -> str:
    """Returns, as text, the settings before and after a change, and the comparison of the two funnels.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        config: the recipe's settings, used if the version has no documents yet.
        values: settings to change, by dotted paths without the section ("limits.gopher_quality.min_words").
        version: version of the documents, or of their inputs.
        source_version: version from which artifacts that are missing at `version` are read; "" for none.
        examples: number of documents to show for each change of the verdict.

    Raises:
        RecipeError: a value is invalid, or the current code rejects the settings of the version.
        InputError: an input does not exist, or the settings read an attribute that was not measured.
    """
    aligned = inputs_at(store, recipe, version, source_version)
    documents = Artifact.find(store, ArtifactId(f"{recipe}/documents", version))
    if documents is None and source_version:
        documents = artifact_of_version(store, recipe, "documents", source_version)
    before, origin = config, "the recipe"
    if documents:
        before, origin = settings_of(documents), str(documents.address)
    after = changed_settings(before, values)
    others = _differences(config, before, "in the recipe")
    return "\n".join(
        [
            f"before: the settings of {origin}{f': {others}' if others else ''}",
            f"after: the same with {_differences(before, after, 'before') or 'nothing changed'}",
            render(what_if(before, after, aligned, examples)),
        ]
    )


def settings_of(documents: Artifact) -> ConsolidateConfig:
    """Returns the settings that documents were made with; raises RecipeError if the current code rejects them."""
    return parse(ConsolidateConfig, documents.record.config, f"the settings that {documents.address} was made with")


def changed_settings(config: ConsolidateConfig, values: Mapping[str, Any]) -> ConsolidateConfig:
    """Returns settings with some values replaced, by dotted paths; a default of `sources` is computed again.

    Not checked against the annotators of the recipe, because a version may have been measured with an override.
    """
    settings: dict[str, Any] = config.model_dump(mode="json")
    assign(settings, values)
    changed = parse(ConsolidateConfig, settings, "override of [consolidate]")
    if config.sources == config.judged_by_default() and "sources" not in values:
        changed = changed.model_copy(update={"sources": changed.judged_by_default()})
    for problem in changed.misplaced_limits(all_kinds()):
        cause, _, remedy = problem.rpartition(": ")
        raise RecipeError(f"override of [consolidate]: {cause}", remedy)
    return changed


def _differences(old: ConsolidateConfig, new: ConsolidateConfig, where: str) -> str:
    """Returns the differences as text, without the limits of filters that were added or removed.

    Args:
        old: settings that are printed in parentheses.
        new: settings that are printed first.
        where: description of the old settings, such as "before".
    """
    before, after = (config.model_dump(mode="json", exclude={"kinds"}) for config in (old, new))
    relevant = (change for change in changes(before, after, "") if not (_is_filter_limit(change[0]) and None in change))
    return ", ".join(f"{path} = {_text(value)} ({where} {_text(previous)})" for path, previous, value in relevant)


def _is_filter_limit(path: str) -> bool:
    """Returns whether a dotted path is a limit of a filter in general, not one for a source or kind."""
    section, _, rest = path.partition(".")
    return section == "limits" and rest.partition(".")[0] in filter_names()


def _text(value: Any) -> str:
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def inputs_at(store: Store, recipe: str, version: str, source_version: str = "") -> AlignedInputs:
    """Opens the inputs that `documents` of a version was made from, or would be made from if it does not exist.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        version: version of `documents`.
        source_version: version from which inputs that are missing at `version` are read; "" to find them in the records
            of `version`.

    Raises:
        InputError: an input does not exist.
    """
    documents = Artifact.find(store, ArtifactId(f"{recipe}/documents", version))
    recorded = {ref.role: ArtifactId.parse(ref.address) for ref in documents.record.inputs} if documents else {}

    def open_input(role: str) -> Artifact:
        own = recorded.get(role, ArtifactId(f"{recipe}/{role}", version))
        artifact = Artifact.find(store, own)
        if artifact is None and role not in recorded:
            artifact = artifact_of_version(store, recipe, role, source_version or version)
        if artifact is None:
            also = f", and {source_version} has none" if source_version and role not in recorded else ""
            raise InputError(
                f"no artifact {own} in {store.root}{also}",
                "run the stage that makes it, or name the version that has it (--source-version)",
            )
        return artifact

    def open_optional(role: str) -> Artifact | None:
        exists = documents is None and artifact_of_version(store, recipe, role, source_version or version)
        return open_input(role) if role in recorded or exists else None

    return AlignedInputs(
        extracted=open_input("extracted"),
        attributes=open_input("attributes"),
        duplicates=open_input("duplicates"),
        store=store,
        folder="",
        takedowns=tuple(in_force(store, recipe)),
        contamination=open_optional(CONTAMINATION),
        paragraphs=open_optional(PARAGRAPHS),
    )


def plan(recipe: Recipe, store: Store, version: str, model: str = "", tuned: bool = False) -> TrainingPlan:
    """Returns the plan, with the MFU of the newest other run, and its comparison with the run at `version`.

    A run that was estimated before it began (`[plan] enabled`) is compared with that estimate.

    Args:
        recipe: the recipe; the assumptions are those of its `[plan]`, enabled or not.
        store: store of its artifacts.
        version: version of the run to compare with. There is no comparison if it has not ended, or with `model`.
        model: path of a Hugging Face `config.json` of a model whose training to plan; "" for the recipe's model.
        tuned: whether to plan the fine-tuning of the recipe, as for a recipe that trains nothing else.

    Raises:
        RecipeError: the recipe trains nothing, or cannot be trained in the layout of its place.
        InputError: `model` cannot be read, or the base of a fine-tuning does not exist.
    """
    if tuned or ("checkpoint" not in recipe.makes and recipe.of(FinetuneConfig).active):
        return _tuning_plan(recipe, store, version)
    if "checkpoint" not in recipe.makes:
        raise RecipeError(f"the recipe {recipe.name} trains no model", "add the section [train]")
    train = recipe.of(TrainConfig)
    shape = read_shape(Path(model)) if model else ModelShape.of(train.model, recipe.of(TokenizerConfig).vocab_size)
    name = f"{recipe.name}/checkpoint"
    previous = newest(store, name, but=version)
    measured = RunPerformance.of(previous.record.metrics) if previous else None
    train = train.of_month(2) if previous else train
    load = Workload(train, shape, recipe.of(PackConfig).seq_len)
    planned = _estimate(recipe, load, measured, str(previous.address) if previous else "", elsewhere=bool(model))
    if model:
        return TrainingPlan(planned, [], implausible(planned), [])
    plan = _with_omissions(recipe, store, version, planned, Artifact.find(store, ArtifactId(name, version)))
    plan.notes.extend(doubts(train, gpu=bool(recipe.place.kubernetes and recipe.place.kubernetes.gpus)))
    return plan


def _with_omissions(
    recipe: Recipe, store: Store, version: str, planned: RunEstimate, run: Artifact | None
) -> TrainingPlan:
    """Returns a plan without figures that do not apply in the place of the recipe, and the comparison with a run."""
    omitted, notes = implausible(planned), _canary_cost(recipe)
    if _lacks_gpu(recipe):
        rates = RATES if planned["time"]["mfu_from"] == FROM_PLAN else ()
        omitted |= {**dict.fromkeys((*OF_A_GPU, *rates), "-"), "devices": f"{planned['time']['gpus']} x no GPU"}
        notes.append(_without_gpu(recipe.of(PlanConfig).gpu))
    compared, note = _comparison(recipe, store, version, planned, run) if run else ([], "")
    return TrainingPlan(planned, compared, omitted, [*notes, *([note] if note else [])])


def _canary_cost(recipe: Recipe) -> list[str]:
    """Returns a line with the cost of the longest canary cycle of the recipe; [] without canaries."""
    if not recipe.has(STAGES["arms"]):
        return []
    cost = CycleCost(recipe.of(CanaryConfig), recipe.of(TokenizerConfig).vocab_size, recipe.of(PackConfig).seq_len)
    return [f"Canaries, at most: {cost.text(cost.most())}."]


def _tuning_plan(recipe: Recipe, store: Store, version: str) -> TrainingPlan:
    """Returns the plan of a recipe's fine-tuning, and its comparison with the one at `version`."""
    tuning = recipe.of(FinetuneConfig)
    if not tuning.active:
        raise RecipeError(f"the recipe {recipe.name} has no fine-tuning", "add the section [finetune]")
    name = f"{recipe.name}/finetuned"
    named = named_inputs(store, STAGES["finetune"], tuning, ArtifactId(name, version))
    base = named.get("base")
    if not isinstance(base, Artifact):
        raise InputError(f"[finetune] base: no version of {tuning.base} is complete", "train one, or name another")
    described = json.loads(base.read(model_file.FILE))
    seq_len, train = recipe.of(ExamplesConfig).seq_len, tuning.training(ModelConfig.model_validate(described["model"]))
    shape = ModelShape.of(train.model, described["vocab_size"])
    spec = tuning.tuning_spec(described["vocab_size"], described["eos_id"], seq_len)
    previous = newest(store, name, but=version)
    measured = RunPerformance.of(previous.record.metrics) if previous else None
    load = Workload(train, shape, seq_len, spec)
    planned = _estimate(recipe, load, measured, str(previous.address) if previous else "")
    return _with_omissions(recipe, store, version, planned, Artifact.find(store, ArtifactId(name, version)))


def _estimate(
    recipe: Recipe, load: Workload, measured: RunPerformance | None, address: str, *, elsewhere: bool = False
) -> RunEstimate:
    """Returns the estimate of a run at the place of a recipe.

    Args:
        recipe: the recipe.
        load: what is trained.
        measured: an earlier run.
        address: the artifact of the earlier run.
        elsewhere: whether the model will be trained elsewhere, of which the recipe's place says nothing. Refusals are
            then in the table, as they are if `[plan] gpus` are others than those of the place.
    """
    config, place = recipe.of(PlanConfig), recipe.place.train
    nodes = recipe.place.kubernetes.nodes if recipe.place.kubernetes else 1
    device = CPU if _lacks_gpu(recipe) and not elsewhere else None
    start = planned_start(config, load, place.layout, nodes, place.nproc, device)
    if not (elsewhere or config.gpus):
        start.check()
    return estimate(config, load, start, measured, address)


def _lacks_gpu(recipe: Recipe) -> bool:
    """Returns whether the plan assumes the GPUs of the place, and that is this machine, which has none."""
    config = recipe.of(PlanConfig)
    return recipe.place.train.where == "local" and config.gpu in PEAKS and not config.gpus and not has_gpu()


def _without_gpu(gpu: str) -> str:
    return (
        f"The recipe trains on this machine, which has no GPU: figures for {gpu} are left out. Set [plan] gpu = "
        '"CPU" with peak_flops and memory_gb, or gpus to plan for a machine that has them; the rate of a first run is '
        "used in the plan of the next version."
    )


def _comparison(
    recipe: Recipe, store: Store, version: str, planned: RunEstimate, run: Artifact
) -> tuple[list[ComparisonRow], str]:
    """Returns the rows, and why some of their figures are left out, or ""."""
    real = RunPerformance.of(run.record.metrics)
    if real is None:
        return [], ""
    # Only a training is estimated before it begins.
    is_training = run.address.name == f"{recipe.name}/checkpoint"
    if is_training and (artifact := Artifact.find(store, ArtifactId(f"{recipe.name}/estimate", version))):
        planned = json.loads(artifact.read("estimate.json"))
    wall, config = (run.record.finished - run.record.started).total_seconds(), recipe.of(PlanConfig)
    rows = comparison(planned, config, real, wall)
    if real.peak_flops or config.gpu not in PEAKS or planned["time"]["mfu_from"] != FROM_PLAN:
        return rows, ""
    return comparable_on_any_device(rows), (
        f"The run had no GPU of the table, so it is not compared with the rates and costs of {config.gpu}."
    )

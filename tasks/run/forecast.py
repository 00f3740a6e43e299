"""What would be: the funnel of a version under other limits, and the plan of a training.

`compare` reads the inputs and the record of the version's documents. The settings before the change are those in this
record, not those of the recipe, because a version may have been made with overrides. `plan` reads the recipe, the
records of its checkpoints, and where named a `config.json` of another model.
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
from tasks.run.lineage import artifact_of_version
from tasks.run.recipe import Recipe
from tasks.run.recipe_validation import all_kinds
from tasks.stages.consolidate.aligned_inputs import AlignedInputs
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.what_if import render, what_if
from tasks.stages.tokens import PackConfig, TokenizerConfig
from tasks.trainer.config import TrainConfig
from tasks.trainer.interchange.huggingface import read_shape
from tasks.trainer.model.shape import ModelShape
from tasks.trainer.parallel.fit import check_fit
from tasks.trainer.planning.config import PlanConfig
from tasks.trainer.planning.estimate import estimate
from tasks.trainer.planning.measured import RunPerformance
from tasks.trainer.planning.tables import comparison, comparison_text, plan_text


@dataclass(frozen=True)
class TrainingPlan:
    """The plan of a training, and how true it was where there is a run.

    Attributes:
        planned: as `estimate.json` has it (`tasks.trainer.planning.estimate`).
        compared: rows of planned and real values; [] where no run has ended.
    """

    planned: dict[str, Any]
    compared: list[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON has them."""
        return asdict(self)

    def text(self) -> str:
        """Returns the plan as text."""
        parts = [plan_text(self.planned), *([comparison_text(self.compared)] if self.compared else [])]
        return "\n".join(parts).rstrip()


def compare(
    store: Store,
    recipe: str,
    config: ConsolidateConfig,
    values: Mapping[str, Any],
    version: str,
    source_version: str = "",
    examples: int = 5,
) -> str:
    """Returns the comparison as text, headed by the settings before and after.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        config: the recipe's settings, for a version that has no documents yet.
        values: settings to change, by dotted paths without the section ("limits.gopher_quality.min_words").
        version: version of the documents, or of their inputs.
        source_version: version to read artifacts of that are missing at `version`; "" for none.
        examples: number of documents to show for each change of the verdict.

    Raises:
        RecipeError: a value is invalid, or the settings of the version are invalid for the current code.
        InputError: an input does not exist, or the settings read an attribute that was not measured.
    """
    aligned = inputs_at(store, recipe, version, source_version)
    documents = Artifact.find(store, ArtifactId(f"{recipe}/documents", version))
    if documents is None and source_version:
        documents = artifact_of_version(store, recipe, "documents", source_version)
    before, origin = config, "the recipe"
    if documents:
        before, origin = made_with(documents), str(documents.address)
    after = _changed(before, values)
    others = _differences(config, before, "in the recipe")
    return "\n".join(
        [
            f"before: the settings of {origin}{f': {others}' if others else ''}",
            f"after: the same with {_differences(before, after, 'before') or 'nothing changed'}",
            render(what_if(before, after, aligned, examples)),
        ]
    )


def made_with(documents: Artifact) -> ConsolidateConfig:
    """Returns the settings that documents were made with; raises RecipeError where the current code rejects them."""
    return parse(ConsolidateConfig, documents.record.config, f"the settings that {documents.address} was made with")


def _changed(config: ConsolidateConfig, values: Mapping[str, Any]) -> ConsolidateConfig:
    """Returns the settings with some replaced; sources that are judged by default are chosen again, as in a recipe.

    Not checked against the annotators of the recipe: a version may have been measured with an override.
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


def _differences(old: ConsolidateConfig, new: ConsolidateConfig, whose: str) -> str:
    """Returns the differences as text, without the limits of filters that were added or removed."""
    before, after = (config.model_dump(mode="json", exclude={"kinds"}) for config in (old, new))
    changed = changes(before, after, "")
    shown = [change for change in changed if not (_of_a_filter(change[0]) and None in change)]
    return ", ".join(f"{path} = {_plain(value)} ({whose} {_plain(previous)})" for path, previous, value in shown)


def _of_a_filter(path: str) -> bool:
    """Returns whether a dotted path is a general limit, and not one of a source or kind."""
    section, _, rest = path.partition(".")
    return section == "limits" and rest.partition(".")[0] in filter_names()


def _plain(value: Any) -> str:
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def inputs_at(store: Store, recipe: str, version: str, source_version: str = "") -> AlignedInputs:
    """Opens the inputs that `documents` of a version was made from or, if it does not exist, would be made from.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        version: version of `documents`.
        source_version: version to read inputs of that are missing at `version`; "": those in the records of `version`.

    Raises:
        InputError: an input does not exist.
    """
    made = Artifact.find(store, ArtifactId(f"{recipe}/documents", version))
    named = {ref.role: ArtifactId.parse(ref.address) for ref in made.record.inputs} if made else {}

    def opened(role: str) -> Artifact:
        own = named.get(role, ArtifactId(f"{recipe}/{role}", version))
        found = Artifact.find(store, own)
        if found is None and role not in named:
            found = artifact_of_version(store, recipe, role, source_version or version)
        if found is None:
            none_there = f", and {source_version} has none" if source_version and role not in named else ""
            raise InputError(
                f"no artifact {own} in {store.root}{none_there}",
                "run the stage that makes it, or name the version that has it (--source-version)",
            )
        return found

    inputs = opened("extracted"), opened("attributes"), opened("duplicates")

    def optional(role: str) -> Artifact | None:
        there = made is None and artifact_of_version(store, recipe, role, source_version or version)
        return opened(role) if role in named or there else None

    looked_for = optional(CONTAMINATION), optional(PARAGRAPHS)
    return AlignedInputs(*inputs, store, "", tuple(in_force(store, recipe)), *looked_for)


def plan(recipe: Recipe, store: Store, version: str, model: str = "") -> TrainingPlan:
    """Returns the plan, with the MFU of the newest other run, and the rows of the run at `version`.

    A version that was estimated before its run (`[plan] enabled`) is compared with that estimate.

    Args:
        recipe: the recipe; assumptions are those of its `[plan]`, enabled or not.
        store: store of its artifacts.
        version: of the run to compare with; nothing is compared where it has not ended, or with `model`.
        model: path of a `config.json` of Hugging Face, to plan the training of that model; "": the recipe's.

    Raises:
        RecipeError: the recipe trains nothing, or cannot be trained in the layout of its place.
        InputError: `model` cannot be read.
    """
    if "checkpoint" not in recipe.makes:
        raise RecipeError(f"the recipe {recipe.name} trains no model", "add the section [train]")
    train, layout, seq_len = recipe.of(TrainConfig), recipe.place.train.layout, recipe.of(PackConfig).seq_len
    shape = read_shape(Path(model)) if model else ModelShape.of(train.model, recipe.of(TokenizerConfig).vocab_size)
    if layout and not model:
        check_fit(layout, train, shape.vocab_size, seq_len, layout.ranks)
    nodes = recipe.place.kubernetes.nodes if recipe.place.kubernetes else 1
    name = f"{recipe.name}/checkpoint"
    before = newest(store, name, but=version)
    measured = RunPerformance.of(before.record.metrics) if before else None
    ranks = recipe.place.train.nproc * nodes
    address = str(before.address) if before else ""
    found = estimate(recipe.of(PlanConfig), train, shape, seq_len, layout, ranks, measured, address)
    run = None if model else Artifact.find(store, ArtifactId(name, version))
    return TrainingPlan(found, _compared(recipe, store, version, found, run) if run else [])


def _compared(recipe: Recipe, store: Store, version: str, found: dict[str, Any], run: Artifact) -> list[dict[str, Any]]:
    real = RunPerformance.of(run.record.metrics)
    if real is None:
        return []
    made = Artifact.find(store, ArtifactId(f"{recipe.name}/estimate", version))
    planned = json.loads(made.read("estimate.json")) if made else found
    wall = (run.record.finished - run.record.started).total_seconds()
    return comparison(planned, recipe.of(PlanConfig), real, wall)

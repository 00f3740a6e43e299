"""What-if of a version with some settings of `consolidate` changed, as text.

Reads the inputs and the record of the version's documents. The settings before the change are those in this record, not
those of the recipe, because a version may have been made with overrides.
"""

import json
from collections.abc import Mapping
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.config import assign, changes, parse
from tasks.core.errors import InputError, RecipeError
from tasks.core.store import Store
from tasks.filters.catalogue import known
from tasks.formats.documents.document import CONTAMINATION, PARAGRAPHS
from tasks.formats.documents.tombstones import in_force
from tasks.run.lineage import artifact_of_version
from tasks.run.recipe_validation import all_kinds
from tasks.stages.consolidate.aligned_inputs import AlignedInputs
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.what_if import render, what_if


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
    return section == "limits" and rest.partition(".")[0] in known()


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

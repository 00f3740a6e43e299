"""What-if as a person asks it: of a version, with some settings changed.

Reads the records of the version. The settings before are those that the version's documents were made with, whatever
the recipe says by now: versions are made with overrides.
"""

import json
from collections.abc import Mapping
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.config import assign, changes, parse
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.run.lineage import one_held
from tasks.stages.consolidate.aligned_inputs import AlignedInputs
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.what_if import render, what_if


def ask(
    store: Store,
    recipe: str,
    config: ConsolidateConfig,
    values: Mapping[str, Any],
    version: str,
    source_version: str = "",
    examples: int = 5,
) -> str:
    """Returns the answer as text, headed by what was compared.

    Args:
        store: where artifacts lie.
        recipe: name of the recipe.
        config: the recipe's settings, for a version that has no documents yet.
        values: settings to change, by dotted paths without the section ("limits.gopher_quality.min_words").
        version: whose documents, or inputs of documents, are asked.
        source_version: the version that holds what is missing at `version`; "" for none.
        examples: documents to show of each side.

    Raises:
        RecipeError: a value does not fit, or the settings of the version are none of today's.
        InputError: an input does not exist, or the settings read what was not measured.
    """
    aligned = inputs_at(store, recipe, version, source_version)
    documents = Artifact.find(store, ArtifactId(f"{recipe}/documents", version))
    if documents is None and source_version:
        documents = one_held(store, recipe, "documents", source_version)
    before, whose = config, "the recipe"
    if documents:
        before, whose = made_with(documents), str(documents.address)
    after = _changed(before, values)
    others = _differences(config, before, "in the recipe")
    return "\n".join(
        [
            f"before: the settings of {whose}{f': {others}' if others else ''}",
            f"after: the same with {_differences(before, after, 'before') or 'nothing changed'}",
            render(what_if(before, after, aligned, examples)),
        ]
    )


def made_with(documents: Artifact) -> ConsolidateConfig:
    """Returns the settings that documents were made with; raises RecipeError where they are none of today's."""
    return parse(ConsolidateConfig, documents.record.config, f"the settings that {documents.address} was made with")


def _changed(config: ConsolidateConfig, values: Mapping[str, Any]) -> ConsolidateConfig:
    """Returns the settings with some replaced.

    What they need is looked for among what was measured, not among what the recipe measures: a version may have been
    measured with an override.
    """
    settings: dict[str, Any] = config.model_dump(mode="json")
    assign(settings, values)
    return parse(ConsolidateConfig, settings, "override of [consolidate]")


def _differences(old: ConsolidateConfig, new: ConsolidateConfig, whose: str) -> str:
    """Returns in words what differs; the limits of filters that come or go are left to the list of filters."""
    found = changes(old.model_dump(mode="json"), new.model_dump(mode="json"), "")
    told = [one for one in found if not (one[0].startswith("limits.") and None in one)]
    return ", ".join(f"{path} = {_plain(now)} ({whose} {_plain(was)})" for path, was, now in told)


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def inputs_at(store: Store, recipe: str, version: str, source_version: str = "") -> AlignedInputs:
    """Opens the inputs that `documents` of a recipe at a version was made from or, before it is, would be.

    Args:
        store: where artifacts lie.
        recipe: name of the recipe.
        version: whose inputs to open.
        source_version: the version that holds what is missing at `version`; "": what was made at `version` tells.

    Raises:
        InputError: one of them does not exist.
    """
    made = Artifact.find(store, ArtifactId(f"{recipe}/documents", version))
    named = {ref.role: ArtifactId.parse(ref.address) for ref in made.record.inputs} if made else {}

    def opened(role: str) -> Artifact:
        own = named.get(role, ArtifactId(f"{recipe}/{role}", version))
        found = Artifact.find(store, own)
        if found is None and role not in named:
            found = one_held(store, recipe, role, source_version or version)
        if found is None:
            nor = f", nor does {source_version} hold one" if source_version and role not in named else ""
            raise InputError(
                f"no artifact {own} in {store.root}{nor}",
                "run the stage that makes it, or name the version that holds it (--source-version)",
            )
        return found

    return AlignedInputs(opened("extracted"), opened("attributes"), opened("duplicates"), store, "")

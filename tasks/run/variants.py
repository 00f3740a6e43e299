"""Variants of a version: the recipe with the settings of a canary arm, whose documents and tokens are made from it.

A variant has a version of its own, `<version>.<name>`, with `<version>` as its source version: results of stages whose
settings and inputs are the same are adopted from there.
"""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tasks.core.errors import InputError
from tasks.core.stage_spec import variant_version
from tasks.run.catalogue import MAKERS, PARTS, STAGES
from tasks.run.recipe import Recipe

if TYPE_CHECKING:
    from tasks.core.artifact import Artifact
    from tasks.core.store import Store

VARIANTS = "variants"
DAGS = tuple(dag for dag, asset in PARTS.items() if asset in ("documents", "tokens"))
"""DAGs whose stages can run for a variant."""
_MADE = ("documents", "tokenizer", "shards", "plan")
"""Kinds that a canary run reads of its variant."""


def stages_of_variants(recipe: Recipe) -> tuple[str, ...]:
    """Returns the stages that run for every variant, in order: those that its tokens are made with."""
    needed: set[str] = set()
    front = [MAKERS[kind] for kind in _MADE]
    while front:
        stage = front.pop()
        if stage.name in needed or stage.dag not in DAGS or not recipe.has(stage):
            continue
        needed.add(stage.name)
        front += [MAKERS[kind] for kind in stage.input_kinds()]
        front += [other for other in STAGES.values() if stage.name in other.before]
    return tuple(name for name in STAGES if name in needed)


def variant_of(recipe: Recipe, store: "Store", version: str, name: str) -> tuple[Recipe, str]:
    """Returns the recipe and the version of a variant.

    Raises:
        InputError: the stage `variants` has not run for the version, or has no variant of this name.
        RecipeError: its settings cannot be used with this recipe.
    """
    # Imported here, because DAG files import this module and must not import pyarrow.
    from tasks.core.artifact import Artifact, ArtifactId

    address = ArtifactId(f"{recipe.name}/{VARIANTS}", version)
    artifact = Artifact.find(store, address)
    if artifact is None:
        raise InputError(f"{address} is not in {store.root}", f"run the stage {VARIANTS} first")
    rows = {row["name"]: row["set"] for row in json.loads(artifact.read(f"{VARIANTS}.json"))["variants"]}
    if name not in rows:
        raise InputError(f'{address} has no variant "{name}"', f"it has {', '.join(rows)}")
    return recipe.variant(rows[name]), variant_version(version, name)


def bases(artifacts: Iterable["Artifact"]) -> dict[str, str]:
    """Returns, for the version of each variant, the version that it is a variant of; from a recipe's artifacts."""
    made = (artifact for artifact in artifacts if artifact.address.name.endswith(f"/{VARIANTS}"))
    return {
        variant_version(artifact.address.version, name): artifact.address.version
        for artifact in made
        for name in artifact.record.members
    }

"""Participation of nodes other than 0 in a stage that several nodes run.

Reads the same inputs as the runner, so that every node takes the same decisions; writes nothing. A stage that can use
more than one node has a function `join(config, inputs)`.
"""

import logging

from tasks.core.artifact import Artifact
from tasks.run.adoption import adoptable, made_at_source_version
from tasks.run.input_resolution import check_drift, resolve
from tasks.run.recipe import Recipe
from tasks.run.runner import open_store, training_environment

log = logging.getLogger("sluice.join_node")


def join_stage(
    recipe: Recipe, stage: str, *, version: str = "", source_version: str | None = None, member: str = ""
) -> None:
    """Joins node 0 in `stage` of `recipe`, with the same arguments as `run_stage`; returns when the stage has ended.

    Raises:
        SluiceError: as on node 0.
    """
    store = open_store(recipe)
    resolved = resolve(recipe, store, stage, version or recipe.version, source_version, member)
    if existing := Artifact.find(store, resolved.address):
        check_drift(existing, resolved)
        log.info("[%s] unchanged: there is nothing to join", resolved.address)
    elif adoptable(store, resolved, made_at_source_version(store, recipe, resolved, source_version)):
        # Also where this node comes first: node 0 adopts and never meets the others.
        log.info("[%s] adopted from version %s: there is nothing to join", resolved.address, source_version)
    elif hasattr(resolved.module, "join"):
        log.info("[%s] joining %s, fingerprint %s", resolved.address, stage, resolved.fingerprint[:16])
        with training_environment(recipe.place.train):
            resolved.module.join(resolved.config, resolved.inputs)
    else:
        log.info("[%s] the stage %s runs on node 0 alone", resolved.address, stage)

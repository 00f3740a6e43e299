"""What the nodes other than 0 do where several run one stage: lend a hand and write nothing.

Reads what the runner reads, so that every node decides alike; a stage that can use more than one node offers
`join(config, inputs)`.
"""

import logging

from tasks.core.artifact import Artifact
from tasks.run.adoption import adoptable, made_at_source_version
from tasks.run.input_resolution import check_drift, resolve
from tasks.run.recipe import Recipe
from tasks.run.runner import open_store

log = logging.getLogger("sluice.join_node")


def join_stage(
    recipe: Recipe, stage: str, *, version: str = "", source_version: str | None = None, member: str = ""
) -> None:
    """Helps node 0 with `stage` of `recipe`, with the same arguments as `run_stage`; returns when it is done.

    Raises:
        SluiceError: as on node 0.
    """
    store = open_store(recipe)
    resolved = resolve(recipe, store, stage, version or recipe.version, source_version, member)
    if existing := Artifact.find(store, resolved.address):
        check_drift(existing, resolved)
        log.info("[%s] unchanged: there is nothing to help with", resolved.address)
    elif adoptable(store, resolved, made_at_source_version(store, recipe, resolved, source_version)):
        # Also where this node comes first: node 0 adopts and never meets the others.
        log.info("[%s] adopted from version %s: there is nothing to help with", resolved.address, source_version)
    elif hasattr(resolved.module, "join"):
        log.info("[%s] helping with %s, fingerprint %s", resolved.address, stage, resolved.fingerprint[:16])
        resolved.module.join(resolved.config, resolved.inputs)
    else:
        log.info("[%s] the stage %s runs on one node: node 0 does it alone", resolved.address, stage)

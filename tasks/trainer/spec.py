"""Builds the specification of a training run: weights of the sources, where the shards are, the plan as local files.

Reads the records of the artifacts `shards` and `plan` and, where there is one, `mixture`; fills a folder with links to
the plan's files. Shards are not fetched: ranks read the ranges that they need.
"""

import json
import shutil
from pathlib import Path

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.core.stage import Inputs
from tasks.formats.tokens.mixture import Mixture, resolved
from tasks.formats.tokens.plan import Plan
from tasks.trainer.config import ShardsSpec, TrainConfig, TrainSpec


def make_spec(config: TrainConfig, inputs: Inputs, scratch: Path) -> TrainSpec:
    """Returns the specification of the run; raises InputError if the plan was packed from other shards."""
    shards = inputs["shards"]
    if any(ref.content != shards.record.content for ref in inputs["plan"].record.inputs if ref.role == "shards"):
        raise InputError(
            f"{inputs['plan'].address} was packed from other shards than {shards.address}", "run the stage pack again"
        )
    return TrainSpec(
        run=config,
        weights=_weights(config, inputs),
        shards=ShardsSpec(store=shards.store.root, artifact=str(shards.address), content=shards.record.content),
        plan=str(_local(inputs["plan"], scratch / "input" / "plan")),
        out=str(scratch),
    )


def _weights(config: TrainConfig, inputs: Inputs) -> dict[str, float]:
    """Returns the weights of the canaries, of the recipe, or by number of sequences; raises RecipeError."""
    if mixture := inputs.get("mixture"):
        weights: dict[str, float] = json.loads(mixture.read("mixture.json"))["weights"]
        return weights
    plan = Plan.open(inputs["plan"])
    sequences = {source: plan.sequences[source] for source in plan.sources}
    if not config.mixture:
        return resolved(sequences)
    Mixture(weights=config.mixture).over(sequences, "[train] mixture, among the sources with a whole sequence")
    return resolved({source: config.mixture.get(source, 0.0) for source in sequences})


def _local(artifact: Artifact, folder: Path) -> Path:
    """Fills `folder` with links to the artifact's files, by their own names, and returns it.

    A file that was fetched from a remote store has another name.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in artifact.files():
        (folder / Path(file).name).symlink_to(artifact.local(file))
    return folder

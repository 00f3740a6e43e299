"""Builds the specification of a training run: weights of the sources, and every input as a local file.

Reads the artifacts `shards`, `plan` and, where there is one, `mixture`; fills a folder with links to their files.
"""

import json
import shutil
from pathlib import Path

from tasks.core.artifact import Artifact
from tasks.core.stage import Inputs
from tasks.formats.tokens.mixture import Anneal
from tasks.formats.tokens.plan import Plan
from tasks.trainer.config import TrainConfig, TrainSpec
from tasks.trainer.mixing import mix


def make_spec(config: TrainConfig, inputs: Inputs, scratch: Path) -> TrainSpec:
    """Returns the specification of the run, with every file it needs on the local disk; raises RecipeError (`mix`)."""
    weights, anneal = _mixture(config, inputs)
    return TrainSpec(
        run=config,
        weights=weights,
        anneal=anneal,
        shards=tuple(sorted(map(str, _local(inputs["shards"], "shards/", scratch / "input" / "shards").iterdir()))),
        plan=str(_local(inputs["plan"], "", scratch / "input" / "plan")),
        out=str(scratch),
    )


def _mixture(config: TrainConfig, inputs: Inputs) -> tuple[dict[str, float], Anneal | None]:
    """Returns the weights of both stages: of the canaries, of the recipe, or by number of sequences."""
    decided = json.loads(inputs["mixture"].read("mixture.json"))["weights"] if "mixture" in inputs else None
    plan = Plan.open(inputs["plan"])
    return mix(config, {source: plan.sequences[source] for source in plan.sources}, decided)


def _local(artifact: Artifact, prefix: str, folder: Path) -> Path:
    """Fills `folder` with links to the artifact's files under `prefix`, by their own names, and returns it.

    A file that was fetched from a remote store has another name, and a shard is named by its file.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in artifact.files(prefix):
        (folder / Path(file).name).symlink_to(artifact.local(file))
    return folder

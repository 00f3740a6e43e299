"""Builds the specification of a training run: weights of the sources, where the shards are, the plan as local files.

Reads the records of the artifacts `shards` and `plan` and, where there are such, `mixture` and `initial`; fills a
folder with links to the plan's files, and with the held-out documents that the run is to measure. Shards of training
text are not fetched: ranks read the ranges that they need.
"""

import json
import shutil
from pathlib import Path

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.core.stage import Inputs
from tasks.formats.tokens import origin
from tasks.formats.tokens.mixture import Anneal
from tasks.formats.tokens.plan import FOLDER, Plan
from tasks.formats.tokens.shard_set import ShardSet
from tasks.trainer.config import ShardsSpec, TrainConfig, TrainSpec
from tasks.trainer.data import heldout
from tasks.trainer.mixing import mix
from tasks.trainer.model.initial import initial_weights
from tasks.trainer.place import CHECK_EVERY, Layout


def make_spec(
    config: TrainConfig,
    inputs: Inputs,
    scratch: Path,
    layout: Layout | None = None,
    check_every: int = CHECK_EVERY,
    keep_every: int = 0,
) -> TrainSpec:
    """Returns the specification of the run.

    Raises:
        InputError: the plan was packed from other shards, the initial weights are of another model or tokenizer, or
            nothing is held out that could be measured.
        RecipeError: the mixture cannot be had (`mix`).
    """
    shards = inputs["shards"]
    if any(ref.content != shards.record.content for ref in inputs["plan"].record.inputs if ref.role == "shards"):
        raise InputError(
            f"{inputs['plan'].address} was packed from other shards than {shards.address}", "run the stage pack again"
        )
    plan = Plan.open(inputs["plan"])
    initial = initial_weights(config, plan.format, inputs[origin.ROLE]) if origin.ROLE in inputs else None
    weights, anneal = _mixture(config, plan, inputs)
    heldout_file = ""
    if config.heldout:
        heldout_file = str(scratch / "input" / "heldout.json")
        heldout.write(Path(heldout_file), heldout.of_sources(ShardSet.open(shards), config.heldout.max_tokens))
    return TrainSpec(
        run=config,
        weights=weights,
        anneal=anneal,
        initial=initial,
        shards=ShardsSpec(store=shards.store.root, artifact=str(shards.address), content=shards.record.content),
        heldout=heldout_file,
        plan=str(_local(inputs["plan"], scratch / "input" / "plan")),
        out=str(scratch),
        layout=layout,
        check_every=check_every,
        keep_every=keep_every,
    )


def _mixture(config: TrainConfig, plan: Plan, inputs: Inputs) -> tuple[dict[str, float], Anneal | None]:
    """Returns the weights of both stages: of the canaries, of the recipe, or by number of sequences."""
    decided = json.loads(inputs["mixture"].read("mixture.json"))["weights"] if "mixture" in inputs else None
    return mix(config, {source: plan.sequences[source] for source in plan.sources}, decided)


def _local(artifact: Artifact, folder: Path) -> Path:
    """Fills `folder` with links to the files of a plan, by their own names, and returns it.

    A file that was fetched from a remote store has another name.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in artifact.files(f"{FOLDER}/"):
        (folder / Path(file).name).symlink_to(artifact.local(file))
    return folder

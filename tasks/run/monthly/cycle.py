"""One month of a recipe in this process: the stages of all its DAGs in order, at one version, then the report.

The DAG `<recipe>.cycle` does the same with DAG runs. A month that was killed or has failed continues where it ended,
because finished stages are skipped. It ends early, without an error, if the crawl has nothing due, if nothing is left
that no earlier month has published, if there are too few new tokens for a training (`[cycle] min_new_tokens`), or if
the decision on the mixture was not approved.
"""

import logging
from collections.abc import Iterator

from tasks.core.artifact import Artifact
from tasks.core.errors import NothingNewError, RecipeError
from tasks.core.ledger import newest_first
from tasks.core.store import Store
from tasks.formats.tokens.origins import accumulates
from tasks.formats.tokens.shard import TRAIN
from tasks.run.catalogue import STAGES
from tasks.run.lineage import artifact_of_version, chain_of
from tasks.run.monthly.config import GATED
from tasks.run.recipe import Recipe
from tasks.run.result import StageResult
from tasks.run.runner import open_store, run_stage
from tasks.run.tracking import SHELL, TrackingContext, server_of
from tasks.stages.canary import CanaryConfig
from tasks.stages.crawl.config import CrawlConfig

log = logging.getLogger("sluice.cycle")


NOTHING_NEW = "there was nothing new: no page or file that no earlier month has published"


def run_month(recipe: Recipe, version: str) -> tuple[list[StageResult], str]:
    """Runs all stages of a month that its version does not have yet.

    Args:
        recipe: the recipe.
        version: version of everything that the month makes.

    Returns:
        the results of the stages, and why the month ended early, or "".

    Raises:
        RecipeError: a person must approve decisions of this recipe, which is possible in Airflow only.
        SluiceError: a stage failed.
    """
    if recipe.place.ask_human:
        cause = f"[place] ask_human: decisions of {recipe.name} must be approved in Airflow"
        raise RecipeError(cause, f"trigger {recipe.name}.cycle, or set ask_human = false")
    results: list[StageResult] = []
    for dag in recipe.parts:
        try:
            for result in _run_dag(recipe, dag, version):
                results.append(result)
        except NothingNewError as error:
            return results, str(error)
        if dag == "crawl" and not results[-1].rows["out"]:
            return results, NOTHING_NEW
        if dag == GATED and (reason := too_few(open_store(recipe), recipe, version)):
            return results, reason
    return results, ""


def _run_dag(recipe: Recipe, dag: str, version: str) -> Iterator[StageResult]:
    """Runs the stages of a DAG in order, each mapped one for all its members; yields their results."""
    tracking = TrackingContext(server_of(recipe.place), recipe.name, f"{SHELL}/{version}")

    def one(stage: str, member: str = "") -> StageResult:
        return run_stage(recipe, stage, version=version, member=member, on_dask=True, tracking=tracking)

    for stage in recipe.stages(dag):
        if stage == "arms":
            for number in range(1, recipe.of(CanaryConfig).rounds + 1):
                yield (arms := one(stage, f"round-{number}"))
                yield from (one("canary", member) for member in arms.members)
        elif stage == "finalist":
            yield (finalist := one(stage))
            yield from (one("confirm", member) for member in finalist.members)
        elif dag == "crawl" and STAGES[stage].mapped:
            yield from (one(stage, f"p{partition}") for partition in range(recipe.of(CrawlConfig).partitions))
        elif not STAGES[stage].mapped:
            yield one(stage)


def too_few(store: Store, recipe: Recipe, version: str) -> str:
    """Returns why a version has too few new tokens for a training; "" if it has enough.

    Raises:
        InputError: the version has no tokens.
    """
    least = recipe.cycle.min_new_tokens if recipe.cycle else 0
    if not least:
        return ""
    new, _, before = new_tokens(store, recipe.name, version)
    if new >= least:
        return ""
    since = f"since {before}" if before else "in all"
    return f"{new:,} new training tokens {since}, of {least:,} that a training needs ([cycle] min_new_tokens)"


def new_tokens(store: Store, recipe: str, version: str) -> tuple[int, int, str]:
    """Returns the training tokens that no earlier model has read, all training tokens, and the version of that model.

    Counted in the parts of accumulated shards, with those that a later version of their page has superseded. Of shards
    that do not accumulate all are new.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        version: the version; models that were trained after its shards were made are not earlier ones.
    """
    shards = artifact_of_version(store, recipe, "shards", version)
    if shards is None:
        return 0, 0, ""
    sizes = training_tokens(shards)
    # A month that is run again after later ones counts as it did then.
    models = newest_first(store, f"{recipe}/checkpoint")
    model = next((one for one in models if one.record.finished <= shards.record.finished), None)
    read = chain_of(model).get("shards") if model else None
    known = training_tokens(read).keys() if read and accumulates(shards) else ()
    new = sum(size for part, size in sizes.items() if part not in known)
    return new, sum(sizes.values()), model.address.version if model else ""


def training_tokens(shards: Artifact) -> dict[str, int]:
    """Returns the training tokens of each part of shards."""
    suffix = f"/{TRAIN}"
    return {
        part.name: int(
            sum(value for name, value in part.metrics.items() if name.startswith("tokens/") and name.endswith(suffix))
        )
        for part in shards.parts
    }

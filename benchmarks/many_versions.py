"""A recipe of many versions for the benchmark of pages: a copy of one run, whose artifacts all other versions adopt.

The run is one of the recipe `smoke`, from seeds to a scored model, about fifty artifacts, made by

    SLUICE_HOME=FOLDER python -m tasks.demo run --recipe smoke

whose store is then FOLDER/store. Every other version has all of its artifacts. Not a benchmark.
"""

import shutil
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

from benchmarks.harness import ROOT
from tasks.core.artifact import RECORD, Artifact, ArtifactId
from tasks.core.commit import adopt
from tasks.core.store import Store
from tasks.core.version_index import VersionIndex, find_readable
from tasks.run.monthly.report import month_report
from tasks.run.recipe import Recipe
from tasks.run.runner import run_stage
from tasks.run.tracking import TrackingContext

NAME = "smoke"
RUN = "dev"
"""Version of the run."""

TAKEDOWNS = MONTHS = 3


def version_of(number: int) -> str:
    """Returns the name of a version that adopts."""
    return f"v{number:04d}"


def make(run: Path, folder: Path, versions: int) -> None:
    """Makes `folder`/store with a recipe in `folder`/recipes, unless it is there already.

    Args:
        run: store of a run.
        folder: where to make them; its environment variable SLUICE_STORE names the store.
        versions: number of versions, takedowns included.
    """
    recipe = _write_recipe(folder / "recipes")
    store, last = Store(str(folder / "store")), versions - TAKEDOWNS - 1
    if find_readable(store, ArtifactId(f"{NAME}/month", version_of(last))):
        return
    for record in (run / NAME).rglob(RECORD):
        if record.parent.name == RUN:
            shutil.copytree(record.parent, folder / "store" / record.parent.relative_to(run), dirs_exist_ok=True)
    made = VersionIndex(store, NAME).artifacts(RUN)
    with ThreadPoolExecutor(4) as pool:
        for number in range(1, last + 1):
            if not find_readable(store, ArtifactId(made[-1].address.name, version_of(number))):
                list(pool.map(_adopt, made, repeat(version_of(number))))
    documents = Artifact.open_at(store, ArtifactId(f"{NAME}/documents", RUN))
    urls = [url for path in documents.files("kept/") for url in documents.table(path, ["url"])["url"].to_pylist()]
    for number, url in enumerate(urls[:TAKEDOWNS], 1):
        if find_readable(store, ArtifactId(f"{NAME}/takedown", f"t{number}")):
            continue
        asked = {"takedown.urls": url, "takedown.reason": "asked for"}
        tracking = TrackingContext("", NAME)
        run_stage(recipe.override(asked), "takedown", version=f"t{number}", tracking=tracking)
    for number in range(last - MONTHS + 1, last + 1):
        month_report(store, recipe, version_of(number))


def _write_recipe(folder: Path) -> Recipe:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("demo.toml", f"{NAME}.toml"):
        shutil.copy(ROOT / "dags" / "recipes" / name, folder / name)
    return Recipe.load(folder / f"{NAME}.toml")


def _adopt(made: Artifact, version: str) -> None:
    """Enters an artifact of the run at another version, with inputs of that version."""
    suffix = f"@{RUN}"
    refs = [
        ref.model_copy(update={"address": ref.address.replace(suffix, f"@{version}")}) for ref in made.record.inputs
    ]
    adopt(made, ArtifactId(made.address.name, version), refs)

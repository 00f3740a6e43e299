"""Building blocks of DAG files: recipes, the Assets between their DAGs, and the dependencies within one.

Reads `dags/recipes/*.toml`, or the folder in $SLUICE_RECIPES. A valid recipe has a DAG for each of its parts and
operations; an invalid one has an import error of its own.

There is one Asset per recipe and kind of artifact that another DAG waits for. An event's `extra` contains {address,
fingerprint, content, version, source_version, overrides}: enough for the consumer to find and check the artifact.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from airflow.sdk import Asset, BaseOperator, get_parsing_context

from tasks.core import extensions
from tasks.core.errors import RecipeError
from tasks.run.catalogue import ASSETS, MAKERS, STAGES, upstream
from tasks.run.recipe import Recipe, recipe_files

STREAMS = "streams"
"""The asset of a recipe's Kafka topics, which no DAG makes."""
CHUNKS = "chunks"
"""The asset of chunks, for which a recipe with a lake has a task: no other DAG reads chunks."""

STATES: Mapping[str, str] = {"publish": "warc", "stream": STREAMS, "promote": "checkpoint"}
"""By stage, the asset whose state in Airflow shows what is in force after it (`operators.results.mirror`)."""


class RecipeOperator(BaseOperator):  # type: ignore[misc]
    """An operator of a recipe, whose name is on the task's page.

    Args:
        recipe: name of the recipe.
    """

    template_fields: ClassVar[Sequence[str]] = ("recipe",)

    def __init__(self, *, recipe: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.recipe = recipe


class _Known(NamedTuple):
    """A valid recipe, and the bytes of the files that it was read from."""

    texts: tuple[tuple[Path, bytes], ...]
    recipe: Recipe

    def is_current(self) -> bool:
        """Returns whether the files have these bytes."""
        try:
            return all(path.read_bytes() == text for path, text in self.texts)
        except OSError:
            return False


_known: dict[Path, _Known] = {}


def remember_recipes() -> None:
    """Reads all recipes, so that no process forked from this one checks those again whose files have the same bytes.

    The dag-processor, which parses each DAG file in a fork, calls it when it starts (`plugins/sluice_plugin.py`). With
    an extension nothing is remembered, because it may be upgraded while the dag-processor runs.
    """
    for path in recipe_files() if extensions.packages() == extensions.NONE else ():
        with suppress(RecipeError, OSError, ValueError, RecursionError):  # whoever parses the DAG files reports it
            base = tomllib.loads(path.read_text(encoding="utf-8")).get("extends")
            files = (path, path.parent / str(base)) if base else (path,)
            known = _Known(tuple((file, file.read_bytes()) for file in files), Recipe.load(path))
            if known.is_current():
                _known[path] = known
    extensions.extensions_in.cache_clear()  # an extension may be installed later


def _load(path: Path) -> Recipe:
    known = _known.get(path)
    return known.recipe if known and known.is_current() else Recipe.load(path)


def recipes_for(dag: str) -> Iterator[Recipe]:
    """Yields the valid recipes whose DAG `<recipe>.<dag>` may be needed: all; in a task process only the task's own.

    Invalid recipes are skipped, so that they do not remove the DAGs of the others; `read_recipes` reports them.
    """
    dag_id = get_parsing_context().dag_id
    for path in recipe_files():
        if dag_id is None or dag_id == f"{path.stem}.{dag}":
            with suppress(RecipeError):
                yield _load(path)


def read_recipes() -> tuple[list[Recipe], list[str]]:
    """Returns all valid recipes, and a line for each error in the others: file, field, cause and remedy."""
    recipes, lines = [], []
    for path in recipe_files():
        try:
            recipes.append(_load(path))
        except RecipeError as error:
            lines += str(error).splitlines()
    return recipes, lines


def asset(recipe: str, kind: str) -> Asset:
    """Returns the asset `<recipe>/<kind>`.

    The scheme begins with "x-", which Airflow reserves for users: for any other scheme it searches all providers for a
    handler (0.16 CPU-seconds in each task process), and a provider package may claim the scheme.
    """
    if kind not in (*ASSETS, STREAMS, CHUNKS):
        raise ValueError(f'no asset kind "{kind}"; the kinds are {", ".join(ASSETS)}')
    return Asset(name=f"{recipe}/{kind}", uri=f"x-sluice://{recipe}/{kind}", group="sluice")


def assets_of(recipe: Recipe, stage: str) -> dict[str, list[Asset]]:
    """Returns the arguments `inlets` and `outlets` of a stage's task, for Airflow's graph of assets.

    An inlet is an asset of another DAG whose artifact the stage reads, or an asset whose state it writes; an outlet is
    the asset that it completes.
    """
    spec = STAGES[stage]
    makers = [MAKERS[kind] for kind in spec.input_kinds()]
    made = [asset(recipe.name, spec.asset)] if spec.asset else []
    if spec.output == CHUNKS and recipe.place.lake:
        made.append(asset(recipe.name, CHUNKS))
    read = [maker.asset for maker in makers if maker.asset and maker.dag != spec.dag and recipe.has(maker)]
    if (state := STATES.get(stage, spec.asset)) != spec.asset:
        read.append(state)
    return {"inlets": [asset(recipe.name, kind) for kind in read], "outlets": made}


def connect(tasks: Mapping[str, Any]) -> None:
    """Makes every task depend on the tasks of the stages whose output its stage reads.

    Args:
        tasks: stage -> its task, for the stages of one DAG.
    """
    for stage, task in tasks.items():
        for before in upstream(stage, among=tasks):
            tasks[before] >> task

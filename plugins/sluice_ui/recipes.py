"""The pages of all recipes, and of one recipe's versions.

Reads the index of the store and the records of the versions that are shown.
"""

import json
from collections.abc import Mapping, Sequence

from fastapi.responses import HTMLResponse
from markupsafe import Markup

from sluice_ui.access import At, User, readable_recipes, respond, router
from sluice_ui.frame import ROOT, Address, Version, badge, link, moment, page, page_of, sparkline
from sluice_ui.scheduling import Schedule, schedules
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError, SluiceError
from tasks.core.store import Store
from tasks.core.version_index import VersionIndex
from tasks.run.recipe import Recipe
from tasks.run.runner import open_store
from tasks.stages.registry.promote import CHAMPION, DECISION

LINE = 12
"""Newest versions in the small line of a recipe."""

PER_PAGE = 25
"""Versions on one page of a recipe."""

FIGURES: Mapping[str, tuple[str, str]] = {
    "#documents": ("documents", "kept"),
    "#tokens": ("shards", "tokens"),
    "#loss": ("checkpoint", "loss"),
    "#bits per byte": ("scores", "bpb"),
}
"""Columns: kind of the artifact and its metric."""


def recipes(readable: Sequence[Recipe], at: Address) -> str:
    """Returns the page of all recipes: runs, figures and disk of the newest version, and kept documents over time.

    A recipe whose store cannot be read is a row with its runs, and its error is above the table.
    """
    rows: list[list[object]] = []
    problems: list[tuple[str, str]] = []
    planned = schedules([recipe.name for recipe in readable])
    for recipe in readable:
        runs = planned[recipe.name]
        name = link(recipe.name, f"{ROOT}/recipe/{recipe.name}")
        times = [recipe.schedule or "manual", _due(runs), runs.newest]
        try:
            version, *figures = _newest_version(recipe)
        except SluiceError as error:
            problems.append((recipe.name, str(error)))
            version, figures = badge("store not readable", "bad"), [None] * (len(FIGURES) + 4)
        rows.append([name, version, *times, *figures])
    head = [
        "recipe",
        "newest version",
        "schedule",
        "next run",
        "newest run",
        "last stage",
        *FIGURES,
        "champion",
        "#disk, MB",
        f"documents, {LINE} versions",
    ]
    return page("rows", "Recipes", at, name="recipes", head=head, rows=rows, problems=problems)


def _newest_version(recipe: Recipe) -> list[object]:
    """Returns a link to the newest version of a recipe, and its cells from the last stage on."""
    store = open_store(recipe)
    index = VersionIndex(store, recipe.name)
    versions = index.versions()
    if not versions:
        return ["no artifacts yet", *[None] * (len(FIGURES) + 4)]
    artifacts = index.artifacts(versions[0])
    newest = artifacts[-1].record if artifacts else None
    kept = [_metric(store, recipe.name, version, *FIGURES["#documents"]) for version in versions[:LINE]]
    return [
        _version_link(recipe.name, versions[0]),
        Markup("{} {}").format(newest.stage, moment(newest.finished)) if newest else None,
        *(_metric(store, recipe.name, versions[0], *source) for source in FIGURES.values()),
        _champion(store, recipe.name, versions[:LINE]),
        round(sum(a.record.bytes for a in artifacts if not a.record.adopted_from) / 1e6, 1),
        sparkline([float(value) for value in reversed(kept) if value is not None]),
    ]


def _due(runs: Schedule) -> Markup | str:
    """Returns the time of the next scheduled run, or which DAGs are paused; "" without a schedule."""
    if runs.due:
        return moment(runs.due)
    return f"paused: {', '.join(name.partition('.')[2] for name in runs.paused)}" if runs.paused else ""


def versions(recipe: Recipe, at: Address) -> str:
    """Returns the page of a recipe's versions, newest first; raises InputError if it has none."""
    store = open_store(recipe)
    index = VersionIndex(store, recipe.name)
    known = index.versions()
    # Only the versions on the page are read, so they are in the order of their begin and not sorted by figures.
    number, pages = page_of(at, len(known), PER_PAGE)
    rows: list[list[object]] = []
    for version in known[(number - 1) * PER_PAGE : number * PER_PAGE]:
        artifacts = index.artifacts(version)
        made = [artifact.record for artifact in artifacts if not artifact.record.adopted_from]
        finished = moment(artifacts[-1].record.finished) if artifacts else None
        figures = [_metric(store, recipe.name, version, *source) for source in FIGURES.values()]
        rows.append(
            [_version_link(recipe.name, version), finished, *figures, len(made), len(artifacts) - len(made),
             round(sum(record.bytes for record in made) / 1e6, 1)]
        )  # fmt: skip
    head = ["version", "last stage", *(title for title in FIGURES), "#made", "#adopted", "#disk, MB"]
    links = {step: at.href(page=str(number + step)) for step in (-1, 1) if 1 <= number + step <= pages}
    of = Version(recipe.name, "", "versions", "crawl" in recipe.parts)
    return page("versions", recipe.name, at, of, head=head, rows=rows, links=links,
                number=number, pages=pages, count=len(known))  # fmt: skip


def _metric(store: Store, recipe: str, version: str, kind: str, metric: str) -> float | int | None:
    """Returns a metric of an artifact, as an integer where it is one; None without it."""
    try:
        artifact = Artifact.find(store, ArtifactId(f"{recipe}/{kind}", version))
    except InputError:
        return None
    value = artifact.record.metrics.get(metric) if artifact else None
    return int(value) if value is not None and float(value).is_integer() and metric not in ("loss", "bpb") else value


def _champion(store: Store, recipe: str, newest: Sequence[str]) -> Markup | None:
    """Returns a link to the version that the newest decision made or left champion; None without one among these."""
    for version in newest:
        if decision := Artifact.find(store, ArtifactId(f"{recipe}/champion", version)):
            champion = ArtifactId.parse(json.loads(decision.read(DECISION))[CHAMPION]["artifact"])
            return _version_link(recipe, champion.version)
    return None


def _version_link(recipe: str, version: str) -> Markup:
    return link(version, f"{ROOT}/recipe/{recipe}", version=version)


routes = router()


@routes.get("/")
def recipes_page(user: User, at: At) -> HTMLResponse:
    """All recipes that the user may see."""
    return respond(lambda: recipes(readable_recipes(user), at))

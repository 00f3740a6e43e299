"""The pages of all recipes, and of one recipe's versions.

Reads the index of the store and the records of the versions that are shown.
"""

import json
from collections.abc import Mapping, Sequence

from fastapi.responses import HTMLResponse
from markupsafe import Markup

from sluice_ui.access import At, User, readable_recipes, respond, router
from sluice_ui.costs import Cost
from sluice_ui.frame import ROOT, Address, Version, badge, link, moment, page, page_of, sparkline
from sluice_ui.scheduling import Schedule, schedules
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError, SluiceError
from tasks.core.pages import to_markup
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
    "#kept share": ("documents", "kept_share"),
    "#tokens": ("shards", "tokens"),
    "#loss": ("checkpoint", "loss"),
    "#bits per byte": ("scores", "bpb"),
}
"""Columns: kind of the artifact and its metric."""

COUNTS = ("kept", "tokens")
"""Metrics of FIGURES that are whole numbers."""


def recipes(readable: Sequence[Recipe], at: Address) -> str:
    """Returns the page of all recipes: runs, figures, cost and disk of the newest version, and documents over time.

    A figure that the newest version does not have is that of the newest of LINE versions that has it, with its name.
    A recipe whose store cannot be read is a row with its runs, and its error is above the table.
    """
    rows: list[list[object]] = []
    problems: list[tuple[str, str]] = []
    planned = schedules([recipe.name for recipe in readable])
    for recipe in readable:
        runs = planned[recipe.name]
        name = link(recipe.name, f"{ROOT}/recipe/{recipe.name}")
        try:
            version, *figures = _newest_version(recipe)
        except SluiceError as error:
            problems.append((recipe.name, str(error)))
            version, figures = badge("store not readable", "bad"), [None] * (len(FIGURES) + 5)
        rows.append([name, version, runs.newest, _next(recipe, runs), *figures])
    head = [
        "recipe", "newest version", "newest run", "next run", *FIGURES, "champion", "#price", "#stage minutes",
        "#disk, MB", f"documents, {LINE} versions",
    ]  # fmt: skip
    return page("rows", "Recipes", at, name="recipes", head=head, rows=rows, problems=problems)


def _newest_version(recipe: Recipe) -> list[object]:
    """Returns a link to the newest version of a recipe with its last stage, and its cells from the documents on."""
    store = open_store(recipe)
    index = VersionIndex(store, recipe.name)
    versions = index.versions()[:LINE]
    if not versions:
        return [Markup('<span class="quiet">no artifacts yet</span>'), *[None] * (len(FIGURES) + 5)]
    artifacts = index.artifacts(versions[0])
    cost = Cost.of(artifacts, recipe.name)
    kept = [_metric(store, recipe.name, version, *FIGURES["#documents"]) for version in versions]
    return [
        Markup("{} {}").format(_version_link(recipe.name, versions[0]), _last_stage(artifacts)),
        *(_newest_figure(store, recipe.name, versions, *source) for source in FIGURES.values()),
        _champion(store, recipe.name, versions),
        cost.real.get("price", cost.planned.get("price")),
        round(cost.seconds / 60, 1),
        round(cost.made / 1e6, 1),
        sparkline([float(value) for value in reversed(kept) if value is not None]),
    ]


def _newest_figure(store: Store, recipe: str, versions: Sequence[str], kind: str, metric: str) -> object:
    """Returns a metric of the newest of some versions that has it, with the version if it is not the first one."""
    for version in versions:
        if (value := _metric(store, recipe, version, kind, metric)) is not None:
            shown = f"{value:.1%}" if metric == "kept_share" else value
            if version == versions[0]:
                return shown
            return Markup('{} <span class="quiet">{}</span>').format(to_markup(shown), version)
    return None


def _last_stage(artifacts: Sequence[Artifact]) -> Markup:
    """Returns stage and time of the newest artifact that was made, not adopted."""
    made = [artifact.record for artifact in artifacts if not artifact.record.adopted_from]
    if not made:
        return badge("adopted as a whole", "pale") if artifacts else Markup("")
    return Markup('<span class="quiet">{} {}</span>').format(made[-1].stage, moment(made[-1].finished))


def _next(recipe: Recipe, runs: Schedule) -> Markup | str:
    """Returns the time of the next scheduled run with the schedule, or why there is none."""
    due = _due(runs)
    zone = f" {recipe.timezone}" if recipe.timezone != "UTC" else ""
    text = f"{recipe.schedule}{zone}" if recipe.schedule else "" if due else "manual"
    return Markup('{} <span class="quiet">{}</span>').format(due, text)


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
        figures = [_newest_figure(store, recipe.name, [version], *source) for source in FIGURES.values()]
        rows.append(
            [_version_link(recipe.name, version), _last_stage(artifacts), *figures, len(made),
             len(artifacts) - len(made), round(sum(record.stored() for record in made) / 1e6, 1)]
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
    return int(value) if value is not None and float(value).is_integer() and metric in COUNTS else value


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

"""The months of a recipe: what one brought and cost, what has changed, and what needs a person.

Reads the report of one month (`tasks.run.monthly.report`), which has the entries of all months before it.
"""

from fastapi.responses import HTMLResponse

from sluice_ui.access import AnyVersion, At, Name, User, readable, respond, router
from sluice_ui.frame import ROOT, Address, Version, artifact_link, badge, link, page
from tasks.core.errors import InputError
from tasks.core.version_index import VersionIndex
from tasks.run.monthly.tables import Cell, read_month, report_of, tables
from tasks.run.recipe import Recipe
from tasks.run.runner import open_store


def months(recipe: Recipe, version: str, at: Address) -> str:
    """Returns the page of a month: the given one, or the newest one.

    Raises:
        InputError: there is no such report.
    """
    store = open_store(recipe)
    artifact = report_of(store, recipe.name, version)
    if artifact is None:
        raise InputError(*_none_yet(recipe, version))
    content = read_month(artifact)
    reports = {*store.folders(f"{recipe.name}/month")}
    shown = tables(content)
    return page(
        "months",
        f"{recipe.name}: {content['version']}",
        at,
        Version(recipe.name, "", "months", "crawl" in recipe.parts),
        content=content,
        alerts=[[badge(one["kind"].replace("_", " "), "bad"), one["what"], one["text"]] for one in content["alerts"]],
        tables=[(one, [[_cell(recipe.name, at, one.name, cell) for cell in row] for row in one.rows]) for one in shown],
        others=[
            link(name, ROOT + at.path, recipe=recipe.name, version=name)
            for name in VersionIndex(store, recipe.name).versions()
            if name in reports and name != content["version"]
        ],
        artifact=artifact_link(str(artifact.address)),
    )


def _none_yet(recipe: Recipe, version: str) -> tuple[str, str]:
    """Returns that there is no report, and what to do."""
    by_hand = f"run `sluice month --recipe {recipe.name} --version VERSION`"
    if version:
        return f"{recipe.name} has no report of {version}", f"open another month, or {by_hand}"
    if recipe.cycle is None:
        return f"{recipe.name} has no months", f"add [cycle] to the recipe, or {by_hand}"
    return f"no month of {recipe.name} has ended yet", f"trigger {recipe.name}.cycle in Airflow, or {by_hand}"


def _cell(recipe: str, at: Address, table: str, cell: Cell) -> object:
    """Returns a cell; the addresses of models are links."""
    return (
        artifact_link(cell)
        if table == "champions" and isinstance(cell, str) and cell.startswith(f"{recipe}/model@") and " " not in cell
        else cell
    )


routes = router()


@routes.get("/months")
def months_page(recipe: Name, user: User, at: At, version: AnyVersion = "") -> HTMLResponse:
    """The report of a month."""
    return respond(lambda: months(readable(recipe, user), version, at))

"""The routes of the Sluice page, each behind Airflow's own login.

Mounted at /sluice. Airflow does not protect the applications of plugins: every route here requires a logged-in user,
and shows a recipe only to users who may read its DAGs. FastAPI's own pages (schema, docs) would bypass this and are
disabled.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, get_user
from fastapi import Depends, FastAPI, Form, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from sluice_ui import answers, charts, documents, recipes, runs
from sluice_ui import version as version_pages
from sluice_ui.frame import HEADERS, Address, page
from tasks.core.errors import InputError, SluiceError
from tasks.run.recipe import Recipe, find_recipe, recipe_files

app = FastAPI(dependencies=[Depends(get_user)], openapi_url=None, docs_url=None, redoc_url=None)

_NAME = r"[a-z][a-z0-9_]*(-[a-z0-9_]+)*"
_VERSION = r"[A-Za-z0-9][A-Za-z0-9._\-]*"


@app.exception_handler(StarletteHTTPException)
def refused(_request: Request, error: StarletteHTTPException) -> HTMLResponse:
    """Shows an error as a page; the other headers are those that the login needs."""
    return HTMLResponse(
        _error(error.status_code, str(error.detail)), error.status_code, {**HEADERS, **(error.headers or {})}
    )


@app.exception_handler(RequestValidationError)
def invalid(_request: Request, error: RequestValidationError) -> HTMLResponse:
    """Shows which parameters of the address are invalid."""
    names = ", ".join(sorted({str(problem["loc"][-1]) for problem in error.errors()}))
    return HTMLResponse(_error(422, f"The address has a missing or invalid {names}."), 422, HEADERS)


_STATIC = Path(__file__).parent / "static"
_FILES = {
    **{path.name: path for path in sorted(_STATIC.iterdir())},
    "plotly.js": charts.script(),
}
_TYPES = {".js": "text/javascript", ".css": "text/css"}
Name = Annotated[str, Query(pattern=f"^{_NAME}$", max_length=100)]
VersionName = Annotated[str, Query(pattern=f"^{_VERSION}$", max_length=100)]
AnyVersion = Annotated[str, Query(pattern=f"^({_VERSION})?$", max_length=100)]


def _at(request: Request) -> Address:
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    return Address(path, dict(request.query_params))


At = Annotated[Address, Depends(_at)]


@app.get("/")
def index(user: GetUserDep, at: At) -> HTMLResponse:
    """All recipes that the user may see."""
    return _page(lambda: recipes.recipes([recipe for recipe in _valid_recipes() if _may_read(recipe.name, user)], at))


@app.get("/static/{name}")
def static(name: str) -> FileResponse:
    """The style and the scripts of all pages."""
    if name not in _FILES:
        raise HTTPException(404, "no such file")
    path = _FILES[name]
    kept = {**HEADERS, "Cache-Control": "private, max-age=3600"}
    return FileResponse(path, media_type=_TYPES[path.suffix], headers=kept)


@app.get("/airflow")
def of_airflow(
    user: GetUserDep,
    dag: Annotated[str, Query(max_length=250)],
    run: Annotated[str, Query(max_length=250)] = "",
    task: Annotated[str, Query(max_length=250)] = "",
    map_index: Annotated[str, Query(max_length=20)] = "",
) -> RedirectResponse:
    """The page of a DAG, a run or a task, for the tabs in Airflow."""
    _readable(dag.partition(".")[0], user)
    return RedirectResponse(runs.page_of(dag, run, task, map_index), headers=HEADERS)


@app.get("/recipe/{recipe}")
def recipe_page(recipe: str, user: GetUserDep, at: At, version: AnyVersion = "") -> HTMLResponse:
    """One version of a recipe, or all its versions."""
    if version:
        return _page(lambda: version_pages.version(_readable(recipe, user), version, at))
    return _page(lambda: recipes.versions(_readable(recipe, user), at))


@app.get("/artifact/{address:path}")
def artifact(address: str, user: GetUserDep, at: At) -> HTMLResponse:
    """One artifact, by name@version."""
    return _page(lambda: version_pages.artifact(_readable(address.partition("/")[0], user), address, at))


@app.get("/corpus")
def corpus(recipe: Name, version: VersionName, user: GetUserDep, at: At) -> HTMLResponse:
    """Documents of a corpus."""
    return _page(lambda: documents.corpus(_readable(recipe, user), version, at))


@app.get("/trace")
def trace(
    recipe: Name, version: VersionName, user: GetUserDep, at: At, what: Annotated[str, Query(max_length=4000)] = ""
) -> HTMLResponse:
    """Trace of a page, a document or a training step."""
    return _page(lambda: answers.trace(_readable(recipe, user), version, what, at))


@app.get("/explain")
def ask_explain(recipe: Name, version: VersionName, user: GetUserDep, at: At) -> HTMLResponse:
    """The form of an explanation."""
    return _page(lambda: answers.explain(_readable(recipe, user), version, "", at))


@app.post("/explain")
def explain(
    recipe: Annotated[str, Form(pattern=f"^{_NAME}$", max_length=100)],
    version: Annotated[str, Form(pattern=f"^{_VERSION}$", max_length=100)],
    user: GetUserDep,
    at: At,
    text: Annotated[str, Form()] = "",
) -> HTMLResponse:
    """Pages and training steps of a text. Uses POST because the text may be too long for a URL; changes nothing."""
    return _page(lambda: answers.explain(_readable(recipe, user), version, text, at))


@app.get("/why")
def why(
    recipe: Name,
    user: GetUserDep,
    at: At,
    version: AnyVersion = "",
    url: Annotated[str, Query(max_length=4000)] = "",
) -> HTMLResponse:
    """Reasons why a URL is or is not crawled: in one cycle, or according to the newest artifacts."""
    return _page(lambda: answers.why(_readable(recipe, user), version, url, at))


def _error(status: int, message: str) -> str:
    title = {404: "Not found", 503: "Not available"}.get(status, "Not possible")
    return page("error", title, Address("/", {}), message=message)


def _valid_recipes() -> list[Recipe]:
    recipes = []
    for path in recipe_files():
        try:
            recipes.append(Recipe.load(path))
        except SluiceError:
            continue  # Airflow shows it as an import error
    return recipes


def _may_read(recipe: str, user: object) -> bool:
    details = DagDetails(id=f"{recipe}.corpus")
    return bool(get_auth_manager().is_authorized_dag(method="GET", details=details, user=user))


def _readable(recipe: str, user: object) -> Recipe:
    # The same response whether the recipe is missing or forbidden, so that names cannot be guessed.
    if recipe not in {path.stem for path in recipe_files()} or not _may_read(recipe, user):
        raise HTTPException(404, "no such recipe, or you may not read its DAGs")
    return find_recipe(recipe)


def _page(render: Callable[[], str]) -> HTMLResponse:
    try:
        return HTMLResponse(render(), headers=HEADERS)
    except InputError as error:
        raise HTTPException(404, str(error)) from None
    except SluiceError as error:  # such as a store that cannot be read
        raise HTTPException(503, str(error)) from None

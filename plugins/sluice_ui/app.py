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
from fastapi.responses import FileResponse, HTMLResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from sluice_ui import pages
from sluice_ui.pages import HEADERS
from tasks.core.errors import InputError, SluiceError
from tasks.run.recipe import Recipe, find_recipe, recipe_files

app = FastAPI(dependencies=[Depends(get_user)], openapi_url=None, docs_url=None, redoc_url=None)

_NAME = r"[a-z][a-z0-9_]*(-[a-z0-9_]+)*"
_VERSION = r"[A-Za-z0-9][A-Za-z0-9._\-]*"


@app.exception_handler(StarletteHTTPException)
def refused(_request: Request, error: StarletteHTTPException) -> HTMLResponse:
    """Shows an error as a page; the other headers are those that the login needs."""
    return HTMLResponse(
        pages.error(error.status_code, str(error.detail)), error.status_code, {**HEADERS, **(error.headers or {})}
    )


@app.exception_handler(RequestValidationError)
def invalid(_request: Request, error: RequestValidationError) -> HTMLResponse:
    """Shows which parameters of the address are invalid."""
    names = ", ".join(sorted({str(problem["loc"][-1]) for problem in error.errors()}))
    return HTMLResponse(pages.error(422, f"The address has a missing or invalid {names}."), 422, HEADERS)


_STATIC = Path(__file__).parent / "static"
Name = Annotated[str, Query(pattern=f"^{_NAME}$", max_length=100)]
Version = Annotated[str, Query(pattern=f"^{_VERSION}$", max_length=100)]


@app.get("/")
def index(user: GetUserDep) -> HTMLResponse:
    """All recipes that the user may see."""
    return _page(lambda: pages.recipes([recipe for recipe in _valid_recipes() if _may_read(recipe.name, user)]))


@app.get("/links.js")
def links() -> FileResponse:
    """The script of all pages."""
    return FileResponse(_STATIC / "links.js", media_type="text/javascript", headers=HEADERS)


@app.get("/recipe/{recipe}")
def recipe_run(recipe: str, version: Version, user: GetUserDep) -> HTMLResponse:
    """One version of a recipe."""
    return _page(lambda: pages.run(_readable(recipe, user), version))


@app.get("/artifact/{address:path}")
def artifact(address: str, user: GetUserDep) -> HTMLResponse:
    """One artifact, by name@version."""
    recipe = _readable(address.partition("/")[0], user)
    return _page(lambda: pages.artifact_page(recipe, address))


@app.get("/corpus")
def corpus(recipe: Name, version: Version, user: GetUserDep) -> HTMLResponse:
    """Samples of a corpus."""
    return _page(lambda: pages.corpus(_readable(recipe, user), version))


@app.get("/trace")
def trace(
    recipe: Name, version: Version, user: GetUserDep, what: Annotated[str, Query(max_length=4000)] = ""
) -> HTMLResponse:
    """Trace of a page, a document or a training step."""
    return _page(lambda: pages.trace(_readable(recipe, user), version, what))


@app.post("/explain")
def explain(
    recipe: Annotated[str, Form(pattern=f"^{_NAME}$", max_length=100)],
    version: Annotated[str, Form(pattern=f"^{_VERSION}$", max_length=100)],
    user: GetUserDep,
    text: Annotated[str, Form()] = "",
) -> HTMLResponse:
    """Pages and training steps of a text. Uses POST because the text may be too long for a URL; changes nothing."""
    return _page(lambda: pages.explain(_readable(recipe, user), version, text))


@app.get("/why")
def why(
    recipe: Name,
    user: GetUserDep,
    version: Annotated[str, Query(pattern=f"^({_VERSION})?$", max_length=100)] = "",
    url: Annotated[str, Query(max_length=4000)] = "",
) -> HTMLResponse:
    """Reasons why a URL is or is not crawled: in one cycle, or according to the newest artifacts."""
    return _page(lambda: pages.why(_readable(recipe, user), version, url))


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

"""The application of the Sluice pages: their routers, static files, and errors as pages.

FastAPI's own pages (schema, docs) would bypass the login and are disabled.
"""

from pathlib import Path

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from sluice_ui import (
    answers,
    canaries,
    charts,
    compare,
    costs,
    crawl,
    documents,
    dossier,
    duplicates,
    filters,
    lineage,
    months,
    recipes,
    runs,
    takedowns,
    training,
    trigger,
    version,
)
from sluice_ui.access import NotThere, router
from sluice_ui.frame import HEADERS, RECIPE_TABS, TABS, Address, Version, page
from tasks.run.recipe import find_recipe

PAGES = (
    recipes,
    version,
    documents,
    duplicates,
    filters,
    canaries,
    training,
    answers,
    runs,
    trigger,
    takedowns,
    lineage,
    costs,
    compare,
    crawl,
    months,
    dossier,
)
"""Modules of pages, each with its `routes`."""

_STATIC = Path(__file__).parent / "static"
_FILES = {
    **{path.name: path for path in sorted(_STATIC.iterdir())},
    "plotly.js": charts.script(),
}
_TYPES = {".js": "text/javascript", ".css": "text/css"}

files = router()


@files.get("/static/{name}")
def static(name: str) -> FileResponse:
    """The style and the scripts of all pages."""
    if name not in _FILES:
        raise HTTPException(404, "no such file")
    path = _FILES[name]
    kept = {**HEADERS, "Cache-Control": "private, max-age=3600"}
    return FileResponse(path, media_type=_TYPES[path.suffix], headers=kept)


app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
app.include_router(files)
for module in PAGES:
    app.include_router(module.routes)


@app.exception_handler(StarletteHTTPException)
def refused(request: Request, error: StarletteHTTPException) -> HTMLResponse:
    """Shows an error as a page; the other headers are those that the login needs."""
    return HTMLResponse(
        _error(error.status_code, str(error.detail), _of(request) if isinstance(error, NotThere) else None),
        error.status_code,
        {**HEADERS, **(error.headers or {})},
    )


@app.exception_handler(RequestValidationError)
def invalid(_request: Request, error: RequestValidationError) -> HTMLResponse:
    """Shows which parameters of the address are invalid."""
    names = ", ".join(sorted({str(problem["loc"][-1]) for problem in error.errors()}))
    return HTMLResponse(_error(422, f"The address has a missing or invalid {names}."), 422, HEADERS)


def _of(request: Request) -> Version | None:
    """Returns what an address is about, by its path and query; None without a recipe."""
    name = request.path_params.get("recipe") or request.query_params.get("recipe", "")
    if not name:
        return None
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    tab = next((tab for tab, (_, of_tab) in {**RECIPE_TABS, **TABS}.items() if of_tab == path), "")
    version = "" if tab in RECIPE_TABS else request.query_params.get("version", "")
    return Version(name, version, tab, "crawl" in find_recipe(name).parts)


def _error(status: int, message: str, of: Version | None = None) -> str:
    title = {404: "Not found", 503: "Not available"}.get(status, "Not possible")
    return page("error", title, Address("/", {}), of, message=message)

"""Who may see which page, and what the addresses of pages may contain.

Mounted at /sluice. Airflow does not protect the applications of plugins: every router made here requires a logged-in
user, and `readable` opens a recipe only for users who may read its DAGs.
"""

from collections.abc import Callable
from typing import Annotated

import pyarrow as pa
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, get_user
from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi.responses import HTMLResponse

from sluice_ui.frame import HEADERS, Address
from tasks.core.errors import InputError, SluiceError
from tasks.run.recipe import Recipe, find_recipe, recipe_files

RECIPE_NAME = r"[a-z][a-z0-9_]*(-[a-z0-9_]+)*"
VERSION_NAME = r"[A-Za-z0-9][A-Za-z0-9._\-]*"

Name = Annotated[str, Query(pattern=f"^{RECIPE_NAME}$", max_length=100)]
VersionName = Annotated[str, Query(pattern=f"^{VERSION_NAME}$", max_length=100)]
AnyVersion = Annotated[str, Query(pattern=f"^({VERSION_NAME})?$", max_length=100)]
User = GetUserDep


def _at(request: Request) -> Address:
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    return Address(path, dict(request.query_params))


At = Annotated[Address, Depends(_at)]


def router() -> APIRouter:
    """Returns a router for the routes of a page, all of which require a logged-in user."""
    return APIRouter(dependencies=[Depends(get_user)])


def may_read(recipe: str, user: object) -> bool:
    """Returns whether a user may read the DAGs of a recipe."""
    details = DagDetails(id=f"{recipe}.corpus")
    return bool(get_auth_manager().is_authorized_dag(method="GET", details=details, user=user))


def readable(recipe: str, user: object) -> Recipe:
    """Returns a recipe that the user may read.

    Raises:
        HTTPException: 404, whether the recipe is missing or forbidden, so that names cannot be guessed.
    """
    if recipe not in {path.stem for path in recipe_files()} or not may_read(recipe, user):
        raise HTTPException(404, "no such recipe, or you may not read its DAGs")
    return find_recipe(recipe)


def readable_recipes(user: object) -> list[Recipe]:
    """Returns all valid recipes that the user may read; Airflow shows the invalid ones as import errors."""
    recipes = []
    for path in recipe_files():
        try:
            recipes.append(Recipe.load(path))
        except SluiceError:
            continue
    return [recipe for recipe in recipes if may_read(recipe.name, user)]


class NotThere(HTTPException):
    """404 of something in a recipe that the user may read; its page keeps breadcrumbs and tabs."""

    def __init__(self, message: str) -> None:
        super().__init__(404, message)


def respond(render: Callable[[], str]) -> HTMLResponse:
    """Returns the response with a page; what is not there is 404, a store that cannot be read 503.

    Returns the memory that the page does not use any more to the system, which takes about 1 ms.
    """
    try:
        return HTMLResponse(render(), headers=HEADERS)
    except InputError as error:
        raise NotThere(str(error)) from None
    except SluiceError as error:
        raise HTTPException(503, str(error)) from None
    finally:
        pa.default_memory_pool().release_unused()

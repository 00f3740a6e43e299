"""Triggers a DAG run from a page, as the logged-in user.

The run is made by Airflow's own public API (`POST /api/v2/dags/{dag_id}/dagRuns`), called inside the server with the
credentials of the request: rights, validation of the form, and the audit log are Airflow's.

A form of a page has a hidden field `token`: its user, DAG and time, signed with Airflow's secret key. Together with the
origin of the request it shows that the user sent the form from one of these pages. The token is bound to the user, not
to the login's cookie, which some auth managers renew every few minutes while a form is open.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import quote, urlsplit

import httpx
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.configuration import conf as settings
from fastapi import Form, HTTPException, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from itsdangerous import BadSignature, URLSafeTimedSerializer

from sluice_ui.access import At, User, readable, respond, router
from sluice_ui.frame import HEADERS, Address, Version, page

OPEN_SECONDS = 12 * 3600
"""Time after which the form of a page must be loaded again."""

_FORWARDED = ("authorization", "cookie", "host", "user-agent", "x-forwarded-for")
"""Headers of the request that Airflow's API gets: credentials, and what its logs show."""

Token = Annotated[str, Form(max_length=1000)]
"""The hidden field of a form that triggers a run."""


@dataclass(frozen=True)
class Trigger:
    """Whether a user may trigger a DAG, for the form of a page.

    Attributes:
        dag_id: the DAG.
        refusal: a sentence that says why the user cannot trigger it; "" if they can.
        token: value of the form's hidden field `token`; "" if they cannot.
    """

    dag_id: str
    refusal: str
    token: str


@dataclass(frozen=True)
class Run:
    """A DAG run that was triggered."""

    dag_id: str
    run_id: str

    @property
    def address(self) -> str:
        """Path of its page in Airflow."""
        return f"/dags/{quote(self.dag_id)}/runs/{quote(self.run_id, safe='')}"

    @property
    def response(self) -> RedirectResponse:
        """Redirects to the page that says so, so that a reload does not send the form again."""
        return RedirectResponse(Address("/triggered", {"dag": self.dag_id, "run": self.run_id}).href(), 303, HEADERS)


def offer(user: BaseUser, dag_id: str) -> Trigger:
    """Returns whether a user may trigger a DAG now."""
    refusal = _refusal(user, dag_id)
    token = "" if refusal else str(_signer(dag_id).dumps(user.get_id()))
    return Trigger(dag_id, refusal, token)


async def trigger(request: Request, user: BaseUser, token: str, dag_id: str, conf: Mapping[str, object]) -> Run:
    """Triggers a run of a DAG as the logged-in user.

    Args:
        request: the POST of a form of a page.
        user: the logged-in user.
        token: the form's hidden field.
        dag_id: the DAG.
        conf: values of the DAG's params; Airflow checks them. A `version` is the beginning of the run's id.

    Raises:
        HTTPException: 403 if the request does not come from a form of this user, or the user may not trigger the DAG;
            404 without the DAG; 409 if it is paused; 400 for values that its params refuse.
    """
    _check_origin(request)
    _check_token(token, user, dag_id)
    if refusal := _refusal(user, dag_id):
        raise HTTPException(409 if "paused" in refusal else 403, refusal)
    headers = {name: request.headers[name] for name in _FORWARDED if name in request.headers}
    headers["referer"] = str(request.url)  # Airflow records such a run as triggered in the UI
    transport = httpx.ASGITransport(request.scope["airflow"], raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=str(request.base_url)) as airflow:
        # An absolute path: base_url ends with the path of these pages.
        address = request.url.replace(path=f"/api/v2/dags/{quote(dag_id)}/dagRuns", query="")
        asked = {"logical_date": None, "conf": dict(conf), **_named(conf)}
        answer = await airflow.post(str(address), json=asked, headers=headers)
    if answer.status_code >= 400:
        raise HTTPException(answer.status_code, f"Airflow did not trigger {dag_id}: {_detail(answer)}")
    return Run(dag_id, answer.json()["dag_run_id"])


def _named(conf: Mapping[str, object]) -> dict[str, str]:
    """Returns the id of a run that makes a version; {} for Airflow's own, also where it would refuse the version."""
    version = conf.get("version")
    if not version or ".." in str(version):
        return {}
    return {"dag_run_id": f"{version}__{datetime.now(UTC).isoformat()}"}


def _refusal(user: BaseUser, dag_id: str) -> str:
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    with create_session() as session:
        dag = DagModel.get_dagmodel(dag_id, session=session)
        if dag is None or dag.is_stale:
            return f"Airflow has no DAG {dag_id}."
        details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id, session=session))
        paused = dag.is_paused
    allowed = get_auth_manager().is_authorized_dag(
        method="POST", access_entity=DagAccessEntity.RUN, details=details, user=user
    )
    if not allowed:
        return f"Your role may not trigger {dag_id}. Ask an Airflow administrator for the right to create its runs."
    return f"{dag_id} is paused. Switch it on in Airflow first." if paused else ""


def _check_origin(request: Request) -> None:
    """Raises HTTPException unless the browser says that a page of this server sent the request."""
    if site := request.headers.get("sec-fetch-site"):
        same = site == "same-origin"
    else:
        # Browsers send Sec-Fetch-Site to https and localhost only. A proxy may have ended TLS or changed the host.
        origin = urlsplit(request.headers.get("origin", "")).netloc
        own = {request.headers.get("host", ""), urlsplit(settings.get("api", "base_url", fallback="")).netloc}
        same = bool(origin) and origin in own
    if not same:
        raise HTTPException(403, "This form was not sent from a page of this server. Open the page and send it again.")


def _check_token(token: str, user: BaseUser, dag_id: str) -> None:
    try:
        owner = _signer(dag_id).loads(token, max_age=OPEN_SECONDS)
    except BadSignature:
        owner = None
    if owner is None or owner != user.get_id():
        raise HTTPException(403, "This form is too old, or of another user. Open the page and send it again.")


def _signer(dag_id: str) -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(settings.get_mandatory_value("api", "secret_key"), salt=f"sluice.trigger {dag_id}")


def _detail(answer: httpx.Response) -> str:
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = answer.reason_phrase
    return str(detail)


routes = router()


@routes.get("/triggered")
def triggered_page(
    user: User, at: At, dag: Annotated[str, Query(max_length=250)], run: Annotated[str, Query(max_length=250)]
) -> HTMLResponse:
    """A run that was triggered from a page."""
    recipe = readable(dag.partition(".")[0], user)
    made = Run(dag, run)
    return respond(lambda: page("triggered", f"{dag} was triggered", at, Version(recipe.name, ""), run=made))

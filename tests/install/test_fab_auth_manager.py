"""A stranger's Airflow with the FAB auth manager: what its roles may do, and two that are limited to a recipe."""

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest

from tasks.demo.site import HOSTS, address
from tests.install.stranger import CHAIN, RUN, Stranger, blocks, install, run, until_run
from tests.waiting import until

pytestmark = [pytest.mark.soak, pytest.mark.system, pytest.mark.timeout(3600)]

PROVIDER = "apache-airflow-providers-fab==3.10.2"
MANAGER = "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"
ROLES = {"viewer": "Viewer", "user": "User", "op": "Op", "reader": "smoke-reader", "owner": "smoke-owner"}
ALL = ("see", "start", "take down", "switch on", "answer")
FORM = "/sluice/takedowns?recipe=smoke"


@pytest.fixture(scope="module")
def running(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stranger]:
    """Runs an Airflow whose users have one role each, and whose recipe `smoke` asks before it trains."""
    folder = tmp_path_factory.mktemp("fab")
    python = install("3.11", folder / "env", f"sluice[airflow,train] @ {wheel.as_uri()}", PROVIDER)
    made = Stranger(python, folder / "home", {"AIRFLOW__CORE__AUTH_MANAGER": MANAGER})
    with (made.home / "recipes/smoke.toml").open("a") as recipe:
        recipe.write("\n[place]\nask_human = true\n")
    made.airflow("db", "migrate")
    made.airflow("pools", "import", str(made.dags / "pools.json"))
    made.airflow("dags", "reserialize")
    [roles] = blocks("sh", "airflow roles")
    done = run("bash", "-ec", roles, env=made.environment, cwd=made.home)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    person = ("--firstname", "a", "--lastname", "b", "--email", "admin@example.org")
    made.airflow("users", "create", "--username", "admin", "--password", "admin", "--role", "Admin", *person)
    with made.running(), made.client("admin") as admin:
        for name, role in ROLES.items():
            user = {"username": name, "password": name, "roles": [{"name": role}], "email": f"{name}@example.org"}
            answer = admin.post("/auth/fab/v1/users", json={**user, "first_name": name, "last_name": "b"})
            assert answer.status_code == 200, answer.text
        yield made


@pytest.fixture(scope="module")
def question(running: Stranger) -> str:
    """Runs `smoke` as its owner up to the question whether the model may be trained; returns its address."""
    with running.client("owner") as owner:
        for part in CHAIN:
            assert owner.patch(f"/api/v2/dags/smoke.{part}", json={"is_paused": False}).status_code == 200
        assert owner.post("/api/v2/dags/smoke.crawl/dagRuns", json=RUN).status_code == 200
        return until(lambda: asked_by(owner, "smoke.canary"), 1800, every_s=1)["address"]


def asked_by(client: httpx.Client, dag: str) -> dict[str, Any]:
    """Returns the question of a DAG with its address; {} if there is none yet."""
    for asked in client.get(f"/api/v2/dags/{dag}/dagRuns/~/hitlDetails").json()["hitl_details"]:
        task = asked["task_instance"]
        of_task = f"/api/v2/dags/{dag}/dagRuns/{task['dag_run_id']}/taskInstances/{task['task_id']}"
        return {**asked, "address": f"{of_task}/-1/hitlDetails"}
    return {}


@pytest.mark.parametrize(
    ("user", "recipe", "rights"),
    [
        ("viewer", "smoke", ("see",)),
        ("user", "smoke", ALL),
        ("op", "smoke", ALL),
        ("admin", "smoke", ALL),
        ("reader", "smoke", ("see",)),
        ("reader", "demo", ()),
        ("owner", "smoke", ALL),
        ("owner", "demo", ()),
    ],
)
def test_a_role_gives_the_rights_of_the_documentation(running, question, user, recipe, rights) -> None:
    assert allowed(running, user, recipe, question.replace("smoke.", f"{recipe}.")) == rights


def allowed(stranger: Stranger, user: str, recipe: str, question: str) -> tuple[str, ...]:
    """Returns what a user may do, from requests that change nothing because their values are invalid."""
    wrong = {**RUN, "conf": {"version": ["not", "text"]}}
    with stranger.client(user) as client:
        answers = {
            "see": client.get(f"/sluice/recipe/{recipe}"),
            "start": client.post(f"/api/v2/dags/{recipe}.crawl/dagRuns", json=wrong),
            "take down": client.post(f"/api/v2/dags/{recipe}.takedown/dagRuns", json=wrong),
            "switch on": client.patch(f"/api/v2/dags/{recipe}.takedown", json={"is_paused": "perhaps"}),
            "answer": client.patch(question, json={"chosen_options": ["Perhaps"], "params_input": {}}),
        }
    statuses = {name: answer.status_code for name, answer in answers.items()}
    assert set(statuses.values()) <= {200, 400, 403, 404, 422}, statuses
    return tuple(name for name, status in statuses.items() if status not in (403, 404))


def test_a_recipe_of_others_does_not_exist_for_a_user_with_a_role_of_one_recipe(running: Stranger) -> None:
    for user in ("reader", "owner"):
        with running.client(user) as client:
            assert set(re.findall(r"/sluice/recipe/(\w+)", client.get("/sluice/").text)) == {"smoke"}
            for path in ("takedowns?recipe=demo", "costs?recipe=demo", "airflow?dag=demo.crawl", "recipe/demo"):
                assert client.get(f"/sluice/{path}").status_code == 404, path


def test_nobody_sees_a_page_without_a_login(running: Stranger) -> None:
    for path in ("", "recipe/smoke", "takedowns?recipe=smoke", "static/plotly.js"):
        answer = httpx.get(f"{running.url}/sluice/{path}", trust_env=False, timeout=600)
        assert answer.status_code == 401, path


def test_the_owner_of_a_recipe_approves_mixture_and_champion(running: Stranger, question: str) -> None:
    with running.client("owner") as owner:

        def approved(dag: str) -> bool:
            # An answer before the scheduler has seen that the task waits is forgotten, and the question asked again.
            asked = asked_by(owner, dag)
            if asked and not asked["response_received"]:
                answer = owner.patch(asked["address"], json={"chosen_options": ["Approve"], "params_input": {}})
                assert answer.status_code == 200, answer.text
            states = [one["state"] for one in owner.get(f"/api/v2/dags/{dag}/dagRuns").json()["dag_runs"]]
            assert "failed" not in states
            return "success" in states

        for dag in ("smoke.canary", "smoke.pretrain"):
            until(lambda dag=dag: approved(dag), 1800, every_s=2)
            assert asked_by(owner, dag)["responded_by_user"]["name"] == "owner"
        assert "smoke/champion" in owner.get("/sluice/recipe/smoke?version=dev").text


def test_a_form_of_a_page_works_with_the_session_of_the_login_page(running: Stranger) -> None:
    asked = {"do": "request", "urls": address(HOSTS[0], running.ports.site), "reason": "asked for"}
    with session(running, "owner") as owner, session(running, "viewer") as viewer:
        assert owner.patch("/api/v2/dags/smoke.takedown", json={"is_paused": False}).status_code == 200
        assert "Your role may not trigger smoke.takedown." in viewer.get(FORM).text
        token = unescape(re.search(r'name="token" value="([^"]+)"', owner.get(FORM).text)[1])
        sent = {"data": {**asked, "token": token}, "headers": {"Origin": running.url}}
        assert viewer.post(FORM, **sent).status_code == 403
        assert owner.post(FORM, **{**sent, "headers": {"Origin": "http://elsewhere.example"}}).status_code == 403
        assert owner.post(FORM, **sent).status_code == 303
        until_run(owner, "smoke.takedown")
        [made] = owner.get("/api/v2/dags/smoke.takedown/dagRuns").json()["dag_runs"]
        assert made["triggering_user_name"] == "owner"
        assert "asked for" in owner.get(FORM).text


def session(stranger: Stranger, user: str) -> httpx.Client:
    """Returns a client that logged in at FAB's page, as a browser does: it has cookies and no other credentials."""
    settings: Any = {"base_url": stranger.url, "trust_env": False, "timeout": 600}
    with httpx.Client(**settings) as browser:
        token = re.search(r'name="csrf_token"[^>]*value="([^"]+)"', browser.get("/auth/login/").text)[1]
        login = {"username": user, "password": user, "csrf_token": token}
        answer = browser.post("/auth/login/", data=login, headers={"Referer": f"{stranger.url}/auth/login/"})
        assert (answer.status_code, "_token" in browser.cookies) == (302, True)
        return httpx.Client(**settings, cookies=browser.cookies)

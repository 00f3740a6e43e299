"""A form of a page triggers a DAG as its user, with Airflow's rights, and only from a page of this server."""

import re
from html import unescape

import pytest

from tests.airflow_home import DAGS

FORM = "/sluice/takedowns?recipe=shown"
DAG = "shown.takedown"
ASKED = {"do": "request", "urls": "https://a.example/", "reason": "asked for"}


@pytest.fixture
def pause(client, corpus):
    """Puts the takedown DAG of the recipe `shown` into Airflow's database, switched on; returns its switch."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    DagBundlesManager().sync_bundles_to_db()
    sync_bag_to_db(DagBag(str(DAGS / "takedown.py"), bundle_name="dags-folder"), "dags-folder", None)

    def pause(paused=True):
        with create_session() as session:
            session.get(DagModel, DAG).is_paused = paused

    pause(False)
    return pause


@pytest.fixture
def token(browse, pause):
    """Returns the hidden field of the form of a user with a role."""

    def token(role="op"):
        return unescape(re.search(r'name="token" value="([^"]*)"', browse(role, "GET", FORM).text)[1])

    return token


@pytest.fixture
def send(browse, token):
    """Sends the form of a user with a role."""

    def send(role="op", **more):
        data = {**ASKED, "token": token(role), **more.pop("data", {})}
        return browse(role, "POST", FORM, data=data, follow_redirects=False, **more)

    return send


@pytest.fixture
def runs(pause):
    """Returns (user, conf, kind) of all runs of the DAG."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    def runs():
        with create_session() as session:
            found = DagRun.find(dag_id=DAG, session=session)
            return [(run.triggering_user_name, run.conf, str(run.run_type), run.triggered_by.value) for run in found]

    yield runs
    with create_session() as session:
        session.execute(delete(DagRun).where(DagRun.dag_id == DAG))


def test_a_run_is_triggered_as_the_user_of_the_form(send, runs, browse):
    answer = send(data={"urls": "https://a.example/\r\nhttps://b.example/"})
    assert answer.status_code == 303, answer.text
    conf = {"takedown.urls": "https://a.example/\nhttps://b.example/", "takedown.reason": "asked for",
            "takedown.requested_by": "op", "takedown.from_crawl": False}  # fmt: skip
    assert runs() == [("op", conf, "manual", "ui")]
    shown = browse("op", "GET", answer.headers["location"])
    [address] = re.findall(r'href="(/dags/[^"]+)"', shown.text)
    run = address.replace("/dags/", "/api/v2/dags/").replace("/runs/", "/dagRuns/")
    assert browse("op", "GET", run).json()["state"] == "queued"


def test_a_user_without_the_right_sees_why_and_is_refused(send, runs, browse, token):
    page = browse("viewer", "GET", FORM).text
    assert "Your role may not trigger shown.takedown." in page
    assert re.search(r'value="request" disabled', page)
    answer = send("viewer", data={"token": token("op")})
    assert answer.status_code == 403
    assert runs() == []


def test_the_token_of_another_user_or_an_old_one_is_refused(send, runs, token, monkeypatch):
    from sluice_ui import trigger

    for wrong in (token("admin"), "", "forged", token("op")[:-1]):
        answer = send(data={"token": wrong})
        assert answer.status_code == 403, wrong
        assert "too old, or of another user" in answer.text
    monkeypatch.setattr(trigger, "OPEN_SECONDS", -1)
    assert send().status_code == 403
    assert runs() == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, 303),
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Sec-Fetch-Site": "", "Origin": "http://127.0.0.1"}, 303),  # a browser on plain http
        ({"Sec-Fetch-Site": "", "Origin": "http://evil.example"}, 403),
        ({"Sec-Fetch-Site": "", "Origin": "null"}, 403),
        ({"Sec-Fetch-Site": ""}, 403),
    ],
)
def test_only_pages_of_this_server_send_a_form(send, runs, headers, status):
    assert send(headers=headers).status_code == status
    assert len(runs()) == (status == 303)


def test_a_paused_dag_is_refused_with_a_sentence(send, runs, pause, browse, token):
    valid = token()
    pause(True)
    assert "shown.takedown is paused. Switch it on in Airflow first." in browse("op", "GET", FORM).text
    answer = browse("op", "POST", FORM, data={**ASKED, "token": valid})
    assert answer.status_code == 409
    assert "shown.takedown is paused." in answer.text
    assert runs() == []


def test_airflow_refuses_values_that_the_params_of_the_dag_do_not_allow(send, runs, monkeypatch):
    from sluice_ui import takedowns

    monkeypatch.setattr(takedowns, "_problem", lambda *_: "")
    answer = send(data={"reason": "x" * 1001})
    assert answer.status_code == 400
    assert "Airflow did not trigger shown.takedown: " in answer.text
    assert runs() == []


def test_airflow_itself_refuses_a_user_without_the_right(send, runs, monkeypatch):
    from sluice_ui import trigger

    monkeypatch.setattr(trigger, "_refusal", lambda *_: "")
    answer = send("viewer")
    assert answer.status_code == 403
    assert "Airflow did not trigger shown.takedown: " in answer.text
    assert runs() == []


def test_reading_a_page_triggers_nothing(browse, pause, runs):
    browse("op", "GET", FORM + "&do=request&urls=https://a.example/")
    assert runs() == []

"""What Airflow has planned and run of a recipe's DAGs, on the page of all recipes."""

from datetime import UTC, datetime

import pytest
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from sluice_ui.scheduling import schedules

DUE = datetime(2030, 1, 2, 3, tzinfo=UTC)


@pytest.fixture
def planned(airflow_db):
    """The DAGs `seen.crawl`, due in 2030 with two runs, and `seen.corpus`, paused; and one of another recipe."""
    from airflow.models.dagbundle import DagBundleModel

    with create_session() as session:
        if session.get(DagBundleModel, "dags-folder") is None:
            session.add(DagBundleModel(name="dags-folder"))
            session.flush()
        for name, paused, due in (
            ("seen.crawl", False, DUE),
            ("seen.corpus", True, None),
            ("other.crawl", False, None),
        ):
            session.add(DagModel(dag_id=name, is_paused=paused, is_stale=False, bundle_name="dags-folder",
                                 next_dagrun_create_after=due, fileloc="x", relative_fileloc="x"))  # fmt: skip
        session.flush()
        for name, run, state in (("corpus", "manual__0", "success"), ("crawl", "scheduled__1", "success"),
                                 ("crawl", "manual__2", "failed")):  # fmt: skip
            session.add(DagRun(dag_id=f"seen.{name}", run_id=run, run_type="manual", state=state, run_after=DUE))
            session.flush()
    yield
    with create_session() as session:
        session.query(DagRun).filter(DagRun.dag_id.in_(["seen.crawl", "seen.corpus"])).delete()
        session.query(DagModel).filter(DagModel.dag_id.in_(["seen.crawl", "seen.corpus", "other.crawl"])).delete()


def test_the_next_and_the_newest_run_of_a_recipe_are_those_of_airflow(planned) -> None:
    found = schedules(["seen", "unknown"])
    assert found["seen"].due == DUE
    assert found["seen"].paused == ("seen.corpus",)
    assert (found["seen"].dag_id, found["seen"].run_id, found["seen"].state) == ("seen.crawl", "manual__2", "failed")
    assert found["unknown"].newest is None


def test_the_page_of_recipes_shows_them(planned, recipes, get) -> None:
    recipes("seen")
    text = get("/sluice/").text
    assert "2030-01-02 03:00:00" in text
    assert 'href="/dags/seen.crawl/runs/manual__2"' in text
    assert ">failed</span>" in text

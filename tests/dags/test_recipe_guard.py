"""One recipe's fault stops no other recipe: it is refused when it is read, or its DAG alone is left out.

Parsed and written to Airflow's database as by the dag-processor, because Airflow knows errors of files: an error in a
DAG file makes the DAGs of all recipes stale.
"""

import pendulum
import pytest

from tasks.core.errors import RecipeError
from tasks.run.recipe import Recipe
from tests.airflow_home import DAGS

MONTHLY = """
[crawl]
seeds = ["http://site.localhost:18799/"]
allow_loopback = true
recrawl = true
[train]
[dedup_index]
enabled = true
[encode]
accumulate = true
"""
GOOD = f'name = "good"\n{MONTHLY}[cycle]\n[place.retention]\n'
LIVE = {f"good.{dag}" for dag in ("crawl", "corpus", "tokens", "pretrain", "takedown", "cycle", "retention")}


@pytest.fixture
def parsed(airflow_db):
    """Parses the DAG files and writes them to the database; returns the import errors and the DAGs that can run."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import select, update

    def parse():
        with create_session() as session:
            DagBundlesManager().sync_bundles_to_db(session=session)
            session.execute(update(DagModel).values(is_stale=True))
        bag = DagBag(str(DAGS), bundle_name="dags-folder", bundle_path=DAGS)
        sync_bag_to_db(bag, "dags-folder", None)
        with create_session() as session:
            live = select(DagModel.dag_id).where(~DagModel.is_stale, ~DagModel.has_import_errors)
            return bag.import_errors, set(session.scalars(live))

    return parse


REFUSED = [
    (
        'schedule = "0 25 * * *"',
        'schedule: the cron expression "0 25 * * *" has an unusable hour "25": write',
    ),
    ('schedule = "0 0 30 2 *"', 'schedule: the cron expression "0 0 30 2 *" is never due: write minute, hour'),
    ('schedule = "0 3 * *"', 'schedule: the cron expression "0 3 * *" has 4 fields instead of five: write'),
    ('schedule = "H 3 * * *"', 'has an unusable minute "H": write'),
    ('schedule = "0 0 * * 1#5,2"', 'has an unusable day of the week "1#5,2": write'),
    ('schedule = ""', 'schedule: the cron expression "" has 0 fields instead of five'),
    ('[cycle]\nschedule = "@fortnightly"', 'cycle.schedule: "@fortnightly" is not a schedule. Did you mean "@'),
    ('[place.retention]\nschedule = "weekly"', 'schedule: "weekly" is not a schedule. Did you mean "@weekly"?'),
    ('timezone = "Europe/Berln"', 'timezone: there is no time zone "Europe/Berln". Did you mean "Europe/Berlin"?'),
    ('[cycle]\ntimezone = "berlin"', 'timezone: there is no time zone "berlin". Did you mean "Europe/Berlin"?'),
    ('[place.retention]\ntimezone = ""', "place.retention.timezone: there is no time zone"),
    ("[place]\nask_human = true\napprove_within_h = 1e12", "place.approve_within_h: Input should be less than"),
    ('[place.train]\nwhere = "kubernetes"', "[place.train] where is"),
]
"""Settings, and what the error of their recipe says."""

NAMES = ["a" * 64, "b" * 101, "c" * 246, "news_", "a-_"]
"""Names that Kubernetes refuses as a label, or Airflow as a tag or in an id."""


def test_what_airflow_or_a_dag_file_refuses_is_an_error_of_its_recipe_alone(recipes, parsed):
    recipes("good", text=GOOD)
    for number, (settings, _) in enumerate(REFUSED):
        text = f"{MONTHLY}{settings}\n" if settings.startswith("[") else f"{settings}\n{MONTHLY}"
        recipes(f"bad{number}", text=f'name = "bad{number}"\n{text}')
    for name in NAMES:
        recipes(name, text=f'name = "{name}"\n{MONTHLY}')
    errors, live = parsed()
    assert set(errors) == {"recipe_errors.py"}
    lines = errors["recipe_errors.py"].splitlines()
    for number, (_, said) in enumerate(REFUSED):
        assert [line for line in lines if line.startswith(f"bad{number}.toml: ") and said in line], said
    for name in NAMES:
        assert [line for line in lines if line.startswith(f"{name}.toml: name: a recipe's name is at most 63")], name
    assert {dag for dag in live if dag.startswith("good.")} == LIVE


def test_an_unforeseen_error_in_a_dag_file_is_that_of_its_recipe(recipes, parsed, monkeypatch):
    from operators import forms

    recipes("good", text=GOOD)
    recipes("bad", text=GOOD.replace("good", "bad"))
    written = forms._page

    def page(recipe, doc, dag):
        if recipe.name == "bad" and dag == "crawl":
            raise KeyError("unforeseen")
        return written(recipe, doc, dag)

    monkeypatch.setattr(forms, "_page", page)
    errors, live = parsed()
    assert set(errors) == {"recipe_errors.py"}
    assert "bad.toml: the DAG bad.crawl cannot be made: KeyError: 'unforeseen'" in errors["recipe_errors.py"]
    assert live == LIVE | {dag.replace("good", "bad") for dag in LIVE} - {"bad.crawl"}


def test_a_dag_that_airflow_refuses_after_it_was_made_is_left_out(recipes, parsed, monkeypatch):
    from operators import forms

    recipes("good", text=GOOD)
    recipes("bad", text=GOOD.replace("good", "bad"))
    written = forms.dag_settings
    settings = {"bad": {"schedule": "0 25 * * *"}, "good": {}}
    monkeypatch.setattr(forms, "dag_settings", lambda recipe, *a, **b: written(recipe, *a, **b) | settings[recipe.name])
    errors, live = parsed()
    assert set(errors) == {"recipe_errors.py"}
    assert "bad.toml: the DAG bad.crawl cannot be made: " in errors["recipe_errors.py"]
    assert live == LIVE


def test_an_error_of_the_settings_of_an_extension_is_that_of_its_recipe(recipes, parsed, monkeypatch):
    recipes("good", text=GOOD)
    recipes("bad", text=GOOD.replace("good", "bad"))
    checked = Recipe._unwatched

    def fails(self):
        return [1 / 0] if self.name == "bad" else checked(self)

    monkeypatch.setattr(Recipe, "_unwatched", fails)
    errors, live = parsed()
    assert set(errors) == {"recipe_errors.py"}
    assert "bad.toml cannot be checked: ZeroDivisionError: division by zero" in errors["recipe_errors.py"]
    assert live == LIVE


@pytest.mark.parametrize("intervals", ["False", "True"])
def test_airflow_accepts_every_schedule_that_a_recipe_may_have(intervals, recipes, monkeypatch):
    """The reverse is not needed: seconds, years and random times are refused, though Airflow reads them."""
    from airflow.sdk import DAG
    from airflow.serialization.encoders import coerce_to_core_timetable
    from airflow.timetables.base import TimeRestriction

    from tasks.run.schedule import PRESETS

    monkeypatch.setenv("AIRFLOW__SCHEDULER__CREATE_CRON_DATA_INTERVALS", intervals)
    since = TimeRestriction(pendulum.datetime(2026, 1, 1), None, catchup=False)
    good = ("0 3 * * *", "*/90 * * * *", "0 22-2 * * mon-fri", "0 0 29 feb *", "0 0 L * *", "30 4 * * 5#3", "0 0 ? * 7")
    for schedule in (*PRESETS, *good):
        for zone in ("UTC", "Europe/Berlin", "Australia/Lord_Howe"):
            text = f'name = "mine"\nschedule = "{schedule}"\ntimezone = "{zone}"\n{MONTHLY}'
            recipe = Recipe.load(recipes("mine", text=text))
            start = pendulum.datetime(2026, 1, 1, tz=recipe.timezone)
            timetable = DAG("mine", schedule=recipe.schedule, start_date=start, max_active_runs=1).timetable
            timetable.validate()
            coerced = coerce_to_core_timetable(timetable)
            assert coerced.next_dagrun_info(last_automated_data_interval=None, restriction=since), schedule
    for schedule in ("0 3 * * * 30", "0 3 * * * 0 2030", "R 3 * * *", "@DAILY", "@reboot"):
        with pytest.raises(RecipeError, match="schedule: "):
            Recipe.load(recipes("mine", text=f'name = "mine"\nschedule = "{schedule}"\n{MONTHLY}'))

"""When schedules are due in their time zone, and what their versions are called, with both kinds of data intervals."""

from types import SimpleNamespace

import pendulum
import pytest

from operators.runs import month_of, run_of
from tasks.core.errors import RecipeError
from tasks.run.recipe import Recipe

CRAWL = '[crawl]\nseeds = ["http://site.localhost:18799/"]\nallow_loopback = true\nrecrawl = true\n'
INTERVALS = pytest.mark.parametrize("intervals", ["False", "True"], ids=["moments", "intervals"])
"""Airflow's default, and the setting of homes that came from Airflow 2."""


@pytest.fixture
def due(recipes, dag_bag, monkeypatch):
    """Returns a function that yields the versions of the runs of a recipe's DAG between two moments, in UTC."""
    from airflow.serialization.encoders import coerce_to_core_timetable
    from airflow.timetables.base import TimeRestriction

    def versions(dag, settings, first, last, intervals):
        monkeypatch.setenv("AIRFLOW__SCHEDULER__CREATE_CRON_DATA_INTERVALS", intervals)
        recipe = Recipe.load(recipes("mine", text=f'name = "mine"\n{settings}'))
        bag = dag_bag()
        assert not bag.import_errors
        timetable = coerce_to_core_timetable(bag.dags[f"mine.{dag}"].timetable)
        found, end = [], pendulum.parse(last)
        earliest = pendulum.parse(first)
        if intervals == "True":  # the run at the first moment is that of the interval before
            earliest = timetable._get_prev(earliest)
        restriction, info = TimeRestriction(earliest, None, catchup=True), None
        while True:
            before = info and info.data_interval
            info = timetable.next_dagrun_info(last_automated_data_interval=before, restriction=restriction)
            if info.run_after > end:
                return found
            context = {
                "params": {},
                "logical_date": info.logical_date,
                "dag_run": SimpleNamespace(run_type="scheduled", run_after=info.run_after),
            }
            run = (month_of if dag == "cycle" else run_of)(recipe, context)
            found.append((f"{info.run_after:%d %H:%M}", run.version))

    return versions


@INTERVALS
def test_a_daily_crawl_is_due_by_the_clock_of_its_zone_all_year(due, intervals):
    settings = f'schedule = "30 2 * * *"\ntimezone = "Europe/Berlin"\n{CRAWL}'
    assert due("crawl", settings, "2026-03-27T12:00Z", "2026-03-30T12:00Z", intervals) == [
        ("28 01:30", "2026.03.28-0230"),
        ("29 01:30", "2026.03.29-0330"),  # 2:30 does not exist
        ("30 00:30", "2026.03.30-0230"),
    ]
    assert due("crawl", settings, "2026-10-24T00:00Z", "2026-10-26T12:00Z", intervals) == [
        ("24 00:30", "2026.10.24-0230"),
        ("25 01:30", "2026.10.25-0230"),  # 2:30 comes twice, and one crawl is due
        ("26 01:30", "2026.10.26-0230"),
    ]


@INTERVALS
def test_the_hour_that_comes_twice_has_two_versions(due, intervals):
    settings = f'schedule = "30 * * * *"\ntimezone = "Europe/Berlin"\n{CRAWL}'
    assert due("crawl", settings, "2026-10-25T00:00Z", "2026-10-25T02:00Z", intervals) == [
        ("25 00:30", "2026.10.25-0230"),
        ("25 01:30", "2026.10.25-0230b"),
    ]


@INTERVALS
@pytest.mark.parametrize(
    ("zone", "first"), [("UTC", "01 00:00"), ("Europe/Berlin", "31 23:00"), ("Asia/Tokyo", "31 15:00")]
)
def test_the_month_in_which_a_run_is_due_is_its_version(due, intervals, zone, first):
    settings = f"{CRAWL}[cycle]\n" + (f'timezone = "{zone}"\n' if zone != "UTC" else "")
    (only,) = due("cycle", settings, "2026-12-31T12:00Z", "2027-01-20T00:00Z", intervals)
    assert only == (first, "2027-01")


@INTERVALS
def test_a_backfilled_or_more_frequent_cycle_is_named_by_its_moment(due, intervals):
    settings = f'{CRAWL}[cycle]\nschedule = "0 3 * * 0"\ntimezone = "America/New_York"\n'
    found = due("cycle", settings, "2026-12-06T00:00Z", "2026-12-14T00:00Z", intervals)
    assert found == [("06 08:00", "2026.12.06-0300"), ("13 08:00", "2026.12.13-0300")]


def test_the_month_of_a_run_that_a_person_starts_is_that_of_its_zone(recipes):
    recipe = Recipe.load(recipes("mine", text=f'name = "mine"\n{CRAWL}[cycle]\ntimezone = "Asia/Tokyo"\n'))
    now = pendulum.datetime(2026, 12, 31, 16)
    run = SimpleNamespace(run_type="manual", run_after=now)
    for logical in (None, now):
        assert month_of(recipe, {"params": {}, "logical_date": logical, "dag_run": run}).version == "2027-01"


def test_a_time_zone_without_a_schedule_is_refused(recipes):
    for settings in (f'timezone = "Asia/Tokyo"\n{CRAWL}', f'{CRAWL}[place.retention]\ntimezone = "Asia/Tokyo"\n'):
        with pytest.raises(RecipeError, match="timezone: it is the zone of a schedule: set the schedule beside it"):
            Recipe.load(recipes("mine", text=f'name = "mine"\n{settings}'))

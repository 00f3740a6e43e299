"""Months of a web that changes: each publishes what is new, and every alert that should ring rings, and no other.

Killed months, and old files that were removed, change nothing of it.
"""

import gzip
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.ledger import Ledger
from tasks.core.store import Store
from tasks.run.monthly.cycle import run_month
from tasks.run.monthly.report import month_report
from tasks.run.place import Retention
from tasks.run.recipe import Recipe
from tasks.run.retention import collect
from tasks.run.runner import open_store
from tasks.run.trace.trace import PageTrace, trace
from tests.kills import finish_despite_kills, rounds
from tests.tasks.run.monthly.simulated import QUARTER, Calendar, Living, SimulatedWeb, recipe_text

pytestmark = pytest.mark.timeout(7200)

KEPT = Retention(versions=2, grace_days=0, warc_months=0)


@contextmanager
def living(folder: Path, calendar: Calendar) -> Iterator[tuple[SimulatedWeb, Path]]:
    """Serves a web; yields it with its recipe."""
    world = SimulatedWeb(calendar)
    with world.serve() as site:
        path = folder / "living.toml"
        path.write_text(recipe_text(site, str(folder / "store")))
        yield world, path


def test_three_months_publish_what_is_new_and_ring_for_what_has_changed(tmp_path: Path) -> None:
    with living(tmp_path, QUARTER) as (world, path):
        recipe = Recipe.load(path)

        def run(version: str) -> None:
            assert not run_month(recipe, version)[1]
            month_report(open_store(recipe), recipe, version)

        months = Living(world, recipe, run)
        months.run(3)
    months.check()


@pytest.mark.soak
def test_a_year_keeps_what_is_new_rings_for_what_has_changed_and_removes_what_nothing_needs(tmp_path: Path) -> None:
    with living(tmp_path, Calendar()) as (world, path):
        recipe = Recipe.load(path)
        store = open_store(recipe)

        def run(version: str) -> None:
            assert not run_month(recipe, version)[1]
            month_report(store, recipe, version)
            removed.update(dict.fromkeys(collect(store, recipe.name, KEPT).removed, version))

        removed: dict[str, str] = {}
        months = Living(world, recipe, run)
        months.run(12)
    months.check()
    assert len(removed) > 50
    check_registered(months)
    check_removed(store, removed)


def check_registered(months: Living) -> None:
    """Every registered model traces to pages of its own and of all earlier months, with the bytes of their captures."""
    models = [one.address.version for one in Ledger(months.store, "living") if one.address.name == "living/model"]
    assert models == months.versions
    for number, version in enumerate(models, 1):
        read = 0
        for month in range(1, number + 1):
            ids = sorted(months.pages[month].values())[:: max(1, len(months.pages[month]) // 4)]
            for found in (trace(months.store, "living", version, one) for one in ids):
                assert isinstance(found, PageTrace)
                (document,) = found.documents
                assert document.capture
                assert document.capture.warc_file
                (file,) = (
                    (one, path)
                    for one in Ledger(months.store, "living")
                    if one.address.name.startswith("living/segment")
                    for path in one.files("")
                    if path.endswith(document.capture.warc_file.rpartition("/")[2])
                )
                assert document.url.encode() in gzip.decompress(file[0].read(file[1]))
                read += bool(document.reading and document.reading.steps)
        assert read or number > 1


def check_removed(store: Store, removed: dict[str, str]) -> None:
    """Whoever reads what was removed gets its name, the date and the reason; its record is still in the ledger."""
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    known = {str(one.address) for one in Ledger(store, "living")}
    assert removed.keys() <= known
    for address in removed:
        artifact = Artifact.open_at(store, ArtifactId.parse(address))
        path = next(entry.path for part in artifact.parts for entry in part.files)
        with pytest.raises(InputError, match=rf"files of {address} were removed on {today} .*no longer needed"):
            artifact.read(path)


@pytest.mark.soak
def test_months_that_are_killed_at_random_moments_publish_the_same(tmp_path: Path) -> None:
    kills = 0
    for number, left in rounds():
        kills += kills_of_three_months(tmp_path / str(number), random.Random(number), left)
        shutil.rmtree(tmp_path / str(number))
    assert kills


def kills_of_three_months(folder: Path, draw: random.Random, left: Callable[[], float]) -> int:
    kills = 0
    folder.mkdir()
    with living(folder, QUARTER) as (world, path):

        def run(version: str) -> None:
            nonlocal kills
            command = [sys.executable, "-m", "tasks", "cycle", "--recipe", str(path), "--version", version]
            kills += finish_despite_kills(command, folder / "store", draw, left())

        months = Living(world, Recipe.load(path), run)
        months.run(3)
    months.check()
    return kills

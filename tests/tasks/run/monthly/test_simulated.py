"""Months of a web that changes: each publishes what is new, and every alert that should ring rings, and no other."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tasks.core import parquet
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.store import Store
from tasks.run.monthly.cycle import run_month
from tasks.run.monthly.report import month_report
from tasks.run.monthly.tables import read_month
from tasks.run.recipe import Recipe
from tasks.run.runner import open_store, run_stage
from tests.tasks.run.monthly import simulated
from tests.tasks.run.monthly.simulated import Address, SimulatedWeb, recipe_text


def a_month_passes(store: Store) -> None:
    """Moves the times of the newest crawl DB back by a month."""
    for path in Path(store.root).glob("living/crawldb/*/*/*.parquet"):
        table = parquet.read(str(path))
        for number, column in enumerate(table.schema):
            if pa.types.is_timestamp(column.type):
                month = pa.scalar(timedelta(days=31), pa.duration("ms")).cast(pa.duration(column.type.unit))
                table = table.set_column(number, column, pc.subtract(table.column(column.name), month))
        pq.write_table(table, path)


def published(store: Store, version: str, before: set[str]) -> dict[Address, str]:
    """The pages that a month has kept and no month before: address -> id; indexes of sites are left out."""
    documents = Artifact.open_at(store, ArtifactId("living/documents", version))
    found = {}
    for path in documents.files("kept/"):
        for row in documents.table(path, ["id", "url"]).to_pylist():
            host, _, name = re.sub(r"^http://|:\d+", "", row["url"]).partition("/")
            if name and row["id"] not in before:
                found[Address(host, f"/{name}")] = row["id"]
    return found


class Living:
    """The months of a simulated web, run one after the other."""

    def __init__(self, folder: Path, world: SimulatedWeb, recipe: Recipe) -> None:
        self.world, self.recipe, self.store = world, recipe, open_store(recipe)
        self.reports: dict[int, dict[str, Any]] = {}
        self.pages: dict[int, dict[Address, str]] = {}
        self.expected: dict[int, set[Address]] = {}

    def run(self, months: int) -> None:
        for _ in range(months):
            self.world.next_month()
            number, version = self.world.month, f"2026-{self.world.month:02}"
            _, ended = run_month(self.recipe, version)
            assert not ended
            self.reports[number] = read_month(month_report(self.store, self.recipe, version))
            known = {one for pages in self.pages.values() for one in pages.values()}
            self.pages[number] = published(self.store, version, known)
            self.expected[number] = set(self.world.expected)
            a_month_passes(self.store)
            if number == simulated.TAKEN_DOWN_IN:
                at = self.world.take_down()
                self.take_down(at)

    def take_down(self, at: Address) -> None:
        """Requests a takedown of a page."""
        port = re.search(r":(\d+)/", self.recipe.field("crawl.seeds")[0])
        assert port
        request = {"takedown.urls": [f"http://{at.host}:{port[1]}{at.path}"], "takedown.reason": "asked"}
        request["takedown.date"] = datetime.now(UTC).isoformat()
        run_stage(self.recipe.override(request), "takedown", version="request")


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Living]:
    folder = tmp_path_factory.mktemp("living")
    world = SimulatedWeb()
    with world.serve() as site:
        path = folder / "living.toml"
        path.write_text(recipe_text(site, folder / "store"))
        yield Living(folder, world, Recipe.load(path))


def alerts(living: Living) -> dict[int, set[tuple[str, str]]]:
    found = {
        number: {(one["kind"], one["what"]) for one in report["alerts"]} for number, report in living.reports.items()
    }
    return {number: of_month for number, of_month in found.items() if of_month}


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_twelve_months_keep_what_is_new_and_ring_for_what_has_changed(living: Living) -> None:
    living.run(12)
    wrong = {number: sorted(pages.keys() ^ living.expected[number]) for number, pages in living.pages.items()}
    assert not {number: pages for number, pages in wrong.items() if pages}
    assert alerts(living) == {
        simulated.FRENCH_FROM: {("new_language", "fr")},
        simulated.LOST_FROM: {("vanished", simulated.LOST)},
        simulated.FARM_FROM: {("drift", "domains")},
    }
    counts = {number: report["history"][-1]["documents"] for number, report in living.reports.items()}
    for number, of_month in counts.items():
        assert of_month["new"] + of_month["changed"] == len(living.expected[number]), f"month {number}"
    assert counts[simulated.TAKEN_DOWN_IN + 1]["forgotten"] == 1
    taken = living.reports[12]["takedowns"]
    assert (taken["in_force"], taken["present"]) == ({"url": 1}, [])
    assert living.world.taken_down not in living.pages[12]

"""A web that changes month by month, on loopback, and what a crawl of it should publish. Not a test module.

Three sites of English pages. Every month each gets new pages; some pages are edited, deleted or copied to another site.
From a month of the calendar on robots.txt forbids a folder of one site, after one a page is taken down, from another on
there are pages in French, then a site loses all its pages, and a farm begins, of pages that are all new and all alike
in kind.
"""

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from aiohttp import web

from tasks.core import parquet
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.store import Store
from tasks.run.monthly.tables import read_month
from tasks.run.recipe import Recipe
from tasks.run.runner import open_store, run_stage
from tests.tasks.stages.crawl.site import Site

SITES = ("alder.localhost", "birch.localhost", "cedar.localhost")
LOST, FARM, FARM_PAGES, CLOSED = "cedar.localhost", "farm.localhost", 60, "/closed/"


@dataclass(frozen=True)
class Calendar:
    """The months in which something happens, and the pages of a site in the first month and in each later one."""

    closed_from: int = 3
    taken_down_after: int = 4
    french_from: int = 5
    lost_from: int = 6
    farm_from: int = 8
    first_pages: int = 12
    new_pages: int = 4

    def alerts(self) -> dict[int, set[tuple[str, str]]]:
        """The alerts that should ring, by month."""
        found: dict[int, set[tuple[str, str]]] = {}
        for month, alert in (
            (self.french_from, ("new_language", "fr")),
            (self.lost_from, ("vanished", LOST)),
            (self.farm_from, ("drift", "domains")),
        ):
            found.setdefault(month, set()).add(alert)
        return found


QUARTER = Calendar(closed_from=2, taken_down_after=1, french_from=2, lost_from=3, farm_from=3)
"""All of it in three months."""
PAIR = Calendar(closed_from=2, taken_down_after=1, french_from=2, lost_from=2, farm_from=2)
"""All of it in two months."""

_WORDS = {
    "en": """the river of the valley and that with have this from water light stone morning people house garden letter
        history country paper winter summer bridge village market evening window school teacher music station road
        island mountain forest journey question answer reason number picture language""",
    "fr": """la rivière de la vallée et que les dans avec pour cette une eau lumière pierre matin maison jardin lettre
        histoire pays hiver été pont village marché soir fenêtre école musique gare route montagne forêt voyage
        question réponse raison nombre image langue être avoir""",
}


class Address(NamedTuple):
    """The address of a page: its site and its path."""

    host: str
    path: str


@dataclass
class SimulatedWeb:
    """The state of the web, and what its crawl should publish in the current month.

    Attributes:
        month: number of the current month, from 1 on.
        pages: texts by address.
        expected: addresses of the pages that the current month should publish.
        taken_down: the address that was taken down, once it was.
    """

    calendar: Calendar = Calendar()
    seed: int = 0
    month: int = 0
    pages: dict[Address, str] = field(default_factory=dict)
    expected: set[Address] = field(default_factory=set)
    taken_down: Address | None = None
    _counter: int = 0
    _fixed: set[Address] = field(default_factory=set)
    """Pages that no longer change: originals and their copies, and what is taken down."""

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)

    def next_month(self) -> None:
        """Changes the web; call it after the current month was crawled."""
        self.month += 1
        before = dict(self.pages)
        if self.month >= self.calendar.lost_from:
            self.pages = {at: text for at, text in self.pages.items() if at.host != LOST}
        sites = [host for host in SITES if host != LOST or self.month < self.calendar.lost_from]
        for host in sites if self.month > 1 else ():
            own = sorted(at for at in self.pages if at.host == host and at not in self._fixed)
            self._edit(own.pop(self._draw.randrange(len(own))))
            del self.pages[own.pop(self._draw.randrange(len(own)))]
        copies = {self._copy(host, before) for host in sites} if self.month > 1 else set()
        for host in sites:
            for _ in range(self.calendar.first_pages if self.month == 1 else self.calendar.new_pages):
                self._add(host, "en")
            self._add(host, "en", CLOSED)
            if self.month >= self.calendar.french_from:
                self._add(host, "fr")
        for _ in range(FARM_PAGES if self.month >= self.calendar.farm_from else 0):
            self._add(FARM, "en")
        changed = {at for at, text in self.pages.items() if before.get(at) != text}
        self.expected = {at for at in changed - copies if self._may_be_read(at)}

    def take_down(self) -> Address:
        """Chooses a published page of the current month; call it between two months."""
        self.taken_down = min(at for at in self.pages if at.host == SITES[0] and at not in self._fixed)
        self._fixed.add(self.taken_down)
        return self.taken_down

    def serve(self) -> "SimulatedSite":
        """Returns a server of all sites."""
        return SimulatedSite(self)

    def html(self, at: Address) -> str | None:
        """Returns a page; a site's index links to all of its pages, that of the first one to the other sites, too."""
        if at.path != "/":
            text = self.pages.get(at)
            return None if text is None else f"<!DOCTYPE html><title>{at.path}</title><p>{text}</p>"
        own = sorted(one.path for one in self.pages if one.host == at.host)
        return (
            f"<!DOCTYPE html><title>Index</title>{''.join(f'<p><a href={path}>{path}</a></p>' for path in own)}"
            if own
            else None
        )

    def robots(self, host: str) -> str:
        """Returns the robots.txt of a site."""
        closed = host == SITES[1] and self.month >= self.calendar.closed_from
        return f"User-agent: *\nDisallow: {CLOSED}\n" if closed else ""

    def _may_be_read(self, at: Address) -> bool:
        return CLOSED not in self.robots(at.host) or CLOSED not in at.path

    def _add(self, host: str, language: str, folder: str = "/") -> None:
        self._counter += 1
        self.pages[Address(host, f"{folder}{language}-{self._counter}.html")] = self._text(language)

    def _edit(self, at: Address) -> None:
        self.pages[at] = self._text("fr" if "/fr-" in at.path else "en")

    def _copy(self, host: str, before: dict[Address, str]) -> Address:
        """Copies a page of last month to another site; from now on neither changes, so that the copy stays one."""
        there = [at for at in before if self.pages.get(at) == before[at] and at not in self._fixed]
        original = self._draw.choice(sorted(at for at in there if at.host != host and CLOSED not in at.path))
        self._counter += 1
        copy = Address(host, f"/copy-{self._counter}.html")
        self.pages[copy] = before[original]
        self._fixed |= {original, copy}
        return copy

    def _text(self, language: str) -> str:
        return " ".join(self._sentences(language))

    def _sentences(self, language: str) -> Iterator[str]:
        for _ in range(self._draw.randint(8, 12)):
            words = self._draw.choices(_WORDS[language].split(), k=self._draw.randint(9, 14))
            yield f"{' '.join(words).capitalize()}."


class SimulatedSite(Site):
    """Serves all sites of a simulated web on one port, by the names of their hosts."""

    def __init__(self, world: SimulatedWeb) -> None:
        super().__init__({})
        self.world = world

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        host = request.host.partition(":")[0]
        if request.path == "/robots.txt":
            return web.Response(text=self.world.robots(host))
        html = self.world.html(Address(host, request.path))
        if html is None:
            return web.Response(status=404, text="not here")
        return web.Response(text=html, content_type="text/html")

    def seeds(self) -> list[str]:
        return [self.url("/", host) for host in (*SITES, FARM)]


def recipe_text(site: SimulatedSite, store: str, place: str = "") -> str:
    """Returns the recipe of the months, with a small model; `place` are further lines of `[place]`."""
    seeds = ", ".join(f'"{seed}"' for seed in site.seeds())
    return f"""
name = "living"
[crawl]
seeds = [{seeds}]
allow_loopback = true
delay_s = 0.0
latency_factor = 0.0
partitions = 1
recrawl = true
max_pages = 1000
[extract]
parts = 1
[annotate]
use = ["language", "gopher_quality", "prose_score", "pii"]
[consolidate]
filters = ["gopher_quality"]
[dedup_index]
enabled = true
[tokenizer]
vocab_size = 320
[encode]
accumulate = true
heldout_share = 0.1
columns = ["fetched_at"]
[pack]
seq_len = 64
[train]
steps = 4
batch_size = 4
mixture = {{ web = 1.0 }}
milestones = 1
[train.model]
layers = 1
dim = 16
heads = 2
kv_heads = 1
[evaluate]
max_tokens = 100000
[promote]
enabled = true
[cycle]
schedule = ""
[place]
store = "{store}"
{place}
[place.train]
nproc = 1
"""


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
    """The months of a simulated web, run one after the other.

    Args:
        world: the web.
        recipe: its recipe.
        run: runs one month of it to its end, report included.
    """

    def __init__(self, world: SimulatedWeb, recipe: Recipe, run: Callable[[str], None]) -> None:
        self.world, self.recipe, self.store, self._run = world, recipe, open_store(recipe), run
        self.reports: dict[int, dict[str, Any]] = {}
        self.pages: dict[int, dict[Address, str]] = {}
        self.expected: dict[int, set[Address]] = {}

    @property
    def versions(self) -> list[str]:
        return [f"2026-{number:02}" for number in self.pages]

    def run(self, months: int) -> None:
        for _ in range(months):
            self.world.next_month()
            number, version = self.world.month, f"2026-{self.world.month:02}"
            self._run(version)
            self.reports[number] = read_month(Artifact.open_at(self.store, ArtifactId("living/month", version)))
            known = {one for pages in self.pages.values() for one in pages.values()}
            self.pages[number] = published(self.store, version, known)
            self.expected[number] = set(self.world.expected)
            a_month_passes(self.store)
            if number == self.world.calendar.taken_down_after:
                self._take_down(self.world.take_down())

    def _take_down(self, at: Address) -> None:
        """Requests a takedown of a page."""
        port = re.search(r":(\d+)/", self.recipe.field("crawl.seeds")[0])
        assert port
        request = {"takedown.urls": [f"http://{at.host}:{port[1]}{at.path}"], "takedown.reason": "asked"}
        request["takedown.date"] = datetime.now(UTC).isoformat()
        run_stage(self.recipe.override(request), "takedown", version="request")

    def check(self) -> None:
        """Every month has published what it should, and exactly the alerts of the calendar rang."""
        wrong = {number: sorted(pages.keys() ^ self.expected[number]) for number, pages in self.pages.items()}
        assert not {number: pages for number, pages in wrong.items() if pages}
        rang = {
            number: {(one["kind"], one["what"]) for one in report["alerts"]} for number, report in self.reports.items()
        }
        assert {number: alerts for number, alerts in rang.items() if alerts} == self.world.calendar.alerts()
        counts = {number: report["history"][-1]["documents"] for number, report in self.reports.items()}
        for number, of_month in counts.items():
            assert of_month["new"] + of_month["changed"] == len(self.expected[number]), f"month {number}"
        assert counts[self.world.calendar.taken_down_after + 1]["forgotten"] == 1
        taken = self.reports[max(self.reports)]["takedowns"]
        assert (taken["in_force"], taken["present"]) == ({"url": 1}, [])
        assert self.world.taken_down not in self.pages[max(self.pages)]

"""A web that changes month by month, on loopback, and what a crawl of it should publish. Not a test module.

Three sites of English pages. Every month each gets new pages; some pages are edited, deleted or copied to another site.
From the third month on robots.txt forbids a folder of one site, in the fourth a page is taken down, from the fifth on
there are pages in French, in the sixth a site loses all its pages, and from the eighth on a farm of pages that are all
new and all alike in kind.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from tests.tasks.stages.crawl.site import Site

SITES = ("alder.localhost", "birch.localhost", "cedar.localhost")
LOST, LOST_FROM = "cedar.localhost", 6
FARM, FARM_FROM, FARM_PAGES = "farm.localhost", 8, 60
CLOSED, CLOSED_FROM = "/closed/", 3
FRENCH_FROM = 5
TAKEN_DOWN_IN = 4
FIRST_PAGES, NEW_PAGES = 12, 4

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
        if self.month >= LOST_FROM:
            self.pages = {at: text for at, text in self.pages.items() if at.host != LOST}
        sites = [host for host in SITES if host != LOST or self.month < LOST_FROM]
        for host in sites if self.month > 1 else ():
            own = sorted(at for at in self.pages if at.host == host and at not in self._fixed)
            self._edit(own.pop(self._draw.randrange(len(own))))
            del self.pages[own.pop(self._draw.randrange(len(own)))]
        copies = {self._copy(host, before) for host in sites} if self.month > 1 else set()
        for host in sites:
            for _ in range(FIRST_PAGES if self.month == 1 else NEW_PAGES):
                self._add(host, "en")
            self._add(host, "en", CLOSED)
            if self.month >= FRENCH_FROM:
                self._add(host, "fr")
        for _ in range(FARM_PAGES if self.month >= FARM_FROM else 0):
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
        closed = host == SITES[1] and self.month >= CLOSED_FROM
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


def recipe_text(site: SimulatedSite, folder: Path, months: int = 3) -> str:
    """Returns the recipe of the months, with a small model."""
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
months = {months}
[place]
store = "{folder}"
[place.train]
nproc = 1
"""

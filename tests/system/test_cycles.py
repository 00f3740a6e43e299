"""Three crawl cycles of the recipe `web` through the real scheduler, over a site that changes between them.

Soak: some minutes. Run it after a change of the crawl DB, of dedup, of consolidate or of the dedup index.

The site has documentation of the interpreter, under names of this module. Pages are due again after days, so
between two cycles the times of the crawl DB are moved back by a month.
"""

import re
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tasks.core import parquet
from tasks.core.artifact import Artifact
from tasks.demo import site
from tasks.demo.drive import DagChain
from tasks.demo.site import SitePage

pytestmark = pytest.mark.soak

HOST = "changing.localhost"
FILES = [
    {"name": "code", "kind": "text", "path": "{stdlib}/json/*.py"},
    {"name": "packages", "kind": "metadata", "path": "{site_packages}/p*.dist-info/METADATA"},
]
"""What every version reads again."""
Cycle = dict[str, Any]


def rows(artifact: Artifact, folder: str) -> list[dict[str, Any]]:
    return [row for path in artifact.files(folder) for row in artifact.table(path).to_pylist()]


class Site:
    """The site: pages by name, and an index that links to them."""

    def __init__(self, bodies: list[bytes], server: site.SiteHost) -> None:
        self._bodies = bodies
        self._server = server
        self._held: dict[str, tuple[int, int | None]] = {}

    def put(self, name: str, body: int, more: int | None = None) -> None:
        """Serves a body under a name, with a paragraph of words of another one appended."""
        self._held[name] = (body, more)
        self._publish()

    def remove(self, name: str) -> None:
        del self._held[name]
        self._publish()

    def url(self, name: str) -> str:
        return f"http://{HOST}:{self._server.server_address[1]}/{name}.html"

    def _publish(self) -> None:
        links = "".join(f'<p><a href="/{name}.html">{name}</a></p>' for name in sorted(self._held))
        pages = {"/": f"<!DOCTYPE html><title>Index</title>{links}".encode()}
        for name, (body, more) in self._held.items():
            added = b"" if more is None else b"<p>" + re.sub(rb"<[^>]*>", b" ", self._bodies[more])[-3000:] + b"</p>"
            pages[f"/{name}.html"] = self._bodies[body].replace(b"</body>", added + b"</body>")
        now = int(time.time())
        self._server.pages = {
            path: SitePage(path, body, f'"{hash((path, body)):x}"', now) for path, body in pages.items()
        }


@pytest.fixture(scope="module")
def changing(stack, smoke) -> Iterator[Site]:
    """The running site; its bodies are distinct pages that the recipe `smoke` has kept."""
    kept = [row["url"] for row in rows(stack.artifact("smoke/documents"), "kept/") if row["source"] == "web"]
    hosts = site.load(site.render_site(stack.home.root / "site"), {})
    bodies = [
        hosts[url.partition("//")[2].partition(".")[0]][f"/{url.rpartition('/')[2]}"].body
        for url in sorted(kept)
        if url.endswith(".html")
    ]
    assert len(bodies) >= 10, kept
    with site.SiteHost(0, {}) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Site(bodies, server)
        server.shutdown()


@pytest.fixture(scope="module")
def cycles(stack, changing: Site) -> list[Cycle]:
    """Runs the three cycles; returns the artifacts of each."""
    for name, body in (("a", 0), ("b", 1), ("c", 2), ("d", 3), ("e", 4)):
        changing.put(name, body)
    made = [cycle(stack, changing, "c1")]

    changing.put("f", 5)  # added
    changing.put("b", 1, more=9)  # now has more text
    changing.put("mirror", 2)  # of c
    changing.remove("d")
    made.append(cycle(stack, changing, "c2"))

    changing.put("g", 6)
    changing.put("mirror-of-new", 5)  # of a page added in the second cycle
    changing.remove("c")
    made.append(cycle(stack, changing, "c3"))
    return made


def cycle(stack, changing: Site, version: str) -> Cycle:
    """Runs crawl and corpus, the second triggered by the asset of the first, and simulates a month."""
    overrides = {
        "crawl.seeds": [changing.url("").replace(".html", "")],
        "crawl.allow_loopback": True,
        "crawl.delay_s": 0.05,
        "extract.files": FILES,
        "consolidate.limits.gopher_quality.min_letters": 0.5,
    }
    chain = DagChain(stack.airflow, "web", ("crawl", "corpus"))
    chain.wait_for_dags()
    stack.pause("web.tokens", True)
    chain.start({"version": version, "overrides": overrides})
    deadline = time.monotonic() + 900
    for _ in chain.follow():
        assert time.monotonic() < deadline
    kinds = ("extracted", "duplicates", "documents", "dedup_index")
    found: Cycle = {kind: stack.artifact(f"web/{kind}", version) for kind in kinds}
    for path in (stack.home.root / "store" / "web" / "crawldb").glob(f"*/{version}/urls.parquet"):
        set_back(path)
    return found


def set_back(path: Path) -> None:
    """Moves the times of a crawl DB back by a month."""
    table = parquet.read(str(path))
    month = pa.scalar(timedelta(days=31), pa.duration("ms"))
    for field in table.schema:
        if pa.types.is_timestamp(field.type):
            earlier = pc.subtract(table.column(field.name), month.cast(pa.duration(field.type.unit)))
            table = table.set_column(table.schema.get_field_index(field.name), field, earlier)
    pq.write_table(table, path)


def pages(made: Cycle, folder: str) -> dict[str, dict[str, Any]]:
    """Returns the rows of the pages of the site by name, without the index."""
    found = (row for row in rows(made["documents"], folder) if row["source"] == "web")
    named = {row["url"].rpartition("/")[2].removesuffix(".html"): row for row in found}
    return {name: row for name, row in named.items() if name}


def went(made: Cycle) -> dict[str, str]:
    return {name: row["reason"] for name, row in pages(made, "rejected/").items()}


def files(made: Cycle) -> set[str]:
    return {row["id"] for row in rows(made["documents"], "kept/") if row["source"] != "web"}


def test_each_cycle_keeps_new_and_changed_pages(cycles) -> None:
    assert [{*pages(made, "kept/")} for made in cycles] == [{"a", "b", "c", "d", "e"}, {"b", "f"}, {"g"}]


def test_files_that_every_version_reads_are_kept_by_every_version(cycles) -> None:
    first, second, third = map(files, cycles)
    assert first == second == third != set()


def test_mirrors_of_earlier_documents_are_rejected_as_duplicates(cycles) -> None:
    assert [went(made) for made in cycles] == [{}, {"mirror": "duplicate_exact"}, {"mirror-of-new": "duplicate_exact"}]
    mirror, original = pages(cycles[1], "rejected/")["mirror"], pages(cycles[0], "kept/")["c"]
    assert mirror["duplicate_of"] == original["id"]
    assert cycles[2]["duplicates"].record.metrics["duplicates_of/c2"] == 1


def test_the_new_text_of_a_page_replaces_the_old_one(cycles) -> None:
    old, new = pages(cycles[0], "kept/")["b"], pages(cycles[1], "kept/")["b"]
    (gone,) = rows(cycles[1]["documents"], "replaced/")
    assert (gone["id"], gone["reason"], gone["replaced_by"]) == (old["id"], "duplicate_page", new["id"])
    assert rows(cycles[2]["documents"], "replaced/") == []


def test_the_funnel_of_each_cycle_accounts_for_exactly_its_captures(cycles) -> None:
    for made in cycles:
        captured = made["extracted"].record.rows_in
        funnel = made["documents"].table("funnel.parquet").to_pylist()
        assert sum(row["documents"] for row in funnel) == captured
    documents = [made["duplicates"].record.metrics["documents"] for made in cycles]
    assert documents[1] < documents[0]
    assert documents[2] < documents[0]


def test_the_index_has_the_documents_of_all_cycles(cycles) -> None:
    metrics = [made["dedup_index"].record.metrics for made in cycles]
    assert [one["documents"] - len(files(cycles[0])) for one in metrics] == [5, 6, 7]
    assert [one["left"] for one in metrics] == [0, 1, 0]
    assert [one["added"] for one in metrics[1:]] == [2, 1], "a cycle adds what is new"
    refs = [{ref.address for ref in made["dedup_index"].record.inputs} for made in cycles]
    assert "web/dedup_index@c1" in refs[1]
    assert "web/dedup_index@c2" in refs[2]

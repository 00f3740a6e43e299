"""A page whose site spells its URL in another way than its requester: one fetch, and a takedown that finds it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.store import Store
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.runner import open_store, run_stage
from tasks.run.shell import main
from tasks.run.trace.audit import audit
from tasks.run.trace.trace import trace
from tasks.run.tracking import TrackingContext
from tasks.stages.crawl.why import why
from tests.tasks.run.test_adopted import REFINE, TOKENS
from tests.tasks.stages.crawl.site import Site

CYCLE = ("inject", "rank", "generate", "fetch", "render", "update", "publish")
LOWER, TILDE, OLD, NEW = "/%d9%85%d8%b1/", "/%7Eann/", "/%2dold/", "/-old/"


def text(name: str) -> str:
    return f"<html><title>{name}</title><body><p>the and of {' '.join(f'{name}{n}' for n in range(90))}.</p>"


def moved(request):
    from aiohttp import web

    return web.Response(status=301, headers={"Location": NEW})


def site() -> Site:
    """Serves a page in lower-case escapes alone, which two pages link to in two spellings, and one that moved."""
    links = f"<a href='{LOWER}'>one</a> <a href='{TILDE}'>ann</a> <a href='{OLD}'>old</a> <a href=/menu>menu</a>"
    menu = f"<a href='{LOWER.upper()}'>same</a> <a href='/~ann/'>ann</a> <a href='{LOWER}?q=%26'>other</a>"
    pages = {"/": text("home") + links, "/menu": text("menu") + menu, f"{LOWER}?q=%26": text("query")}
    return Site({**pages, LOWER: text("page"), TILDE: text("ann"), OLD: moved, NEW: text("new")})


def recipe_for(folder: Path, seed: str) -> Recipe:
    return find_recipe("smoke").override(
        {
            "place.store": str(folder / "store"),
            "place.mlflow": "",
            "crawl.seeds": [seed],
            "crawl.allow_loopback": True,
            "crawl.delay_s": 0.0,
            "crawl.latency_factor": 0.0,
            "crawl.partitions": 1,
            "extract.files": [],
            "canary.current": {"web": 1.0},
            "canary.anchors": [],
            "canary.arms": 0,
            "annotate.use": ["gopher_quality", "gopher_repetition", "prose_score", "pii"],
            "consolidate.filters": [],
            "consolidate.limits": {},
            "consolidate.sources": ["web"],
            "tokenizer.vocab_size": 300,
            "pack.seq_len": 16,
            "encode.heldout_share": 0.0,
        }
    )


def made(recipe: Recipe, stages: tuple[str, ...], version: str, source: str | None = None) -> None:
    for stage in stages:
        member, tracking = "p0" if stage in CYCLE[2:6] else "", TrackingContext("", recipe.name)
        run_stage(recipe, stage, version=version, source_version=source, member=member, tracking=tracking)


def kept(store: Store, version: str) -> set[str]:
    documents = Artifact.open_at(store, ArtifactId("smoke/documents", version))
    return {url for path in documents.files("kept/") for url in documents.table(path, ["url"])["url"].to_pylist()}


@pytest.fixture(scope="module")
def crawled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Recipe, Site]]:
    folder = tmp_path_factory.mktemp("spelled")
    with site() as served:
        recipe = recipe_for(folder, served.url())
        made(recipe, (*CYCLE, *REFINE, *TOKENS), "1")
        yield recipe, served


def test_only_one_spelling_of_a_page_is_requested_as_its_page_wrote_it(crawled: tuple[Recipe, Site]) -> None:
    recipe, served = crawled
    paths = [path for path in served.paths() if path not in ("/robots.txt", "/.well-known/tdmrep.json")]
    assert sorted(paths) == sorted(["/", "/menu", LOWER, f"{LOWER}?q=%26", TILDE, OLD, NEW])
    # The crawl DB has the spelling to which a site redirects.
    want = {served.url(path) for path in ("/", "/menu", LOWER, f"{LOWER}?q=%26", TILDE, NEW)}
    assert kept(open_store(recipe), "1") == want
    facts = why(open_store(recipe), "smoke", recipe.crawl, served.url("/مر/"))
    assert facts["known"]["status"] == "db_fetched"


def test_a_takedown_in_the_readers_spelling_removes_the_page(crawled: tuple[Recipe, Site], capsys, caplog) -> None:
    recipe, served = crawled
    store, asked = open_store(recipe), served.url("/مر/")
    (before,) = trace(store, "smoke", "1", asked).to_json()["documents"]
    assert (before["url"], before["fate"]) == (served.url(LOWER), "kept")
    request = ["takedown", "--recipe", recipe.text, "--url", asked, "--url", served.url("/%D9%85%D8%B3/")]
    assert main([*request, "--date", "2026-11-21T09:30:15+00:00"]) == 0
    result = json.loads(capsys.readouterr().out)
    # The misspelled one is said, with the right ones.
    assert result["metrics"]["unmatched"] == 1.0
    (line,) = [record.getMessage() for record in caplog.records if "matches no record" in record.getMessage()]
    assert "/%D9%85%D8%B3/" in line
    assert f"the nearest: {served.url(LOWER)}" in line
    checked = audit(store, "smoke").to_json()["checked"]
    assert {check["kind"]: check["present"] for check in checked} == {"crawldb": 1, "documents": 1, "plan": 1}
    made(recipe, (*REFINE, *TOKENS), "2", "1")
    made(recipe, CYCLE, "3")
    assert kept(store, "1") - kept(store, "2") == {served.url(LOWER)}
    checked = audit(store, "smoke").to_json()["checked"]
    assert {check["kind"]: check["present"] for check in checked} == {"crawldb": 0, "documents": 0, "plan": 0}
    for spelling in (asked, served.url(LOWER), served.url(LOWER.upper())):
        (after,) = trace(store, "smoke", "2", spelling).to_json()["documents"]
        assert (after["url"], after["fate"], after["reason"]) == (served.url(LOWER), "rejected", "takedown")
    facts = why(store, "smoke", recipe.crawl, served.url(LOWER.upper()))
    assert facts["obstacles"][0]["by"] == "takedown"

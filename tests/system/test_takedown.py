"""A takedown through the real Airflow: requested in the form during a training, and respected by later stages.

Soak: many minutes. A version runs from seeds to a model; a longer training of its tokens runs while the form is sent;
the next version runs from seeds to a model again. Run it after a change of the takedown, the crawl, the plan or the
trainer.

The domain is a host of this module, which counts its requests.
"""

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tasks.core.artifact import Artifact
from tasks.core.ledger import versions_of
from tasks.core.stage import SCRATCH
from tasks.core.store import Store
from tasks.demo import site
from tasks.demo.drive import DagChain
from tasks.formats.documents.tombstones import TAKEDOWN
from tasks.formats.tokens import marks
from tasks.formats.web.url import authority
from tasks.run.trace.audit import audit
from tasks.run.trace.trace import trace
from tests.system.browser import logged_in, needs_chromium, trigger
from tests.waiting import until

pytestmark = [pytest.mark.soak, needs_chromium]

DOMAIN = "leaving.localhost"
STEPS, EVERY, MILESTONES = 2_000, 50, 5
BACK = (
    "https://www.leaving.localhost/returned",
    "http://deep.below.leaving.localhost:8080/returned",
    "HTTP://Leaving.Localhost/returned?again",
)
"""Addresses of the domain in a file that comes from elsewhere."""


class Handler(site.Handler):
    """Pages of the demo's site; records requests."""

    server: "Host"

    def do_GET(self) -> None:
        """Serves a page, and counts it."""
        self.server.requests.append(self.path)
        super().do_GET()

    do_HEAD = do_GET


class Host(site.SiteHost):
    """The host that is taken down, on a separate port."""

    def __init__(self, pages: dict[str, site.SitePage]) -> None:
        self.requests: list[str] = []
        super().__init__(0, pages)
        self.RequestHandlerClass = Handler

    @property
    def seed(self) -> str:
        """The URL of its index."""
        return f"http://{DOMAIN}:{self.server_address[1]}/"


@dataclass
class Trained:
    """The training during which the form was sent.

    Attributes:
        takedown: the artifact of the form.
        report: its `report.json`.
        log: lines of the task's log.
        during: `withheld.json` of the run's folder during the run.
        checkpoint: its result.
    """

    takedown: Artifact
    report: dict[str, Any]
    log: list[str]
    during: list[dict[str, Any]]
    checkpoint: Artifact


@pytest.fixture(scope="module")
def host(stack) -> Iterator[Host]:
    """The host, running."""
    pages = site.load(site.render_site(stack.home.root / "site"), {})["topics"]
    with Host(pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def seeds(stack, host) -> dict[str, Any]:
    """The override of the seeds: a host of the stack's site, and the one that is taken down."""
    return {"crawl.seeds": [site.address("library", stack.home.ports.site), host.seed]}


@pytest.fixture(scope="module")
def first(stack, host, seeds) -> Artifact:
    """The model of the first version, `dev`."""
    chain(stack, {"overrides": seeds})
    assert host.requests
    return stack.artifact("leaving/checkpoint")


@pytest.fixture(scope="module")
def trained(stack, first) -> Trained:
    """A longer training of the first version's tokens, and the takedown requested meanwhile in the form."""
    longer = {"train.steps": STEPS, "train.checkpoint_every": EVERY, "train.milestones": MILESTONES}
    conf = {"version": "long", "source_version": "dev", "overrides": longer}
    stack.pause("leaving.takedown", False)
    with logged_in(stack) as page:
        run_id = stack.airflow.trigger("leaving.pretrain", conf)
        task = stack.running("leaving.pretrain", run_id, "train")
        store = stack.home.root / "store"
        folder = store / "leaving" / "checkpoint" / "long"
        until((folder / "checkpoints" / f"step-{STEPS // MILESTONES:08d}").exists, 300)
        trigger(stack, page, "leaving.takedown", {"takedown.domains": DOMAIN, "takedown.reason": "asked for"})
    marked = until(lambda: list((folder / SCRATCH).rglob(marks.FILE)), 300)
    during = json.loads(marked[0].read_text())
    state = stack.airflow.run("leaving.pretrain", run_id)["state"]
    assert state == "running", "it has ended before the takedown: give it more steps"
    stack.finished("leaving.pretrain", run_id)
    (run,) = stack.airflow.pages("/dags/leaving.takedown/dagRuns", "dag_runs")
    stack.finished("leaving.takedown", run["dag_run_id"])
    (takedown,) = versions_of(Store(str(store)), "leaving/takedown")
    log = [str(line.get("event", "")) for line in stack.airflow.log(task)]
    report = json.loads(takedown.read("report.json"))
    return Trained(takedown, report, log, during, stack.artifact("leaving/checkpoint", "long"))


@pytest.fixture(scope="module")
def after(stack, host, seeds, trained, tmp_path_factory: pytest.TempPathFactory) -> int:
    """The next version, `next`, with two more sources that have the domain; returns the requests to the host."""
    folder = tmp_path_factory.mktemp("from-elsewhere")
    texts = [row["text"] for row in kept(stack.artifact("leaving/documents")) if DOMAIN in row["url"]]
    rows = [{"url": url, "text": text} for url, text in zip((*BACK, "https://elsewhere.example/"), texts, strict=False)]
    (folder / "dump.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    archive = stack.home.root / "store" / "leaving" / "segment"
    files = [
        {"name": "code", "kind": "text", "path": "{stdlib}/json/*.py"},
        {"name": "packages", "kind": "metadata", "path": "{site_packages}/p*.dist-info/METADATA"},
        {"name": "archive", "kind": "warc", "path": f"{archive}/*/dev/warc/*"},
        {"name": "dump", "kind": "jsonl", "path": f"{folder}/*.jsonl"},
    ]
    before = len(host.requests)
    chain(stack, {"version": "next", "source_version": "dev", "overrides": {**seeds, "extract.files": files}})
    return len(host.requests) - before


def chain(stack, conf: dict[str, Any]) -> None:
    """Runs the recipe from its crawl to its model."""
    run = DagChain(stack.airflow, "leaving")
    run.wait_for_dags()
    run.start(conf)
    deadline = time.monotonic() + 900
    for _ in run.follow():
        assert time.monotonic() < deadline


def kept(documents: Artifact) -> list[dict[str, Any]]:
    return [row for path in documents.files("kept/") for row in documents.table(path).to_pylist()]


def of_domain(url: str) -> bool:
    return authority(url.lower()).split(":")[0].endswith(DOMAIN)


def test_a_running_training_withholds_the_domain_from_a_checkpoint_on(trained) -> None:
    (mark,) = marks.of_run(trained.checkpoint)
    assert 0 < mark.step < STEPS
    assert mark.step % EVERY == 0
    assert mark.takedowns == (str(trained.takedown.address),)
    assert trained.during == marks.plain([mark])
    count = sum(map(len, mark.rows.values()))
    said = f"from step {mark.step} on {count} documents are withheld: {trained.takedown.address}"
    assert any(said in line for line in trained.log), trained.log[-20:]


def test_trace_counts_no_step_after_the_mark(trained) -> None:
    (mark,) = marks.of_run(trained.checkpoint)
    store = trained.checkpoint.store
    found = trace(store, "leaving", "long", f"domain:{DOMAIN}").to_json()["documents"]
    read = [document for document in found if document["steps"]]
    assert read
    for document in read:
        assert document["withheld_from"] == mark.step
        assert max(document["steps"]) < mark.step
    # In the order without the takedown: the first later step of one of their sequences.
    later = range(mark.step, STEPS)
    pieces = (
        piece
        for step in later
        for sequence in trace(store, "leaving", "long", f"step:{step}").to_json()["sequences"]
        for piece in sequence["slices"]
    )
    met = next(piece for piece in pieces if of_domain(piece["url"]))
    assert met["withheld"]
    assert met["text"] == ""


def test_the_report_names_the_models_that_read_the_domain(first, trained) -> None:
    listed = {one["artifact"]: one for one in trained.report["artifacts"]}
    before = listed["leaving/checkpoint@dev"]
    seen = trace(first.store, "leaving", "dev", f"domain:{DOMAIN}").to_json()["documents"]
    assert before["steps"] == len({step for document in seen for step in document["steps"]}) > 0
    assert before["checkpoints"] == sorted({step for document in seen for step in document["checkpoints"]})
    assert trained.report["unfinished"] == ["leaving/checkpoint@long"]


def test_the_audit_names_the_steps_that_read_the_domain(trained) -> None:
    (mark,) = marks.of_run(trained.checkpoint)
    models = {one["artifact"]: one for one in audit(trained.checkpoint.store, "leaving").to_json()["models"]}
    longer = models["leaving/checkpoint@long"]
    assert longer["last_step"] < mark.step
    assert longer["checkpoints"][0] == STEPS // MILESTONES


def test_the_next_crawl_cycle_makes_no_request_to_the_domain(stack, after) -> None:
    assert after == 0
    manifest = stack.artifact("leaving/warc", "next")
    assert manifest.record.rows_out > 0
    assert not re.search(DOMAIN, manifest.read("index.cdxj").decode())


def test_its_documents_are_also_refused_from_files(stack, after) -> None:
    documents = stack.artifact("leaving/documents", "next")
    gone = [row for path in documents.files("rejected/") for row in documents.table(path).to_pylist()]
    back = Counter(row["source"] for row in gone if of_domain(row["url"]))
    assert {row["reason"] for row in gone if of_domain(row["url"])} == {TAKEDOWN}
    assert back["dump"] == len(BACK)
    assert back["archive"] > 0
    assert "https://elsewhere.example/" in {row["url"] for row in kept(documents)}
    assert not [row["url"] for row in kept(documents) if of_domain(row["url"])]
    shown = {
        row["source"]: row["documents"]
        for row in documents.table("funnel.parquet").to_pylist()
        if row["reason"] == TAKEDOWN
    }
    assert shown == back


def test_the_next_plan_and_model_have_no_token_of_the_domain(stack, after) -> None:
    store = stack.artifact("leaving/plan", "next").store
    found = trace(store, "leaving", "next", f"domain:{DOMAIN}").to_json()
    assert found["count"] == 0
    again = trace(store, "leaving", "next", "https://www.leaving.localhost/returned").to_json()
    assert [(one["fate"], one["reason"]) for one in again["documents"]] == [("rejected", TAKEDOWN)]


def test_the_audit_finds_no_trace_of_the_domain(stack, after) -> None:
    store = stack.artifact("leaving/plan", "next").store
    found = audit(store, "leaving").to_json()
    assert found["absent"], found["checked"]
    assert {one["artifact"] for one in found["checked"]} == {
        "leaving/crawldb/p0@next",
        "leaving/crawldb/p1@next",
        "leaving/documents@next",
        "leaving/plan@next",
    }
    assert "leaving/checkpoint@next" not in {one["artifact"] for one in found["models"]}
    (listed,) = found["takedowns"]
    assert (listed["new"], listed["reason"]) == ({"domain": 1}, "asked for")

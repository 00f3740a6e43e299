"""The stage `takedown`: adds to the active takedowns, refuses unusable requests, reports matches."""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.errors import InputError, RecipeError
from tasks.core.removal import remove_files
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.formats.documents.tombstones import Tombstones, in_force
from tasks.formats.tokens.exposure import checkpoint_exposure
from tasks.formats.tokens.marks import covered_entries
from tasks.run.recipe import find_recipe
from tasks.run.trace.audit import audit
from tasks.stages.takedown import TakedownConfig
from tasks.trainer.config import OptimConfig, TrainConfig
from tasks.trainer.model.config import ModelConfig
from tests.conftest import run_stage_in
from tests.corpora import corpus, documents_in, kept_document, tokens_in
from tests.taken_down import take_down
from tests.tasks.run.test_trace import reading

ROWS = corpus(60)
COPY = kept_document("https://elsewhere.net/copy", "a copy")


def report_of(takedown: Artifact) -> dict[str, Any]:
    return json.loads(takedown.read("report.json"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Artifact]:
    """A store with documents, tokens and a trained model."""
    folder = tmp_path_factory.mktemp("trained")
    verdict = {"reason": "duplicate_near", "reasons": ["duplicate_near"], "language": "en"}
    documents_in(folder, ROWS, 3, [{**COPY, **verdict, "duplicate_of": ROWS[0]["id"]}])
    made = tokens_in(folder, ROWS)
    config = TrainConfig(
        model=ModelConfig(layers=1, dim=16, heads=2, kv_heads=1), optim=OptimConfig(warmup_steps=2), steps=20,
        batch_size=4, microbatch=4, checkpoint_every=10, milestones=2,
    )  # fmt: skip
    inputs = {"shards": made.shards, "plan": made.plan}
    return folder, made, run_stage_in(folder, "tasks.stages.train.stage", config, inputs, kind="checkpoint")


def test_the_report_names_documents_artifacts_and_the_exact_steps_that_read_them(trained: tuple) -> None:
    folder, made, checkpoint = trained
    wanted = [row for row in ROWS if "//h1.org/" in row["url"]] + [ROWS[0]]
    takedown = take_down(folder, "met", domains="h1.org", urls=f"{ROWS[0]['url']}\nhttp://never.net/", reason="asked")
    found = report_of(takedown)
    assert {entry["id"] for entry in found["found"]} == {row["id"] for row in wanted}
    assert [entry["kind"] for entry in found["artifacts"]] == ["documents", "shards", "plan", "checkpoint"]
    assert [entry["documents"] for entry in found["artifacts"][:2]] == [len(wanted)] * 2
    steps, *_ = reading(made, checkpoint)
    read_by = sorted(set().union(*(steps[row["id"]] for row in wanted)))
    trained_on = found["artifacts"][-1]
    assert (trained_on["steps"], trained_on["first_step"], trained_on["last_step"]) == (
        len(read_by),
        read_by[0],
        read_by[-1],
    )
    assert trained_on["checkpoints"] == [count for count in (10, 20) if read_by[0] < count]
    rows = takedown.table("found.parquet").to_pylist()
    for row in (row for row in rows if row["kind"] == "checkpoint"):
        assert row["steps"] == sorted(steps[row["id"]])
    assert found["not_found"] == ["http://never.net/"]
    assert [entry["url"] for entry in found["copies"]] == [COPY["url"]]


def test_documents_from_folders_are_taken_down_and_lifted_by_their_file_urls(tmp_path: Path) -> None:
    file, row, other = "file://code/json/tool.py", "file://dump/part.jsonl.zst#7", "file://dump/part.jsonl.zst#8"
    rows = [kept_document(url, ROWS[0]["text"], url.split("/")[2]) for url in (file, row, other)]
    documents_in(tmp_path, rows)
    made = tokens_in(tmp_path, rows)
    takedown = take_down(tmp_path, urls=f"{file}\n{row}\nfile://code/none.py")
    found = report_of(takedown)
    assert {entry["url"] for entry in found["found"]} == {file, row}
    assert {entry["kind"]: entry["documents"] for entry in found["artifacts"]} == {
        "documents": 2, "shards": 2, "plan": 2,
    }  # fmt: skip
    assert found["not_found"] == ["file://code/none.py"]
    assert covered_entries(made.shards, Tombstones.read([takedown])).column("url").to_pylist() == [file, row]
    lifted = take_down(tmp_path, "t2", takedown, lift=file)
    assert Tombstones.read([lifted]).urls == {row, "file://code/none.py"}


def test_a_page_that_was_dropped_as_a_copy_leads_to_the_published_document(trained: tuple) -> None:
    folder, *_ = trained
    takedown = take_down(folder, "copied", documents=COPY["id"], reason="asked")
    (published,) = report_of(takedown)["published_copies"]
    assert published == {
        "artifact": "test/documents@dev", "id": ROWS[0]["id"], "url": ROWS[0]["url"], "copy": COPY["id"],
    }  # fmt: skip
    assert f"<pre>{ROWS[0]['id']}" in takedown.read("report.html").decode()
    both = take_down(folder, "both", documents=f"{COPY['id']}\n{ROWS[0]['id']}", reason="asked")
    assert report_of(both)["published_copies"] == []
    later = take_down(folder, "later", take_down(folder, "keeper", documents=ROWS[0]["id"]), documents=COPY["id"])
    assert report_of(later)["published_copies"] == [], "what an earlier request took down is published no more"


def test_the_audit_names_affected_models_and_the_report_unfinished_ones(trained: tuple) -> None:
    folder, _, checkpoint = trained
    store = Store(str(folder))
    with store.write("test/checkpoint/running/.epochs/000001.json") as file:
        file.write(b"{}")
    before = take_down(folder, "audited", *in_force(store, "test"), domains="h2.org")
    (listed,) = audit(store, "test").to_json()["models"]
    assert listed["artifact"] == str(checkpoint.address)
    assert listed["checkpoints"] == [10, 20]
    assert "test/checkpoint@dev                      has read " in audit(store, "test").text()
    assert report_of(before)["unfinished"] == ["test/checkpoint@running"]
    assert "test/checkpoint@running: they leave these out" in before.read("report.html").decode()


def test_a_page_with_deleted_lineage_is_reported_as_unknown(trained: tuple, tmp_path: Path) -> None:
    made = tokens_in(tmp_path, ROWS)
    made.shards.remove()
    found = report_of(take_down(tmp_path, domains="h1.org"))
    assert [(entry["kind"], bool(entry["problem"])) for entry in found["artifacts"]] == [
        ("documents", False),
        ("plan", True),
    ]


def test_a_checkpoint_in_the_middle_of_a_run_has_learned_from_the_steps_before_it(trained: tuple) -> None:
    page = Tombstones(domains=frozenset({"h1.org"}))
    whole, half = (checkpoint_exposure(trained[2], page, until=until) for until in (None, 10))
    assert {number for row in whole.rows for number in row["checkpoints"]} == {10, 20}
    assert {number for row in half.rows for number in row["checkpoints"]} == {10}
    assert max(step for row in half.rows for step in row["steps"]) < 10 <= max(whole.rows[0]["steps"])


def test_an_exposure_says_which_missing_record_makes_it_incomplete(trained: tuple, tmp_path: Path) -> None:
    shutil.copytree(trained[0], tmp_path / "store")
    store = Store(str(tmp_path / "store"))
    Artifact.open_at(store, trained[1].plan.address).remove()
    checkpoint = Artifact.open_at(store, trained[2].address)
    found = checkpoint_exposure(checkpoint, Tombstones(domains=frozenset({"h1.org"})))
    assert (found.rows, "test/plan@dev" in found.problem) == ([], True)


def test_a_takedown_contains_all_earlier_ones_with_requester_and_date(tmp_path: Path) -> None:
    first = take_down(tmp_path, "t1", urls="HTTP://Example.org:80/a/../b#x\n\nhttp://c.net/", requested_by="Ann")
    again = {
        "urls": "http://example.org/b",
        "documents": "AB" * 16,
        "requested_by": "Bob",
        "date": "2026-12-01T00:00:00",
    }
    second = take_down(tmp_path, "t2", first, **again)
    rows = {row["value"]: row for row in second.table("tombstones.parquet").to_pylist()}
    assert list(rows) == ["ab" * 16, "http://c.net/", "http://example.org/b"]
    assert (rows["http://example.org/b"]["requested_by"], rows["ab" * 16]["requested_by"]) == ("Ann", "Bob")
    assert rows["http://example.org/b"]["takedown"] == "test/takedown@t1"
    assert report_of(second)["known"] == 1
    assert second.record.rows_in == second.record.rows_out == 3


def test_a_lift_is_recorded_and_a_later_request_is_in_force_again(tmp_path: Path) -> None:
    first = take_down(tmp_path, "t1", urls="http://a.net/x", domains="wrong.net\nb.net", documents="ab" * 16)
    lines = "HTTP://A.net:80/x\nWRONG.net\n" + "AB" * 16
    second = take_down(tmp_path, "t2", first, lift=lines, reason="a slip", requested_by="Ann")
    assert [row["value"] for row in second.table("tombstones.parquet").to_pylist()] == ["b.net"]
    lifted = second.table("lifted.parquet").to_pylist()
    assert [row["value"] for row in lifted] == ["ab" * 16, "wrong.net", "http://a.net/x"]
    assert lifted[1] == {
        "kind": "domain", "value": "wrong.net", "takedown": "test/takedown@t1", "reason": "a slip",
        "requested_by": "Ann", "date": "2026-11-21T09:30:00+00:00", "lifted_by": "test/takedown@t2",
    }  # fmt: skip
    assert [one["value"] for one in report_of(second)["lifted"]] == ["ab" * 16, "wrong.net", "http://a.net/x"]
    assert "3 lifted" in report_of(second)["summary"]
    third = take_down(tmp_path, "t3", second, domains="wrong.net")
    assert [row["value"] for row in third.table("tombstones.parquet").to_pylist()] == ["b.net", "wrong.net"]
    assert third.table("lifted.parquet").to_pylist() == lifted
    with pytest.raises(InputError, match=r'takedown\.lift, line 2: "sub\.wrong\.net" is not in force'):
        take_down(tmp_path, "t4", third, lift="b.net\nsub.wrong.net")
    with pytest.raises(InputError, match=r"takedown\.lift: the request also takes down b\.net"):
        take_down(tmp_path, "t4", third, lift="b.net", domains="b.net")


TYPED = "https://www.h1.org/%c3%a9t%c3%a9/%7eann"


@pytest.mark.parametrize(
    ("request_", "unmatched"),
    [
        ({"urls": "http://h1.org/été/~ann\nhttp://me@h1.org:80/%C3%A9t%C3%A9/~ann#top"}, None),
        ({"urls": "http://h1.org/Été/~ann"}, [TYPED]),
        ({"urls": "http://www.h1.org/ete/ann/"}, [TYPED]),
        ({"urls": "https://hl.org/x"}, ["h1.org", "www.h1.org"]),
        ({"urls": "https://quite-another.net/"}, []),
        ({"urls": "https://copies.net/copy"}, None),
        ({"urls": "file://code/tool.py"}, ["file://code/Tool.py"]),
        ({"domains": "hh1.org"}, ["h1.org", "www.h1.org"]),
        ({"domains": "h1.org"}, None),
        ({"documents": "0" * 32}, []),
    ],
)
def test_a_value_that_matches_no_record_is_reported_with_the_nearest_addresses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, request_: dict, unmatched: list[str] | None
) -> None:
    urls = (TYPED, "https://h1.org/zebra", "file://code/Tool.py", "file://code/other.py")
    copy = kept_document("https://copies.net/copy", "a copy")
    verdict = {"reason": "duplicate_near", "reasons": ["duplicate_near"], "language": "en", "duplicate_of": "0" * 32}
    documents_in(tmp_path, [kept_document(url, url, "code") for url in urls], 1, [{**copy, **verdict}])
    takedown = take_down(tmp_path, **request_)
    report = report_of(takedown)
    if unmatched is None:
        assert (report["unmatched"], takedown.record.metrics["unmatched"]) == ([], 0.0)
        assert "no record" not in caplog.text
        return
    (entry,) = report["unmatched"]
    assert entry["nearest"][: len(unmatched)] == unmatched
    assert bool(entry["nearest"]) == bool(unmatched)
    value = entry["value"]
    assert takedown.record.metrics["unmatched"] == 1.0
    assert "no record of the recipe matches 1 of the values" in takedown.record.note
    assert f"{value} matches no record of test" in caplog.text
    page = takedown.read("report.html").decode()
    assert all(address in page for address in (value, *unmatched))


def test_a_value_that_is_in_force_and_matches_no_record_is_reported_again(tmp_path: Path) -> None:
    documents_in(tmp_path, [kept_document(TYPED, "text")], 1)
    first = take_down(tmp_path, "t1", urls="https://h1.org/ete")
    again = report_of(take_down(tmp_path, "t2", first, urls="https://h1.org/ete"))
    assert (again["new"], again["unmatched"][0]["nearest"]) == ([], [TYPED])


def test_records_that_are_gone_do_not_prevent_a_takedown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    documents = documents_in(tmp_path, [kept_document(TYPED, "text")], 1)
    remove_files(documents, "the disk was full", datetime(2026, 11, 1, tzinfo=UTC))
    report = report_of(take_down(tmp_path, urls="https://h1.org/ete"))
    assert [entry["nearest"] for entry in report["unmatched"]] == [[]]
    assert "is not searched for the values" in caplog.text


def test_one_page_in_several_spellings_is_one_value_that_any_spelling_lifts(tmp_path: Path) -> None:
    first = take_down(tmp_path, "t1", urls="http://a.net/%d9%85/\nhttp://a.net/%D9%85/\nhttp://a.net/م/")
    assert [row["value"] for row in first.table("tombstones.parquet").to_pylist()] == ["http://a.net/%D9%85/"]
    lifted = take_down(tmp_path, "t2", first, lift="http://a.net/م/", urls="http://b.net/")
    assert Tombstones.read([lifted]).urls == {"http://b.net/"}


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"urls": "http://a.net/\n\nnot a url"}, r'takedown\.urls, line 3: "not a url" is not an http or https URL'),
        ({"urls": "ftp://a.net/"}, "line 1: .* is not an http or https URL"),
        ({"urls": "http://"}, "line 1: .* is not an http or https URL"),
        ({"urls": "file://code"}, "line 1: .* nor the file:// URL of a document.*give the document's id"),
        ({"domains": "a.net\ncom"}, r'takedown\.domains, line 2: "com" is a public suffix'),
        ({"domains": "co.uk"}, "is a public suffix"),
        ({"domains": "https://a.net/"}, "without scheme, port and path"),
        ({"domains": "a.net:80"}, "without scheme, port and path"),
        ({"domains": "*.a.net"}, "a domain includes all names below it"),
        ({"domains": "a b.net"}, "is not a host name"),
        ({"domains": "a\x1b[2J.net" + "x" * 200}, r'line 1: "a\?\[2J\.netx+\.\.\." is not a host name'),
        ({"documents": "123"}, r'takedown\.documents, line 1: "123" is not a document id'),
        ({}, "the takedown is empty"),
        ({"urls": " \n "}, "the takedown is empty"),
        ({"from_crawl": True}, "no crawl cycle of the recipe has been completed"),
    ],
)
def test_an_invalid_entry_is_refused_with_its_line(tmp_path: Path, request_: dict, said: str) -> None:
    with pytest.raises(InputError, match=said):
        take_down(tmp_path, **request_)
    assert not (tmp_path / "test" / "takedown" / "t1" / ".artifact.json").exists()


def test_the_size_of_a_request_is_bounded_with_a_clear_error() -> None:
    recipe = find_recipe("demo")
    assert len(recipe.override({"takedown.urls": "x\n" * 10_000}).takedown.urls) == 10_000
    with pytest.raises(RecipeError, match=r"takedown\.urls: 10,001 lines are more than 10,000"):
        recipe.override({"takedown.urls": "x\n" * 10_001})
    with pytest.raises(RecipeError, match=r"takedown\.reason: it has a line break or another unprintable character"):
        recipe.override({"takedown.reason": "plain\x1b[2J"})
    with pytest.raises(RecipeError, match="line 2 has 6,000 characters: at most 5,000"):
        recipe.override({"takedown.domains": "a.net\n" + "x" * 6_000})


def test_the_page_escapes_crawled_content(tmp_path: Path) -> None:
    text = "<script>alert(1)</script>"
    url = "http://a.net/'\"><img src=x onerror=alert(1)>"
    page = take_down(tmp_path, urls=url, reason=text, requested_by=text).read("report.html").decode()
    assert "<script>" not in page
    assert "<img" not in page
    assert "&lt;script&gt;" in page


def test_pages_withdrawn_according_to_a_crawl_are_taken_down_with_their_reason(tmp_path: Path) -> None:
    rows = [
        {"url": "http://a.net/x", "reason": "robots_denied"},
        {"url": "http://a.net/y", "reason": "noindex"},
        {"url": "http://b.net/z", "reason": "takedown"},  # marked by a takedown
    ]
    output = Output(Store(str(tmp_path)), ArtifactId("test/warc", "dev"), "by-hand")
    with output.part("health", conserved=False) as part, part.file("takedown.parquet") as file:
        pq.write_table(pa.Table.from_pylist(rows), file)
    warc = commit(output, "by hand", 1, Config(), [], Report())
    config = TakedownConfig(urls="http://a.net/y", from_crawl=True, reason="asked")
    made = run_stage_in(tmp_path, "tasks.stages.takedown.stage", config, {"warc": warc}, kind="takedown")
    found = [(row["value"], row["reason"], row["origin"]) for row in made.table("tombstones.parquet").to_pylist()]
    assert found == [("http://a.net/x", "robots_denied", "crawl"), ("http://a.net/y", "asked", "form")]

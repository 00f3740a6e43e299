"""Trace: every result is checked against a brute-force pass over all batches, tokens and documents."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.documents.document import DOCUMENT
from tasks.formats.documents.document import REJECTED as NO_DOCUMENT
from tasks.formats.tokens.order import Order
from tasks.formats.tokens.plan import Plan
from tasks.formats.tokens.shard import ShardSet
from tasks.run.trace.text import render
from tasks.run.trace.trace import trace, trace_domain, trace_step
from tasks.stages.tokens import EncodeConfig, PackConfig
from tasks.trainer.config import OptimConfig, TrainConfig
from tasks.trainer.model.config import ModelConfig
from tests.conftest import run_stage_in
from tests.corpora import Made, by_hand, corpus, documents_in, kept_document, tokens_in
from tests.s3_server import S3Server

COPY = kept_document("https://h1.org/copy", "a copy", warc_file="b.warc.gz", warc_offset=99)


def make(folder: Path, steps: int = 20) -> tuple[Made, Artifact]:
    """A corpus with a rejected copy and a capture without a document, and a tiny run over it."""
    rows = corpus(60)
    verdict = {"reason": "near_duplicate", "reasons": ["near_duplicate", "gopher_short_doc"], "language": "en"}
    rejected = [{**COPY, **verdict, "duplicate_of": rows[0]["id"]}]
    lost = {"record_id": "<urn:uuid:lost>", "url": "https://h1.org/empty", "source": "web", "reason": "no_text"}
    by_hand(folder, "extracted", 3, {"documents": (DOCUMENT, [*rows, COPY]), "rejected": (NO_DOCUMENT, [lost])})
    documents_in(folder, rows, 3, rejected)
    made = tokens_in(folder, rows)
    return made, trained(folder, made, steps=steps)


def trained(folder: Path, made: Made, version: str = "dev", steps: int = 20) -> Artifact:
    """A tiny run."""
    config = TrainConfig(
        model=ModelConfig(layers=1, dim=16, heads=2, kv_heads=1), optim=OptimConfig(warmup_steps=2), steps=steps,
        batch_size=4, microbatch=4, checkpoint_every=10, milestones=2,
    )  # fmt: skip
    inputs = {"shards": made.shards, "plan": made.plan}
    return run_stage_in(folder, "tasks.stages.train.stage", config, inputs, kind="checkpoint", version=version)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Made, Artifact]:
    folder = tmp_path_factory.mktemp("traced")
    return (folder, *make(folder))


def reading(made: Made, checkpoint: Artifact) -> tuple[dict[str, set[int]], Order, Plan, ShardSet]:
    """Iterates over all batches: document id -> steps that read it."""
    shards, plan, held = ShardSet.open(made.shards), Plan.open(made.plan), json.loads(checkpoint.read("run.json"))
    order = Order.of_run(held)
    steps = defaultdict(set)
    for step in range(held["steps"]):
        for source, sequence, _ in order.batch(step):
            for number, row, _, _ in plan.slices(source, sequence).tolist():
                steps[shards.shard(plan.shards[number]).uid(row).hex()].add(step)
    return steps, order, plan, shards


def test_every_page_is_traced_to_exactly_the_steps_that_read_it(run: tuple) -> None:
    folder, made, checkpoint = run
    steps, *_ = reading(made, checkpoint)
    store, splits = Store(str(folder)), set()
    for row in corpus(60):
        found = trace(store, "test", "dev", row["url"]).to_json()
        (document,) = found["documents"]
        assert (document["id"], document["fate"], document["warc_offset"]) == (row["id"], "kept", 7)
        assert document["steps"] == sorted(steps[row["id"]])
        seen_by = [count for count in (10, 20) if any(step < count for step in document["steps"])]
        assert document["checkpoints"] == seen_by
        assert trace(store, "test", "dev", row["id"]).to_json()["documents"] == found["documents"]
        splits.add(document["split"])
    assert splits == {"train", "heldout"}


def test_a_domain_is_traced_to_all_its_kept_pages_and_their_steps(run: tuple) -> None:
    folder, made, checkpoint = run
    steps, *_ = reading(made, checkpoint)
    store = Store(str(folder))
    answer = trace(store, "test", "dev", "domain:H3.org")
    found = answer.to_json()
    wanted = {row["id"]: sorted(steps[row["id"]]) for row in corpus(60) if row["url"].startswith("https://h3.org/")}
    assert {document["id"]: document["steps"] for document in found["documents"]} == wanted
    assert found["count"] == len(wanted) == 9
    assert "h3.org and the hosts below it: 9 kept documents" in render(answer)
    some = trace_domain(store, "test", "dev", "h3.org", 2)
    assert some.to_json()["documents"] == found["documents"][:2]
    assert "and 7 more" in render(some)
    assert trace(store, "test", "dev", "domain:nowhere.org").to_json()["count"] == 0
    for name, cause in (("org", "is a public suffix"), ("https://h3.org/", "is not a host name")):
        with pytest.raises(InputError, match=cause):
            trace(store, "test", "dev", f"domain:{name}")


def test_a_plan_packed_by_another_column_is_traced_to_the_steps_that_read_each_page(tmp_path: Path) -> None:
    made = tokens_in(tmp_path, corpus(60), encode=EncodeConfig(columns=("language",)))
    config = PackConfig(seq_len=32, by="language")
    plan = run_stage_in(
        tmp_path, "tasks.stages.tokens.pack", config, {"shards": made.shards}, kind="plan", version="by-language"
    )
    made = made._replace(plan=plan)
    checkpoint = trained(tmp_path, made, "by-language")
    steps, *_ = reading(made, checkpoint)
    for row in corpus(60):
        (document,) = trace(Store(str(tmp_path)), "test", "by-language", row["url"]).to_json()["documents"]
        assert document["steps"] == sorted(steps[row["id"]])
    assert {source for source, _, _ in reading(made, checkpoint)[1].batch(0)} == {"de", "en"}


def test_traces_from_an_object_store_are_equal_and_count_requests(run: tuple, s3: S3Server, tmp_path: Path) -> None:
    local, remote = Store(str(run[0])), Store(f"s3://sluice/{tmp_path.name}")
    for path in local.list("test"):
        if "/.scratch/" not in path:
            with remote.write(path) as file:
                file.write(local.read(path))
    kept = corpus(60)[0]
    for what in (kept["url"], kept["id"], COPY["url"], "https://h1.org/empty", "domain:h3.org", "step:7"):
        before, expected = s3.faults.requests, trace(local, "test", "dev", what).to_json()
        answer = trace(remote, "test", "dev", what)
        found = answer.to_json()
        assert found["requests"] == s3.faults.requests - before > 0
        assert {**found, "requests": 0} == expected
        assert f"({found['requests']:,} requests)" in render(answer)
    fetched = [path.stat().st_size for path in (tmp_path / "cache").glob("*") if path.is_file()]
    assert len(fetched) <= 1, "a file was fetched whole, other than the losses of the steps"


def test_a_large_step_shows_pages_of_some_sequences_or_of_all_on_request(run: tuple) -> None:
    store = Store(str(run[0]))
    whole = trace_step(store, "test", "dev", 3, None).to_json()
    answer = trace_step(store, "test", "dev", 3, 2)
    found = answer.to_json()
    assert found["sequences"][:2] == whole["sequences"][:2]
    assert [set(one) for one in found["sequences"][2:]] == [{"source", "sequence", "epoch"}] * 2
    assert "and 2 more sequences: --all shows their pages" in render(answer)


def test_a_step_is_traced_to_the_pages_and_the_text_it_read(run: tuple) -> None:
    folder, made, checkpoint = run
    _, order, plan, shards = reading(made, checkpoint)
    urls = {row["id"]: row for row in corpus(60)}
    for step in (0, 7, 19):
        found = trace(Store(str(folder)), "test", "dev", f"step:{step}").to_json()
        assert found["first_checkpoint"] == (10 if step < 10 else 20)
        told = [(one["source"], one["sequence"], one["epoch"]) for one in found["sequences"]]
        assert told == order.batch(step)
        for one in found["sequences"]:
            pieces, pos = plan.slices(one["source"], one["sequence"]).tolist(), 0
            for told_slice, (number, place, offset, length) in zip(one["slices"], pieces, strict=True):
                shard = shards.shard(plan.shards[number])
                start = offset - shard.token_offset(place)
                assert (told_slice["start"], told_slice["length"], told_slice["pos"]) == (start, length, pos)
                pos += length
                row = urls[shard.uid(place).hex()]
                assert told_slice["url"] == row["url"]
                text = told_slice["text"].replace("<|endoftext|>", "").strip("\ufffd")
                assert text in row["text"]


def test_a_rejected_page_has_its_reason_and_the_location_of_its_capture(run: tuple) -> None:
    answer = trace(Store(str(run[0])), "test", "dev", COPY["url"])
    found = answer.to_json()
    (document,) = found["documents"]
    assert document["fate"] == "rejected"
    assert document["reasons"] == ["near_duplicate", "gopher_short_doc"]
    assert (document["warc_file"], document["warc_offset"]) == ("b.warc.gz", 99)
    text = render(answer)
    assert "b.warc.gz at byte 99" in text
    assert f"a copy of {corpus(60)[0]['id']}" in text


def test_a_capture_without_a_document_differs_from_an_unknown_page(run: tuple) -> None:
    store = Store(str(run[0]))
    answer = trace(store, "test", "dev", "https://h1.org/empty")
    found = answer.to_json()
    assert found["documents"] == []
    assert found["captures_without_document"][0]["reason"] == "no_text"
    assert "gave no document (no_text)" in render(answer)
    unknown = render(trace(store, "test", "dev", "https://h1.org/unknown"))
    assert "never captured" in unknown
    assert "file://SOURCE/PATH" not in unknown
    assert "file://SOURCE/PATH" in render(trace(store, "test", "dev", "/data/report.pdf"))


def test_a_url_is_found_in_any_spelling(run: tuple) -> None:
    row = corpus(60)[0]
    spelled = row["url"].replace("https://h0.org", "HTTPS://H0.org:443") + "#top"
    assert trace(Store(str(run[0])), "test", "dev", spelled).to_json()["documents"][0]["url"] == row["url"]


def test_the_text_names_capture_sequences_steps_and_checkpoints(run: tuple) -> None:
    store = Store(str(run[0]))
    texts = [render(trace(store, "test", "dev", row["url"])) for row in corpus(60)]
    assert any("seen by    step-00000010, step-00000020" in text for text in texts)
    assert any("held out   measures bits per byte" in text for text in texts)
    step = render(trace(store, "test", "dev", "step:0"))
    assert "step 0 of 20: 4 sequences, first in checkpoint step-00000010" in step
    assert json.loads(json.dumps(trace(store, "test", "dev", "step:0").to_json()))["kind"] == "step"


def test_a_step_outside_the_run_is_refused(run: tuple) -> None:
    with pytest.raises(InputError, match=r"the run has no step 20\. Its steps are 0 to 19"):
        trace(Store(str(run[0])), "test", "dev", "step:20")


def test_before_training_a_page_is_traced_to_the_last_artifact(tmp_path: Path) -> None:
    rows = corpus(60)
    documents_in(tmp_path, rows, 3)
    store = Store(str(tmp_path))
    with pytest.raises(InputError, match="nothing was trained"):
        trace(store, "test", "dev", "step:0")
    tokens_in(tmp_path, rows)
    answer = trace(store, "test", "dev", rows[0]["url"])
    found = answer.to_json()
    assert found["run"] is None
    assert found["documents"][0]["sequences"]
    assert "none yet: nothing was trained" in render(answer)
    with pytest.raises(InputError, match="nothing of other@dev"):
        trace(store, "other", "dev", rows[0]["url"])


def test_trace_follows_records_and_not_version_names(run: tuple, tmp_path: Path) -> None:
    made = tokens_in(tmp_path)
    config = TrainConfig(
        model=ModelConfig(layers=1, dim=16, heads=2, kv_heads=1), steps=2, batch_size=2, microbatch=2, milestones=1
    )
    inputs = {"shards": made.shards, "plan": made.plan}
    run_stage_in(tmp_path, "tasks.stages.train.stage", config, inputs, kind="checkpoint", version="v2")
    found = trace(Store(str(tmp_path)), "test", "v2", corpus()[0]["url"]).to_json()
    assert found["artifacts"]["checkpoint"] == "test/checkpoint@v2"
    assert found["artifacts"]["documents"] == "test/documents@dev"
    assert found["documents"][0]["fate"] == "kept"

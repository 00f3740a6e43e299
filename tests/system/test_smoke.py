"""The recipe `smoke` through the real scheduler, from the site's seeds to a traced model, and its report."""

import json
import re
from pathlib import Path

import pyarrow.parquet as pq

from tasks.core.ledger import newest
from tasks.demo.drive import CHAIN
from tasks.run.dossier.dossier import write_dossier
from tasks.run.dossier.summary import Statement
from tasks.run.trace.explain import explain
from tasks.run.trace.trace import trace, trace_step
from tasks.trainer.serve import TextModel


def test_the_run_ends_green_and_prints_its_results(stack, smoke) -> None:
    shown = smoke.printed
    for dag in CHAIN:
        assert re.search(rf"^smoke\.{dag} \d+/\d+ done", shown, re.MULTILINE), shown
    for title in ("Funnel", "Mixture", "Training", "Trace", "Time"):
        assert re.search(rf"^{title}", shown, re.MULTILINE)
    assert stack.home.airflow_url in shown
    assert stack.home.mlflow_url in shown


def test_pages_of_two_hosts_and_both_kinds_of_files_are_kept(stack, smoke) -> None:
    documents = stack.artifact("smoke/documents")
    kept = [row for path in documents.files("kept/") for row in documents.table(path, ["url", "source"]).to_pylist()]
    assert {row["source"] for row in kept} == {"web", "code", "packages"}
    assert len({row["url"].split("/")[2] for row in kept if row["source"] == "web"}) >= 2


def test_the_funnel_accounts_for_every_capture(stack, smoke) -> None:
    with stack.artifact("smoke/documents").open("funnel.parquet") as file:
        rows = pq.read_table(file).to_pylist()
    web = sum(row["documents"] for row in rows if row["source"] == "web")
    assert web == stack.artifact("smoke/warc").record.rows_out


def test_the_canary_sets_the_mixture_and_the_model_learns_from_it(stack, smoke) -> None:
    assert "smoke/finalist@dev" in {ref.address for ref in stack.artifact("smoke/mixture").record.inputs}
    finalist = stack.artifact("smoke/finalist").record
    assert any(ref.address.startswith("smoke/canary/") for ref in finalist.inputs)
    assert "smoke/mixture@dev" in {ref.address for ref in stack.artifact("smoke/checkpoint").record.inputs}
    scores = json.loads(stack.artifact("smoke/scores").read("scores.json"))
    assert 0 < scores["bpb"] < 8


def test_a_page_is_traced_to_the_steps_that_read_it(smoke) -> None:
    told = smoke.printed.partition("\nTrace\n")[2].partition("\nTime\n")[0]
    assert re.search(r"http://\w+\.localhost:\d+/", told)
    assert re.search(r"steps +\d+", told)
    assert re.search(r"seen by +step-\d{8}", told)


def test_a_continuation_of_a_training_page_is_explained_by_that_page_and_its_steps(stack, smoke) -> None:
    url = re.search(r"http://\w+\.localhost:\d+/\S*", smoke.printed.partition("\nTrace\n")[2])[0]
    model = TextModel(Path(stack.artifact("smoke/model").local("model/tokenizer.json")).parent)
    store = stack.artifact("smoke/checkpoint").store
    # A page of several sequences is read in several steps, and only partly in so short a run.
    step = trace(store, "smoke", "dev", url).to_json()["documents"][0]["steps"][0]
    read = [
        one
        for sequence in trace_step(store, "smoke", "dev", step, None).to_json()["sequences"]
        for one in sequence["slices"]
    ]
    prompt = max((one["text"] for one in read if one["url"] == url), key=len)
    (written,) = model.predict(prompt)  # at temperature 0
    found = explain(store, "smoke", "dev", prompt + written).to_json()
    pages = {document["url"]: document for document in found["spans"][0]["documents"]}
    assert url in pages, found["spans"][0]
    assert step in pages[url]["steps"]
    assert pages[url]["first_checkpoint"] > step


def test_airflow_shows_the_newest_crawl_and_the_champion_as_state_of_their_assets(stack, smoke) -> None:
    ids = {one["name"]: one["id"] for one in stack.airflow.pages("/assets", "assets", name_pattern="smoke/")}
    shown = {}
    for kind in ("warc", "checkpoint"):
        for entry in stack.airflow.call("GET", f"/assets/{ids[f'smoke/{kind}']}/state-store")["asset_state_store"]:
            shown[kind, entry["key"]] = {**entry["value"], "task": entry["last_updated_by"]["task_id"]}
    # Other tests of this stack make further versions, in any order.
    store = stack.artifact("smoke/warc").store
    crawl, decided = (newest(store, f"smoke/{kind}") for kind in ("warc", "champion"))
    model = json.loads(decided.read("champion.json"))["champion"]["artifact"]
    assert shown == {
        ("warc", "watermark"): {**about(crawl), "task": "publish"},
        ("checkpoint", "champion"): {**about(decided), "model": model, "task": "promote"},
    }


def about(artifact) -> dict[str, str]:
    return {"version": artifact.address.version, "finished": artifact.record.finished.isoformat()}


def test_the_dossier_of_the_run_counts_its_documents_and_opens_without_a_network(stack, smoke, tmp_path) -> None:
    store = stack.artifact("smoke/documents").store
    written = write_dossier(store, "smoke", "dev", str(tmp_path / "dossier"), Statement("Ann"), traces=100)
    summary, domains = (json.loads((written.folder / name).read_text()) for name in ("summary.json", "domains.json"))
    documents = stack.artifact("smoke/documents")
    kept = [
        row for path in documents.files("kept/") for row in documents.table(path, ["id", "url", "source"]).to_pylist()
    ]
    web = [row for row in kept if row["source"] == "web"]
    crawled = summary["sources"]["crawled"]
    assert (summary["general"]["documents"], crawled["documents"]) == (len(kept), len(web))
    assert crawled["crawler"] == stack.artifact("smoke/warc").record.config["user_agent"]
    assert sum(row["documents"] for row in domains) == len(web)
    assert {row["id"] for row in json.loads((written.folder / "traces.json").read_text())} <= {
        row["id"] for row in kept
    }
    for row in domains:
        assert trace(store, "smoke", "dev", f"domain:{row['domain']}").to_json()["count"] == row["documents"]
    assert not re.search(r"<(script|link|img)|@import|url\(", (written.folder / "index.html").read_text())

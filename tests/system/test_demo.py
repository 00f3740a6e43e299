"""The demo as `make demo` runs it: through the real scheduler, from the site's seeds to an evaluated checkpoint."""

import json
import re
import subprocess

import pyarrow.parquet as pq
import pytest

from tasks.demo.drive import CHAIN


@pytest.fixture(scope="module")
def first(stack) -> subprocess.CompletedProcess[str]:
    """The first run of the demo."""
    return stack.demo("run")


def test_the_demo_ends_green_and_shows_what_it_made(stack, first) -> None:
    assert first.returncode == 0, first.stdout + first.stderr
    shown = first.stdout
    for dag in CHAIN:
        assert re.search(rf"^demo\.{dag} \d+/\d+ done", shown, re.MULTILINE), shown
    for title in ("Funnel", "Mixture", "Training", "Trace", "Time"):
        assert re.search(rf"^{title}", shown, re.MULTILINE)
    assert re.search(r"[▁▂▃▄▅▆▇█]{20,}", shown)
    assert stack.home.airflow_url in shown
    assert stack.home.mlflow_url in shown


def test_at_least_300_pages_of_two_hosts_are_captured(stack, first) -> None:
    documents = stack.artifact("demo/extracted")
    urls = set()
    for path in documents.files("documents/"):
        urls.update(documents.table(path, ["url"], filters=[("source", "=", "web")])["url"].to_pylist())
    assert len(urls) >= 300
    assert len({url.split("/")[2] for url in urls}) >= 2


def test_at_least_a_million_tokens_are_packed(stack, first) -> None:
    summary = json.loads(stack.artifact("demo/plan").read("plan/summary.json"))
    assert sum(summary["tokens"].values()) >= 1_000_000


def test_the_model_predicts_held_out_text_a_quarter_better_than_word_frequencies(stack, first) -> None:
    scores = json.loads(stack.artifact("demo/scores").read("scores.json"))
    assert scores["gain"] >= 0.25
    assert scores["bpb"] <= 0.75 * scores["unigram_bpb"]


def test_a_page_is_traced_to_the_steps_that_read_it(stack, first) -> None:
    trace = first.stdout.partition("\nTrace\n")[2].partition("\nTime\n")[0]
    assert re.search(r"http://\w+\.localhost:\d+/", trace)
    assert re.search(r"steps +\d+, \d+", trace)
    assert re.search(r"seen by +step-\d{8}", trace)


def test_the_funnel_accounts_for_every_capture(stack, first) -> None:
    with stack.artifact("demo/documents").open("funnel.parquet") as file:
        rows = pq.read_table(file).to_pylist()
    web = sum(row["documents"] for row in rows if row["source"] == "web")
    assert web == stack.artifact("demo/warc").record.rows_out


def test_the_second_demo_finds_everything_unchanged(stack, first) -> None:
    before = {name: stack.artifact(f"demo/{name}").record for name in ("warc", "documents", "plan", "checkpoint")}
    again = stack.demo("run")
    assert again.returncode == 0, again.stdout + again.stderr
    for dag in CHAIN:
        assert re.search(rf"^demo\.{dag} \d+/\d+ unchanged", again.stdout, re.MULTILINE), again.stdout
    assert {name: stack.artifact(f"demo/{name}").record for name in before} == before

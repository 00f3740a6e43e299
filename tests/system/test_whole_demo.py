"""The full-size demo as run by `make demo`: pages, tokens and a trained model.

Soak: eight minutes. `test_smoke.py` runs a smaller version.
"""

import json
import re
import subprocess

import pytest

from tasks.demo.drive import CHAIN

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def first(stack) -> subprocess.CompletedProcess[str]:
    """The first run of the demo."""
    return stack.demo("run")


def test_the_demo_ends_green_and_shows_the_loss(stack, first) -> None:
    assert first.returncode == 0, first.stdout + first.stderr
    for dag in CHAIN:
        assert re.search(rf"^demo\.{dag} \d+/\d+ done", first.stdout, re.MULTILINE), first.stdout
    assert re.search(r"[▁▂▃▄▅▆▇█]{20,}", first.stdout)


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


def test_the_second_demo_finds_everything_unchanged(stack, first) -> None:
    before = {name: stack.artifact(f"demo/{name}").record for name in ("warc", "documents", "plan", "checkpoint")}
    again = stack.demo("run")
    assert again.returncode == 0, again.stdout + again.stderr
    for dag in CHAIN:
        assert re.search(rf"^demo\.{dag} \d+/\d+ unchanged", again.stdout, re.MULTILINE), again.stdout
    assert {name: stack.artifact(f"demo/{name}").record for name in before} == before

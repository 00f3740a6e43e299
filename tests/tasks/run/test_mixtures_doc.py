"""The settings in docs/mixtures.md are valid."""

import re
import tomllib
from pathlib import Path

from tests.tasks.run.test_recipe_validation import BOOKS, read

DOC = (Path(__file__).parents[3] / "docs" / "mixtures.md").read_text()
BASE = {"name": "mine", "extract": {"files": [BOOKS]}}


def test_every_example_is_valid_in_a_recipe() -> None:
    blocks = map(tomllib.loads, re.findall(r"```toml\n(.*?)```", DOC, re.DOTALL))
    trained, tokenizer, columns, mixture, joint, sample, canary, scoring, proposing, accepting, arms, widths = blocks
    assert read({**BASE, **trained}).tokenizer.split == "llama3"
    assert read({**BASE, **tokenizer}).tokenizer.end_of_text == "<|end_of_text|>"
    assert read({**BASE, **columns}).pack.by == "tier"
    crawl = {"seeds": ["https://example.org/"], "contact": "mailto:me@example.org"}
    by_language = read({**BASE, **joint, **sample, "crawl": crawl})
    assert (by_language.pack.by, by_language.tokenizer.by) == ("source+language", "language")
    assert by_language.train.alpha == by_language.tokenizer.alpha == {"language": 0.3}
    assert read({**BASE, **canary, "crawl": crawl}).canary.confirmations == 5
    tasks = [{"name": name, "kind": "cloze", "path": "/q.jsonl", "prompt": "{{q}}"} for name in ("lambada", "arc_easy")]
    scored = read({**BASE, **scoring, "evaluate": {"tasks": tasks}, "crawl": crawl}).canary.scored
    assert [task.name for task in scored] == ["arc_easy", "lambada"]
    assert read({**BASE, **canary, **proposing, "crawl": crawl}).priorities.active
    assert read({**BASE, "crawl": {**crawl, **accepting["crawl"]}}).crawl.priorities == "web/priorities@2026-11"
    settings = read({**BASE, **arms, "canary": {**canary["canary"], **arms["canary"]}, "crawl": crawl}).canary.settings
    assert [arm.name for arm in settings] == ["strict", "stricter"]
    untied = {"model": {**canary["canary"]["model"], "tie_embeddings": False}}
    swept = read({**BASE, "canary": {**canary["canary"], **widths["canary"], **untied}, "crawl": crawl}).canary
    assert swept.swept_runs == 12
    by_month = {"encode": {"columns": ["fetched_at"]}, "pack": {"by": "fetched_at"}}
    train = read({**BASE, **by_month, **mixture}).train
    assert train.anneal is not None
    assert (train.anneal_from, train.repetition_cap) == (6000, 4)

"""A small corpus and its training recipe, for the tests of pods on the bed and with a whole Airflow."""

import shutil
from pathlib import Path

from tests.corpora import corpus, tokens_in
from tests.tasks.trainer.gangs import store_with

WEIGHTS = {"code": 0.5, "my-books": 0.25, "web": 0.25}
RECIPE = """
name = "test"
[crawl]
seeds = ["http://site.localhost:18799/"]
allow_loopback = true
[tokenizer]
vocab_size = 300
[canary]
seeds = [0, 1]
[train]
steps = {steps}
batch_size = 4
microbatch = 2
checkpoint_every = 20
milestones = 2
[train.model]
layers = 2
dim = 32
heads = 4
kv_heads = 2
[train.optim]
lr = 1e-2
warmup_steps = 2
[place]
store = "{store}"
"""


def recipe_text(steps: int, store: Path, place: str) -> str:
    """The recipe `test`: `steps` steps of training in pods at `place` (`Cluster.place`)."""
    return RECIPE.format(steps=steps, store=store) + place


def corpus_in(folder: Path) -> Path:
    """Creates and returns a store below `folder` with the inputs of training and evaluation of the recipe `test`."""
    rows = [{**row, "text": row["text"][: 5 + index * 7 % 130]} for index, row in enumerate(corpus(360))]
    return store_with(tokens_in(folder / "tokens", rows), folder / "store", WEIGHTS)


def corpus_without_tokenizer(folder: Path) -> Path:
    """The same without its tokenizer: tests run the stage `tokenizer` as a small piece of work."""
    store = corpus_in(folder)
    shutil.rmtree(store / "test" / "tokenizer")
    return store

"""Two versions of a recipe on two months of pages; the second starts from the weights of the first."""

from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from tasks.core.artifact import RECORD, Artifact, ArtifactId
from tasks.core.store import Store
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.runner import StageResult, run_stage
from tasks.run.tracking import TrackingContext
from tests.corpora import Made, corpus, tokens_in
from tests.tasks.run.test_trace import reading

PAGES = corpus(60)
READ = {"october": PAGES[:40], "november": PAGES[20:]}
TINY = {"layers": 1, "dim": 16, "heads": 2, "kv_heads": 1}
FROM_OCTOBER = {"train.init_from": "test/checkpoint@october"}


class Months(NamedTuple):
    """Two versions of a recipe, of which the second starts from the weights of the first."""

    store: Store
    recipe: Recipe
    tokens: dict[str, Made]
    tokenizer: str
    """File of the tokenizer of the first version, which the second imports."""

    def run(
        self,
        stage: str,
        version: str,
        source: str | None = None,
        tracking: TrackingContext | None = None,
        **changes: Any,
    ) -> StageResult:
        """Runs a stage; `changes` are settings, with "__" for the dots in their paths."""
        recipe = self.recipe.override({name.replace("__", "."): value for name, value in changes.items()})
        context = tracking or TrackingContext("", recipe.name)
        return run_stage(recipe, stage, version=version, source_version=source, tracking=context)

    def checkpoint(self, version: str) -> Artifact:
        """Opens the checkpoint of a version."""
        return Artifact.open_at(self.store, ArtifactId("test/checkpoint", version))

    def steps(self, version: str) -> dict[str, list[int]]:
        """Iterates over all batches of a version: document id -> steps that read it."""
        found = reading(self.tokens[version], self.checkpoint(version))[0]
        return {row["id"]: sorted(found[row["id"]]) for row in PAGES}


@pytest.fixture(scope="module")
def months(tmp_path_factory: pytest.TempPathFactory) -> Months:
    """Trains october on the first two thirds of the pages, and november from its weights on the last two."""
    folder = tmp_path_factory.mktemp("months")
    tokens = {"october": tokens_in(folder, READ["october"], version="october")}
    tokenizer = Store(str(folder)).url("test/tokenizer/october/tokenizer.json")
    tokens["november"] = tokens_in(folder, READ["november"], version="november", tokenizer_file=tokenizer)
    settings: dict[str, Any] = {
        "name": "test",
        "place.store": str(folder),
        "place.train.nproc": 1,
        "crawl.enabled": False,
        "makes": ["documents", "tokens", "checkpoint"],
        "extract.files": [{"name": "books", "kind": "text", "path": "/nowhere/*.txt"}],
        "canary.current": {},
        "consolidate.sources": ["books"],
        "train.model": TINY,
        "train.steps": 12,
        "train.batch_size": 4,
        "train.checkpoint_every": 3,
        "train.milestones": 2,
    }
    made = Months(Store(str(folder)), find_recipe("smoke").override(settings), tokens, tokenizer)
    made.run("train", "october")
    october = made.checkpoint("october")
    record = october.record.model_copy(update={"finished": october.record.finished - timedelta(days=30)})
    with made.store.write(f"{october.address.path}/{RECORD}") as file:
        file.write(record.model_dump_json().encode())
    made.run("train", "november", train__init_from="test/checkpoint@october")
    return made

"""Inspection: shards, sequences and batches are shown as in the files."""

import json
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.tokens.plan import Plan
from tasks.formats.tokens.shard import ShardSet
from tasks.run.trace.inspect import inspect
from tests.corpora import Made, corpus
from tests.tasks.run.test_trace import make

Run = tuple[Path, Made, Artifact]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("inspected")
    return (folder, *make(folder))


def test_inspecting_a_shard_shows_its_counts_and_first_documents(run: Run) -> None:
    shards = ShardSet.open(run[1].shards)
    name = shards.names("web")[0]
    answer = inspect(Store(str(run[0])), "test", "dev", name)
    found = answer.to_json()
    shard = shards.shard(name)
    assert (found["documents"], found["tokens"]) == (shard.rows, int(shard.lengths.sum()))
    texts = {row["url"]: row["text"] for row in corpus(60)}
    for document in found["first_documents"]:
        assert document["text"] == texts[document["url"]] + "<|endoftext|>"
    assert f"shard {name}: {shard.rows:,} documents" in answer.text()


def test_inspecting_a_sequence_separates_its_documents(run: Run) -> None:
    plan = Plan.open(run[1].plan)
    texts = {row["url"]: row["text"] for row in corpus(60)}
    for sequence in range(plan.sequences["web"]):
        answer = inspect(Store(str(run[0])), "test", "dev", f"web:{sequence}")
        found = answer.to_json()
        slices = found["slices"]
        assert [piece["pos"] for piece in slices] == [sum(p["length"] for p in slices[:i]) for i in range(len(slices))]
        assert sum(piece["length"] for piece in slices) == 32
        for piece in slices:
            assert piece["text"].removesuffix("<|endoftext|>").strip("\ufffd") in texts[piece["url"]]
        assert all(piece["url"] in answer.text() for piece in slices)


def test_inspecting_a_batch_shows_the_sequences_of_its_step(run: Run) -> None:
    answer = inspect(Store(str(run[0])), "test", "dev", "step:7")
    found = answer.to_json()
    assert len(found["sequences"]) == 4
    assert all(row["tokens"] + row["padding"] == 32 for row in found["sequences"])
    assert answer.text().startswith("step 7: 4 sequences of 32 tokens")
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("step:20", "the run has no step 20"),
        ("web:99999", '"web" has the sequences'),
        ("wbe:1", 'no source "wbe"'),
        ("no-such-train-00000-000", "no token shard is called"),
    ],
)
def test_missing_objects_are_named(run: Run, what: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        inspect(Store(str(run[0])), "test", "dev", what)

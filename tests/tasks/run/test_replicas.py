"""Trainings that differ only in their seeds: their spread in the reports and in the gate.

Milestones of one training simulate trainings with other seeds, because only the record of a training is read.
"""

import json
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tests.tasks.run.champions import FIRST, STEPS, Champions, champions_in

ROWS = [{"query": f"the {word}", "choices": ["of light", "stone"], "gold": 0} for word in ("river", "water", "valley")]
OTHERS = ["test/scores@s1", "test/scores@s2"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Champions:
    """Checkpoints of four versions: the first one, two with other seeds, and one that also differs in its steps."""
    begun = champions_in(tmp_path_factory.mktemp("replicas"))
    rows = Path(begun.store.root, "quiz.jsonl")
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    task = {"name": "quiz", "kind": "multiple_choice", "path": str(rows), "prompt": "{{query}}", "choices": "choices",
            "answer": "gold"}  # fmt: skip
    made = Champions(begun.store, begun.recipe.override({"evaluate.tasks": [task]}))
    made.checkpoint(FIRST, STEPS[-1])
    made.checkpoint("s1", STEPS[-2], seed=1, init_seed=1)
    made.checkpoint("s2", STEPS[-3], seed=2, init_seed=2)
    made.checkpoint("longer", STEPS[0], seed=3, steps=61)
    for version in ("s1", "s2", "longer"):
        made.run("evaluate", version)
    return made


def scores(made: Champions, version: str) -> dict[str, Any]:
    return dict(json.loads(made.artifact("scores", version).read("scores.json")))


def test_the_spread_of_replicas_is_reported_and_reaches_the_gate(trained: Champions) -> None:
    trained.run("evaluate", FIRST, evaluate__replicas=OTHERS)
    found, artifact = scores(trained, FIRST), trained.artifact("scores", FIRST)
    values = [one["sources"]["web"]["bpb"] for one in (found, scores(trained, "s1"), scores(trained, "s2"))]
    rows = {(row["name"], row["metric"]): row for row in found["seeds"]["rows"]}
    web = rows["web", "bpb"]
    assert (web["values"], web["mean"], web["sd"]) == (values, fmean(values), stdev(values))
    assert len(set(values)) == 3
    assert {name for name, _ in rows} == {"quiz", "web", "code", "my-books"}
    assert [ref.address for ref in artifact.record.inputs if ref.role == "replicas"] == OTHERS
    bits, error = rows["quiz", "bpb"], found["tasks"][0]["metrics"]["bpb"]["stderr"]
    expected = f"| quiz | **bpb** | {bits['mean']:.4f} | {error:.4f} | {bits['sd']:.4f} | 3 |"
    assert expected in artifact.read("tasks.md").decode()
    page = artifact.read("heldout.md").decode()
    assert f"| {values[0]:.4f} | {web['mean']:.4f} | {web['sd']:.4f} | 3 |" in page
    curve = [line.split(" | ")[0] for line in page.splitlines() if line.startswith(("| 6 ", "| 54 ", "| 60 "))]
    assert curve == ["| 6", "| 54", "| 60"], "the run's own measurements"
    assert artifact.record.metrics["sd_over_seeds/source/web/bpb"] == web["sd"]
    for stage in ("register", "compare", "promote"):
        trained.run(stage, FIRST, evaluate__replicas=OTHERS)
    for stage in ("register", "compare"):
        trained.run(stage, "s1")
    assert trained.comparison("s1")["score"]["seeds"] == {"challenger": 1, "champion": 3}
    said = trained.artifact("comparison", "s1").read("report.md").decode()
    assert "The intervals have the variance over seeds in them (3 of the champion)" in said


@pytest.mark.parametrize(
    ("replicas", "said"),
    [
        (["test/scores@longer"], "test/scores@longer differs in more than its seeds: train.steps"),
        (["test/scores@s1", "test/scores@twin"], "test/checkpoint@twin has the seeds of test/checkpoint@s1"),
        (["test/scores@other"], r"test/scores@other differs in more than its seeds: evaluate.max_tokens"),
        (["test/scores@nowhere"], "evaluate.replicas: test/scores@nowhere is not in"),
    ],
)
def test_replicas_that_differ_in_more_than_seeds_are_refused(
    trained: Champions, replicas: list[str], said: str
) -> None:
    for version, changes in {"twin": {}, "other": {"evaluate__max_tokens": 77}, "v2": {}}.items():
        if not Artifact.find(trained.store, ArtifactId("test/checkpoint", version)):
            trained.checkpoint(version, STEPS[1], seed=1 if version == "twin" else 4, init_seed=1)
        if version != "v2":
            trained.run("evaluate", version, **changes)
    with pytest.raises(InputError, match=said):
        trained.run("evaluate", "v2", evaluate__replicas=replicas)

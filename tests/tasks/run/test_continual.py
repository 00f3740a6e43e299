"""Three months of continual training: settings, first weights, traces, takedowns and retention of the chain."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError, RecipeError
from tasks.core.store import Store
from tasks.run.forecast import plan
from tasks.run.place import Retention
from tasks.run.recipe import find_recipe
from tasks.run.retention import survey
from tasks.run.trace.text import render
from tasks.run.trace.trace import trace
from tasks.trainer.config import ContinualConfig, ReplayConfig, TrainConfig
from tests.corpora import corpus, tokens_in
from tests.taken_down import take_down
from tests.tasks.run.months import TINY, Months
from tests.tasks.run.test_recipe_validation import BOOKS, read

PAGES = corpus(60)
READ = {"october": PAGES[:30], "november": PAGES[15:45], "december": PAGES[30:]}
LEARNED = {"october": 6, "november": 4, "december": 8}
"""Steps of each run that the model of december has learned from: those before the decay of the run, or all."""
LR = 1e-2


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Months:
    """Trains three months, each from the one before; all weights of a later month are from before a decay."""
    folder = tmp_path_factory.mktemp("chain")
    tokens, tokenizer = {}, ""
    for month, pages in READ.items():
        tokens[month] = tokens_in(folder, pages, version=month, tokenizer_file=tokenizer)
        tokenizer = Store(str(folder)).url("test/tokenizer/october/tokenizer.json")
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
        "train.optim": {"lr": LR, "warmup_steps": 2, "decay_share": 0.5},
        "train.steps": 12,
        "train.batch_size": 4,
        "train.checkpoint_every": 6,
        "train.milestones": 2,
        "train.init_from": "previous",
        "train.continual": {"start": "stable", "peak_share": 0.5, "fall": 1.0, "warmup_steps": 1, "steps": 8},
    }
    months = Months(Store(str(folder)), find_recipe("smoke").override(settings), tokens, tokenizer)
    for month in READ:
        months.run("train", month)
    return months


def about(checkpoint: Artifact) -> dict[str, Any]:
    return dict(json.loads(checkpoint.read("run.json")))


def peak(checkpoint: Artifact) -> float:
    return float(max(checkpoint.table("loss.parquet", ["lr"]).column("lr").to_pylist()))


def first_reading(steps: dict[str, dict[str, list[int]]], page: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the first run and step of the chain of december that read a page; `steps` are by month and page."""
    for month, until in LEARNED.items():
        if learned := [step for step in steps[month].get(page["id"], ()) if step < until]:
            return {"checkpoint": f"test/checkpoint@{month}", "step": learned[0]}
    return None


def test_the_first_month_is_an_ordinary_run_that_keeps_the_checkpoint_before_its_decay(chain: Months) -> None:
    october = chain.checkpoint("october")
    assert "initial" not in {ref.role for ref in october.record.inputs}
    assert "no other version of test/checkpoint was complete" in october.record.note
    found = about(october)
    assert (found["month"], found["steps"], found["checkpoint_steps"], found["stable_step"]) == (1, 12, [6, 12], 6)
    assert "initial_step" not in found
    assert peak(october) == LR


def test_a_later_month_begins_before_the_decay_with_a_lower_peak_and_its_own_steps(chain: Months) -> None:
    for month, number, before, start, share in (
        ("november", 2, "october", 6, 0.5),
        ("december", 3, "november", 4, 0.25),
    ):
        found = about(chain.checkpoint(month))
        assert (found["month"], found["steps"], found["initial_step"], found["stable_step"]) == (number, 8, start, 4)
        assert peak(chain.checkpoint(month)) == pytest.approx(LR * share)
        note = chain.checkpoint(month).record.note
        assert f"began from test/checkpoint@{before} after {start} steps, before its decay, as month {number}" in note
    assert chain.run("train", "december").skipped


def test_the_weights_of_a_later_month_are_those_before_the_decay(
    chain: Months, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = []

    def seen(spec: Any, *more: Any, **named: Any) -> None:
        specs.append(spec)
        raise InterruptedError

    monkeypatch.setattr("tasks.trainer.launch.supervised.train_local", seen)
    for start in ("stable", "last"):
        with pytest.raises(InterruptedError):
            chain.run("train", f"from-{start}", "december", train__continual__start=start, train__seed=7)
    assert [Path(spec.initial.file).parent.name for spec in specs] == ["step-00000004", "step-00000008"]
    digests = {entry.path: entry.sha256 for part in chain.checkpoint("december").parts for entry in part.files}
    assert specs[0].initial.sha256 == digests["checkpoints/step-00000004/model.safetensors"]


def test_a_trace_names_the_month_and_step_that_read_a_page_first(chain: Months) -> None:
    steps = {month: chain.steps(month) for month in READ}
    decay_only = 0
    for page in PAGES[::4]:
        answer = trace(chain.store, "test", "december", page["url"])
        found, expected = answer.to_json(), first_reading(steps, page)
        assert found["first"] == expected
        said = f"first read by {expected['checkpoint']} in step {expected['step']}\n" if expected else ""
        assert said in render(answer)
        for run, month in zip(found["before"], ("november", "october"), strict=True):
            assert run["checkpoint"] == f"test/checkpoint@{month}"
            read = steps[month][page["id"]]
            learned = [step for step in read if step < LEARNED[month]]
            assert [one["steps"] for one in run["documents"]] == ([learned] if page in READ[month] else [])
            decay_only += bool(read) and not learned
    assert decay_only, "some pages were read only after the step from whose weights the next month began"


def test_a_takedown_names_the_months_that_learned_a_page_and_not_those_after_its_decay(chain: Months) -> None:
    october = chain.steps("october")
    own = [page for page in READ["october"][:15] if october[page["id"]]]
    early = next(page for page in own if october[page["id"]][0] < 6)
    late = next(page for page in own if october[page["id"]][0] >= 6)
    taken = take_down(chain.store.root, documents=(early["id"], late["id"]))
    rows = [row for row in taken.table("found.parquet").to_pylist() if row["kind"] == "checkpoint"]
    models = {
        name: {row["artifact"].partition("@")[2] for row in rows if row["id"] == page["id"]}
        for name, page in (("early", early), ("late", late))
    }
    assert models == {"early": {"october", "november", "december"}, "late": {"october"}}
    through = {row["artifact"]: row["through"] for row in rows if row["id"] == early["id"]}
    assert through["test/checkpoint@december"] == "test/checkpoint@november"


def test_retention_keeps_the_checkpoint_that_the_next_month_begins_from(chain: Months) -> None:
    tokens_in(Path(chain.store.root), PAGES[:12], version="no-model-yet")
    found = {one.artifact: one.needed for one in survey(chain.store, "test", Retention(versions=1)).holdings}
    assert found["test/checkpoint@december"] == "the next version begins from it"
    assert "checkpoints/step-00000004/model.safetensors" in chain.checkpoint("december").files("checkpoints/")
    assert not found["test/checkpoint@october"]


def test_a_run_that_kept_no_checkpoint_before_its_decay_is_refused(chain: Months) -> None:
    chain.run("train", "plain", "october", train__init_from="", train__continual=None, train__seed=5)
    said = r"\[train.continual\] start: test/checkpoint@plain has kept no checkpoint from before .* start = \"last\""
    with pytest.raises(InputError, match=said):
        chain.run("train", "next", "november", train__init_from="test/checkpoint@plain")
    settings = {"train__init_from": "test/checkpoint@plain", "train__continual__start": "last"}
    chain.run("train", "next", "november", **settings)
    assert about(chain.checkpoint("next"))["month"] == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train.init_from": ""}, r'train\.continual: nothing to continue: set \[train\] init_from = "previous"'),
        (
            {"train.optim.schedule": "cosine"},
            r"train\.continual\.start: the schedule has no stable phase before a decay",
        ),
        ({"train.optim.warmup_steps": 12}, r"train\.continual\.start: the schedule has no stable phase before a decay"),
        ({"train.continual.steps": 1}, r"train\.continual\.steps: 2 milestones do not fit into 1 steps"),
        ({"train.continual.warmup_steps": 8}, r"train\.continual\.warmup_steps: 8 leave nothing of 8 steps"),
    ],
)
def test_impossible_settings_are_refused(chain: Months, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        chain.recipe.override(changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"merge.last": 2},
            r"merge\.last: a run of 12 steps keeps 1 checkpoints before its decay: raise train\.milestones",
        ),
        ({"train.milestones": 8, "merge.last": 5}, r"merge\.last: a run of 12 steps keeps 4 checkpoints before"),
        ({"promote.enabled": False, "merge.last": 1}, r"merge\.last: nothing compares the merged model: set promote"),
    ],
)
def test_merging_without_enough_checkpoints_or_a_comparison_is_refused(
    chain: Months, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(RecipeError, match=said):
        chain.recipe.override({"promote.enabled": True, **changes})
    assert "merge" in chain.recipe.override({"promote.enabled": True, "merge.last": 1}).stages("pretrain")


def test_the_estimate_of_a_later_month_is_that_of_its_own_steps(chain: Months) -> None:
    planned = plan(chain.recipe, chain.store, "january").planned
    first = plan(chain.recipe.override({"name": "another"}), chain.store, "january").planned
    assert planned["time"]["flops"] * 12 == pytest.approx(first["time"]["flops"] * 8)


def test_the_settings_in_the_documentation_are_valid_and_the_defaults() -> None:
    text = (Path(__file__).parents[3] / "docs" / "months.md").read_text().partition("## The weights of a month")[2]
    example = tomllib.loads(re.findall(r"```toml\n(.*?)```", text, re.DOTALL)[0])
    by_month = {"encode": {"columns": ["fetched_at"]}, "pack": {"by": "fetched_at"}}
    found = read({"name": "mine", "extract": {"files": [BOOKS]}, **by_month, **example}).of(TrainConfig)
    assert found.continual == ContinualConfig(steps=320)
    assert found.replay == ReplayConfig()

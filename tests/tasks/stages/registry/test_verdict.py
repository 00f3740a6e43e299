"""Promotion of a challenger: by the interval of the score, the guards, its tokens, and the variance over seeds."""

import math
from typing import Any

import numpy as np
import pytest

from tasks.core.errors import InputError
from tasks.stages.registry.compare import figure, markdown
from tasks.stages.registry.verdict import Verdict, judge, reason
from tasks.trainer.evaluation import paired
from tasks.trainer.evaluation.comparison import Comparison

NONE: tuple[dict, dict] = ({}, {})


def compared(kind: Any, name: str, gain: float, spread: float = 0.01, n: int = 100, metric: str = "bpb") -> Comparison:
    """One source or task on which the second model is better by `gain`, with deviation `spread` over items."""
    draws = np.random.default_rng(len(name)).normal(0, 1, n)
    differences = gain + spread * (draws - draws.mean()) / draws.std(ddof=1)
    return Comparison(kind, name, metric, n, 1.0, 1.0 - gain, paired.of_items(differences))


def judged(*rows: Comparison, read: dict | None = None, seeds: tuple = NONE, **more: Any) -> Verdict:
    return judge(rows, read or {}, seeds, 0.95, **more)


def test_tasks_decide_and_sources_are_guards() -> None:
    better, worse = compared("task", "quiz", 0.01), compared("source", "web", -0.01)
    assert judged(better, compared("source", "web", 0.01)).promoted
    found = judged(better, worse)
    assert (found.of, found.better, found.worse, found.promoted) == ("tasks", True, ("web",), False)
    assert judged(better, worse, guarded=["quiz"]).promoted
    assert judged(better, worse, guard_share=0.02).promoted, "the interval reaches what is tolerated"
    assert not judged(better, worse, guard_share=0.005).promoted
    assert judged(better, compared("source", "web", -0.001)).promoted, "not surely worse"


def test_without_tasks_sources_decide() -> None:
    found = judged(compared("source", "web", 0.02), compared("source", "code", -0.001))
    assert (found.of, found.promoted) == ("sources", True)
    assert found.score.value == pytest.approx(0.0095)


def test_a_contaminated_task_counts_only_as_a_guard() -> None:
    seen, other = compared("task", "seen", 0.5), compared("task", "other", 0.0)
    assert judged(seen, other).promoted
    found = judged(seen, other, read={"seen": {"items": 3, "documents": 2}, "other": {"items": 0, "documents": 0}})
    assert (found.names, found.promoted) == (("other",), False)
    alone = judged(seen, compared("source", "web", 0.0), read={"seen": {"items": 1, "documents": 1}})
    assert (alone.of, alone.promoted) == ("sources", False)
    lost = judged(compared("task", "seen", -0.5), compared("source", "web", 0.1), read={"seen": {"items": 1}})
    assert (lost.better, lost.worse) == (True, ("seen",))


def test_the_interval_is_at_least_as_wide_as_the_spread_of_seeds() -> None:
    row = compared("task", "quiz", 0.01)
    values = {("task", "quiz", "bpb"): [1.0, 1.02, 0.98]}
    narrow, one, both = judged(row), judged(row, seeds=(values, {})), judged(row, seeds=(values, values))
    assert narrow.promoted
    assert not one.promoted
    # Two trainings are compared: twice the variance over seeds, 0.0004, plus that over items, 1e-6.
    assert one.score.variance == both.score.variance == pytest.approx(2 * 0.0004 + 1e-6)
    assert one.seeds == (3, 1)
    assert one.score.freedom == pytest.approx(2, rel=0.01)
    assert both.score.freedom == pytest.approx(4, rel=0.01)
    assert one.rows[0].difference.variance == one.score.variance, "guards allow for seeds, too"


def test_equal_models_of_different_seeds_are_hardly_ever_promoted() -> None:
    draw = np.random.default_rng(0)
    promoted = 0
    for _ in range(300):
        old, new, others = draw.normal(1.0, 0.02, 3), draw.normal(1.0, 0.02), draw.normal(1.0, 0.02, 2)
        items = old[0] - new + draw.normal(0, 0.02, 200)
        row = Comparison("task", "quiz", "bpb", 200, old[0], new, paired.of_items(items))
        key = ("task", "quiz", "bpb")
        promoted += judge([row], {}, ({key: [new, *others]}, {key: list(old)}), 0.95).promoted
    assert promoted / 300 <= 0.05


def test_too_few_items_promote_nothing() -> None:
    found = judged(Comparison("task", "quiz", "acc", 1, 0.0, 1.0, paired.of_items([1.0])))
    assert not found.promoted
    assert reason(found, "a@1", "a@2") == "a@1 stays champion: too few documents or items to tell a@2 from it"
    assert found.score.interval(0.95) == (-math.inf, math.inf)


def test_an_unknown_guard_is_refused() -> None:
    with pytest.raises(InputError, match=r'called "wib".*Did you mean "web"'):
        judged(compared("source", "web", 0.1), guarded=["wib"])


def test_the_report_shows_the_deciding_metrics_with_reasons() -> None:
    rows = [compared("task", "quiz", 0.1), compared("task", "acc", 0.1, metric="acc"), compared("source", "web", -0.1)]
    read = {"quiz": {"items": 2, "documents": 1}, "acc": {"items": 0, "documents": 0}}
    found = judged(*rows, read=read)
    content = {
        **{name: {"artifact": f"test/model@{name}"} for name in ("champion", "challenger")},
        "promoted": found.promoted,
        "reason": reason(found, "test/model@champion", "test/model@challenger"),
        "confidence": 0.95,
        "score": {"of": found.of, "names": found.names, "unit": found.unit, "difference": found.score.value,
                  "interval": found.score.interval(0.95), "seeds": {"challenger": 1, "champion": 1}},
        "rows": [{**row.row(0.95), "counts": True, "guarded": True, "worse": row.name in found.worse,
                  "read_in_training": {"champion": None, "challenger": read[row.name]} if row.kind == "task" else None}
                 for row in found.rows],
    }  # fmt: skip
    text = markdown(content)
    assert "stays champion: test/model@challenger is better by +0.0980 to +0.1020 of the items over 1 tasks" in text
    (line,) = [line for line in text.splitlines() if line.startswith("| task quiz")]
    assert "challenger 2 items | does not count: the challenger has read its items |" in line
    assert "| surely worse |" in text
    assert "what another seed would give is not in them" in text
    assert figure(content).startswith(b"\x89PNG")

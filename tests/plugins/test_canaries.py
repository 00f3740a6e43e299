"""The page of the decisions about mixture and champion."""

import json
from pathlib import Path
from typing import Any

from sluice_ui.canaries import canaries
from sluice_ui.frame import Address

from tasks.core.artifact import ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.stages.canary.decision import Decision
from tests.decisions import commit_decision, decision
from tests.plugins.conftest import HOSTILE
from tests.tasks.run.champions import recipe_in


def arm(name: str, difference: float, web: float, **more: Any) -> dict[str, Any]:
    weights = {"web": web, "code": round(1 - web, 3)}
    return {"arm": name, "kind": "sampled", "weights": weights, "bpb": {"web": 2.0, "code": 3.0}, "regressions": {},
            "difference": difference, "target_bpb": 2.5 - difference, **more}  # fmt: skip


WEIGHTS = {"web": 0.6, "code": 0.4}
CONFIRMED = {"arm": "arm-1", "kind": "sampled", "weights": WEIGHTS, "seeds": [7, 8], "differences": [0.02, 0.04],
             "difference": 0.03, "interval": [0.011, 0.049], "target_bpb": [2.5, 2.47], "regressions": {}}  # fmt: skip
ARMS = [arm("arm-0", 0.0, 0.5), arm("arm-1", 0.03, 0.6), arm("arm-2", -0.02, 0.9, regressions={"code": 0.1})]
REASON = "arm-1 replaces arm-0: lower by 0.0110 to 0.0490 bits per byte on 2 fresh seeds, 95% sure"


def promoted(**changed: Any) -> Decision:
    """The decision for arm-1, with some fields changed."""
    fields = {"promoted": True, "winner": "arm-1", "reason": REASON, "confirmation": CONFIRMED, "arms": ARMS,
              "target": {"web": 0.5, "code": 0.5}}  # fmt: skip
    return decision(WEIGHTS, **{**fields, **changed})


def page_of(folder: Path, content: Decision) -> str:
    """Commits a decision and three canary trainings; returns the page."""
    commit_decision(folder, "test/mixture@v1", content)
    for kind in ("canary/arm-0-seed-0", "canary/arm-1-seed-0", "confirmation/arm-1-seed-7"):
        output = Output(Store(str(folder)), ArtifactId(f"test/{kind}", "v1"), "1" * 64)
        with output.part("content", conserved=False) as part, part.file("result.json") as file:
            file.write(b"{}")
        commit(output, kind.partition("/")[0], 1, Config(), [], Report())
    return canaries(recipe_in(folder), "v1", Address("/canaries", {"recipe": "test", "version": "v1"}))


def row_of(text: str, label: str) -> str:
    return text.partition(f"<td>{label}</td>")[2].partition("</tr>")[0]


def test_the_decision_is_in_words_with_interval_and_cost(tmp_path: Path) -> None:
    text = page_of(tmp_path, promoted())
    assert f"<strong>{REASON}.</strong>" in text
    assert '<dd class="value">+0.0110 to +0.0490</dd>' in text
    assert "of 3 canary trainings, 0 adopted" in text
    assert text.index("Confirmation on fresh seeds") < text.index("Screening")


def test_arms_are_side_by_side_with_weights_scores_and_verdict(tmp_path: Path) -> None:
    text = page_of(tmp_path, promoted())
    assert "weight of code" in text
    assert "bpb of web" in text
    assert ">replaced</span>" in row_of(text, "arm-0")
    assert ">promoted</span>" in row_of(text, "arm-1")
    assert ">worse on code</span>" in row_of(text, "arm-2")
    assert '<td class="number">0.9</td>' in row_of(text, "arm-2")


def test_a_decision_without_a_confirmation_says_that_nothing_is_sure(tmp_path: Path) -> None:
    text = page_of(tmp_path, promoted(confirmation=None, promoted=False, winner="arm-0", reason="arm-0 stays"))
    assert "nothing was confirmed on fresh seeds" in text
    assert ">stays</span>" in row_of(text, "arm-0")


def test_checks_rounds_cost_and_widths_are_shown_where_the_decision_has_them(tmp_path: Path) -> None:
    checks = {"again": {**CONFIRMED, "passed": True}, "low_rate": {**CONFIRMED, "interval": None, "passed": False}}
    rounds = [{"round": 1, "arms": ["arm-0", "arm-1"], "probability": None, "proposed": None, "stopped": None}]
    sweep = {"base_width": 64, "lr": [0.01, 0.02, 0.04], "moved": 0, "lost": 0.0, "at_end": [], "stays": True,
             "widths": [{"dim": 64, "bpb": [2.5, 2.4, 2.6]}, {"dim": 256, "bpb": [2.3, 2.1, 2.2]}]}  # fmt: skip
    text = page_of(tmp_path, promoted(checks=checks, rounds=rounds, cost="9 runs x 1e9 FLOPs", sweep=sweep))
    assert "0.02, may be used for the large one, with [train.init] base_width = 64" in text
    assert '<td class="number">0.02</td>' in text.partition("best lr")[2]
    assert ">passed</span>" in row_of(text, "the same mixture with other data (A/A)")
    assert ">failed</span>" in row_of(text, "one fifth of the learning rate")
    assert "arm-0, arm-1" in text
    assert "9 runs x 1e9 FLOPs" in text


def test_names_of_sources_are_escaped(tmp_path: Path) -> None:
    arms = [{**one, "weights": {HOSTILE: 1.0}, "bpb": {HOSTILE: 2.0}} for one in ARMS]
    text = page_of(tmp_path, promoted(arms=arms, target={HOSTILE: 1.0}))
    assert "<img" not in text
    assert "<script>alert" not in text


def judged(name: str, difference: float, low: float | None, high: float | None, **more: Any) -> dict[str, Any]:
    return {"kind": "source", "name": name, "metric": "bpb", "items": 12, "first": 2.5, "second": 2.5 - difference,
            "difference": difference, "interval": [low, high], "worse": False, **more}  # fmt: skip


COMPARISON: dict[str, Any] = {
    "champion": {"artifact": "test/model@v0"}, "challenger": {"artifact": "test/model@v1"}, "promoted": True,
    "reason": "test/model@v1 becomes champion: better than test/model@v0 by +0.0120 to +0.0480", "confidence": 0.95,
    "score": {"of": "sources", "names": ["web", "code"], "unit": "bits per byte", "difference": 0.03,
              "interval": [0.012, 0.048], "seeds": {"challenger": 1, "champion": 1}},
    "rows": [judged("web", 0.04, 0.0211, 0.0622), judged("code", -0.02, None, None, worse=True)],
}  # fmt: skip


def champion_page(folder: Path, comparison: dict[str, Any]) -> str:
    output = Output(Store(str(folder)), ArtifactId("test/comparison", "v1"), "1" * 64)
    with output.part("comparison", conserved=False) as part, part.file("comparison.json") as file:
        file.write(json.dumps(comparison).encode())
    commit(output, "compare", 1, Config(), [], Report())
    return canaries(recipe_in(folder), "v1", Address("/canaries", {"recipe": "test", "version": "v1"}))


def test_the_champion_is_compared_with_its_interval_row_by_row(tmp_path: Path) -> None:
    text = champion_page(tmp_path, COMPARISON)
    assert f"<strong>{COMPARISON['reason']}.</strong>" in text
    assert 'champion: <a href="/sluice/recipe/test?version=v0">test/model@v0</a>' in text
    assert '<td class="number">0.012</td>' in row_of(text, "score mean over 2 sources")
    assert '<td class="number">0.0211</td><td class="number">0.0622</td>' in row_of(text, "source web")
    assert ">surely worse</span>" in row_of(text, "source code")
    assert "This version has no decision about the mixture." in text


def test_the_first_champion_needs_no_comparison(tmp_path: Path) -> None:
    reason = "test/model@v1 becomes champion: it is the first, there was none to compare it with"
    text = champion_page(tmp_path, {**COMPARISON, "champion": None, "score": None, "rows": [], "reason": reason})
    assert f"<strong>{reason}.</strong>" in text
    assert "data-figure" not in text


def test_accepted_settings_are_listed(tmp_path: Path) -> None:
    text = page_of(tmp_path, promoted(settings={"tokenizer.vocab_size": 270}, variant="coarse"))
    assert '<dd class="value">coarse</dd>' in text
    assert "270" in row_of(text, "tokenizer.vocab_size")

"""A small decision of a cycle of canaries, for tests of what reads one."""

from pathlib import Path
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.stages.canary.decision import Decision, Fit

NOT_FITTED: dict[str, Any] = {
    "form": "power", "rank_agreement": None, "accuracy": 0.5, "error": 0.0, "optimism": 0.0, "selects": False,
    "proposed_bpb": 2.0, "worth": None, "left_out_bpb": {},
}  # fmt: skip


def decision(weights: dict[str, float], proposed: dict[str, float] | None = None, **changed: Any) -> Decision:
    """Returns the decision to keep a mixture, with the proposal of a response, and with some fields changed."""
    kept: dict[str, Any] = {
        "weights": weights, "winner": "arm-0", "current": "arm-0", "promoted": False, "reason": "arm-0 stays",
        "confidence": 0.95, "confirmation": None, "checks": {}, "runs": 2.0, "cost": "2 runs", "parameters": 1000,
        "small_models": True, "arms": [], "target": {}, "signals": {}, "lead": None, "rounds": [],
        "response": proposed and Fit(**NOT_FITTED, proposed_weights=proposed),
        "earlier": {"note": "There is no earlier cycle.", "cycles": [], "used": None, "tried": {}, "backtest": None},
        "registered": {"sequences": {}, "kept": {}, "most_arms": None, "rules": [], "settings": {}},
    }  # fmt: skip
    return Decision(**kept | changed)


def commit_decision(folder: Path, name: str, content: Decision, config: Config | None = None) -> Artifact:
    """Commits the artifact `name`, as "recipe/mixture@version", of a decision."""
    output = Output(Store(str(folder)), ArtifactId.parse(name), "0" * 64)
    with output.part("mixture", conserved=False) as part, part.file(Decision.FILE) as file:
        file.write(content.content())
    return commit(output, "decide", 1, config or Config(), [], Report())

"""Is the new one better, how sure, and what did it cost: the decision about the mixture, and about the champion.

Reads the decision and `comparison.json` of a version, the latter by the keys that it has: a key of another version of
the stage is left out of the page.
"""

import json
from collections.abc import Mapping
from typing import Any

from fastapi.responses import HTMLResponse

from sluice_ui import charts
from sluice_ui.access import At, Name, User, VersionName, readable, respond, router
from sluice_ui.frame import ROOT, Address, Version, badge, link, page
from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.core.terminal import duration
from tasks.core.version_index import VersionIndex
from tasks.run.recipe import Recipe
from tasks.run.runner import open_store
from tasks.stages.canary.decision import Decision, ScreenedArm, Sweep, listed

TRAININGS = ("canary", "confirmation")
"""First words of the kinds of artifacts with a canary training."""

COMPARISONS = {"comparison": "Champion", "tuned_comparison": "Champion of the fine-tuned models"}

_TONES = {"replaced": "pale", "stays": "good", "promoted": "good"}

Json = Mapping[str, Any]


def canaries(recipe: Recipe, version: str, at: Address) -> str:
    """Returns the page of the decisions of a version; raises InputError if it has no artifacts."""
    artifacts = VersionIndex(open_store(recipe), recipe.name).artifacts(version)
    if not artifacts:
        raise InputError(f"{recipe.name} has no artifacts of version {version}", "open another version")
    kinds = {artifact.address.name.removeprefix(f"{recipe.name}/"): artifact for artifact in artifacts}
    decision = Decision.read(kinds["mixture"]) if "mixture" in kinds else None
    champions = [
        (title, _champion(json.loads(kinds[kind].read("comparison.json")), recipe.name))
        for kind, title in COMPARISONS.items()
        if kind in kinds
    ]
    of = Version(recipe.name, version, "canaries", "crawl" in recipe.parts)
    return page(
        "canaries",
        f"{recipe.name} {version}: canaries and champion",
        at,
        of,
        mixture=_mixture(decision) if decision else None,
        cards=[*(_cards(decision) if decision else []), *_cost(kinds)],
        champions=champions,
    )  # fmt: skip


def _mixture(decision: Decision) -> dict[str, Any]:
    """Returns what the template shows of the decision about the mixture."""
    return {
        "reason": decision.reason,
        "cost": decision.cost,
        "settings": [[path, json.dumps(value)] for path, value in sorted((decision.settings or {}).items())],
        "confirmation": _confirmation(decision),
        "checks": _checks(decision),
        "screening": _screening(decision),
        "response": _response(decision),
        "sweep": _sweep(decision.sweep) if decision.sweep else None,
        "rounds": [[one.round, one.stopped, ", ".join(one.arms)] for one in decision.rounds],
    }


def _cards(decision: Decision) -> list[tuple[str, str, str]]:
    what, name = ("Settings", decision.variant) if decision.variant else ("Mixture", decision.winner)
    cards = [(what, name, "promoted" if decision.promoted else "stays")]
    confirmed = decision.confirmation
    if not confirmed:
        return [*cards, ("Sure", "no", "nothing was confirmed on fresh seeds")]
    low, high = confirmed.interval
    sure, seeds = f"{decision.confidence:.0%} interval", len(confirmed.seeds)
    return [
        *cards,
        ("Lower by", f"{confirmed.difference:.4f}", "bits per byte of held-out text, on the target"),
        (sure, f"{low:+.4f} to {high:+.4f}", f"of {seeds} paired differences on fresh seeds"),
    ]


def _cost(kinds: Mapping[str, Artifact]) -> list[tuple[str, str, str]]:
    """Returns the number and the time of the canary trainings of the version; [] without one."""
    records = [one.record for kind, one in kinds.items() if kind.partition("/")[0] in TRAININGS]
    made = [record for record in records if not record.adopted_from]
    if not records:
        return []
    seconds = sum((record.finished - record.started).total_seconds() for record in made)
    adopted = len(records) - len(made)
    return [("Cost", duration(seconds), f"of {len(made)} canary trainings, {adopted} adopted")]


def _confirmation(decision: Decision) -> dict[str, Any] | None:
    confirmed = decision.confirmation
    if not confirmed:
        return None
    rows = list(zip(map(str, confirmed.seeds), confirmed.differences, strict=True))
    points: list[tuple[str, float, charts.Interval]] = [(f"seed {seed}", value, (None, None)) for seed, value in rows]
    title = f"{confirmed.arm} lower than {decision.current} by, bits per byte"
    return {
        "figure": charts.differences([*points, ("mean", confirmed.difference, confirmed.interval)], title),
        "label": title,
        "rows": rows,
        "worse": confirmed.worse,
    }


def _checks(decision: Decision) -> list[list[object]]:
    """Returns a row per further comparison that a promotion needs."""
    named = {
        "the same mixture with other data (A/A)": decision.checks.again,
        "one fifth of the learning rate": decision.checks.low_rate,
    }
    return [
        [label, check.difference, len(check.seeds),
         badge("passed", "good") if check.passed else badge("failed", "bad")]
        for label, check in named.items() if check
    ]  # fmt: skip


def _screening(decision: Decision) -> dict[str, Any]:
    arms = sorted(decision.arms, key=lambda arm: (arm.target_bpb, arm.arm))
    sources = sorted({source for arm in arms for source in arm.weights})
    measured = sorted({source for arm in arms for source in arm.bpb})
    rows = [
        [arm.arm, arm.kind, _verdict(arm, decision), arm.target_bpb,
         None if arm.arm == decision.current else arm.difference,
         *map(arm.weights.get, sources), *map(arm.bpb.get, measured)]
        for arm in arms
    ]  # fmt: skip
    head = ["arm", "kind", "verdict", "#target bpb", "#lower by", *(f"#weight of {name}" for name in sources),
            *(f"#{'bits' if name in decision.tasks else 'bpb'} of {name}" for name in measured)]  # fmt: skip
    title = f"lower than {decision.current} by, bits per byte; of the screening, without an interval"
    return {
        "head": head,
        "rows": rows,
        "figure": charts.differences([(arm.arm, arm.difference, (None, None)) for arm in arms], title),
        "label": f"Difference of each arm: {title}",
        "target": listed(decision.target),
    }


def _verdict(arm: ScreenedArm, decision: Decision) -> object:
    verdict = decision.verdict(arm)
    return badge(verdict, _TONES.get(verdict, "bad")) if verdict else ""


def _response(decision: Decision) -> str:
    """Returns the summary of the fit over the weights in a sentence; "" without one."""
    fit = decision.response
    if not fit:
        return ""
    agreement = fit.rank_agreement
    ranks = "" if agreement is None else f" Its rank correlation with arms that were left out is {agreement:.2f}."
    weights = listed(fit.proposed_weights)
    return f"A fit over the weights proposes {weights} and predicts {fit.proposed_bpb:.4f} bits per byte.{ranks}"


def _sweep(sweep: Sweep) -> dict[str, Any]:
    return {
        "recommendation": sweep.recommendation,
        "head": ["#dim", *(f"#lr {lr:g}" for lr in sweep.lr), "#best lr"],
        "rows": [[row.dim, *row.bpb, sweep.best(row)] for row in sweep.widths],
    }


def _champion(comparison: Json, recipe: str) -> dict[str, Any]:
    """Returns what the template shows of a comparison of champion and challenger."""
    rows, score = comparison.get("rows") or [], comparison.get("score")
    models = [
        (role, _version_link(comparison[role]["artifact"], recipe))
        for role in ("champion", "challenger")
        if comparison.get(role)
    ]
    shown: dict[str, Any] = {"reason": comparison["reason"], "models": models, "rows": [], "figure": "", "label": ""}
    if not rows or not score:
        return shown
    bits = [row for row in rows if row["metric"] == "bpb"]
    drawn = bits or rows
    unit = "bits per byte of held-out text" if bits else "share of the items"
    label = f"challenger better by, {unit}, with {comparison.get('confidence', 0.95):.0%} intervals"
    points = [(f"{row['kind']} {row['name']}", row["difference"], _interval(row)) for row in drawn]
    shown["figure"] = charts.differences(points, label)
    mean = f"mean over {len(score['names'])} {score['of']}"
    shown |= {"label": label, "rows": [_row({"kind": "score", "name": mean, "metric": score["unit"], **score})]}
    shown["rows"] += [_row(row) for row in rows]
    return shown


def _row(row: Json) -> list[object]:
    low, high = _interval(row)
    remark = badge("surely worse", "bad") if row.get("worse") else ""
    return [f"{row['kind']} {row['name']}", row["metric"], row.get("items"), _rounded(row.get("first")),
            _rounded(row.get("second")), _rounded(row["difference"]), _rounded(low), _rounded(high),
            remark]  # fmt: skip


def _version_link(address: str, recipe: str) -> object:
    name, _, version = address.partition("@")
    return link(address, f"{ROOT}/recipe/{name.partition('/')[0] or recipe}", version=version)


def _interval(of: Json) -> tuple[float | None, float | None]:
    """Returns the ends of an interval; None for an end that is infinite, and for both without one."""
    low, high = of.get("interval") or (None, None)
    return low, high


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


routes = router()


@routes.get("/canaries")
def canaries_page(recipe: Name, version: VersionName, user: User, at: At) -> HTMLResponse:
    """Decisions about mixture and champion."""
    return respond(lambda: canaries(readable(recipe, user), version, at))

"""Is the new one better, how sure, and what did it cost: the decision about the mixture, and about the champion.

Reads `mixture.json` and `comparison.json` of a version by the keys that they have: a key of another version of a stage
is left out of the page.
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

TRAININGS = ("canary", "confirmation")
"""First words of the kinds of artifacts with a canary training."""

COMPARISONS = {"comparison": "Champion", "tuned_comparison": "Champion of the fine-tuned models"}

Json = Mapping[str, Any]


def canaries(recipe: Recipe, version: str, at: Address) -> str:
    """Returns the page of the decisions of a version; raises InputError if it has no artifacts."""
    artifacts = VersionIndex(open_store(recipe), recipe.name).artifacts(version)
    if not artifacts:
        raise InputError(f"{recipe.name} has no artifacts of version {version}", "open another version")
    kinds = {artifact.address.name.removeprefix(f"{recipe.name}/"): artifact for artifact in artifacts}
    decision = json.loads(kinds["mixture"].read("mixture.json")) if "mixture" in kinds else None
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
        reason=decision.get("reason", "") if decision else "",
        cards=[*(_cards(decision) if decision else []), *_cost(kinds)],
        cost=decision.get("cost", "") if decision else "",
        confirmation=_confirmation(decision) if decision else None,
        settings=[[path, json.dumps(value)] for path, value in sorted((decision or {}).get("settings", {}).items())],
        checks=_checks(decision) if decision else [],
        rounds=[[one.get(name) for name in ("round", "stopped")] + [", ".join(one.get("arms", ()))]
                for one in (decision or {}).get("rounds") or ()],
        screening=_screening(decision) if decision else None,
        response=_response(decision) if decision else "",
        champions=champions,
    )  # fmt: skip


def _cards(decision: Json) -> list[tuple[str, str, str]]:
    confirmed = decision.get("confirmation")
    what, name = ("Settings", decision["variant"]) if "settings" in decision else ("Mixture", decision["winner"])
    cards = [(what, str(name), "promoted" if decision.get("promoted") else "stays")]
    if not confirmed:
        return [*cards, ("Sure", "no", "nothing was confirmed on fresh seeds")]
    low, high = _interval(confirmed)
    cards.append(("Lower by", f"{confirmed['difference']:.4f}", "bits per byte of held-out text, on the target"))
    sure = f"{decision.get('confidence', 0.95):.0%}"
    shown = f"{low:+.4f} to {high:+.4f}" if low is not None and high is not None else "none"
    return [*cards, (f"{sure} interval", shown, f"of {len(confirmed['seeds'])} paired differences on fresh seeds")]


def _cost(kinds: Mapping[str, Artifact]) -> list[tuple[str, str, str]]:
    """Returns the number and the time of the canary trainings of the version; [] without one."""
    records = [one.record for kind, one in kinds.items() if kind.partition("/")[0] in TRAININGS]
    made = [record for record in records if not record.adopted_from]
    if not records:
        return []
    seconds = sum((record.finished - record.started).total_seconds() for record in made)
    adopted = len(records) - len(made)
    return [("Cost", duration(seconds), f"of {len(made)} canary trainings, {adopted} adopted")]


def _confirmation(decision: Json) -> dict[str, Any] | None:
    confirmed = decision.get("confirmation")
    if not confirmed:
        return None
    seeds = [str(seed) for seed in confirmed["seeds"]]
    values = list(confirmed["differences"])
    low, high = _interval(confirmed)
    points: list[tuple[str, float, charts.Interval]]
    points = [(f"seed {seed}", value, (None, None)) for seed, value in zip(seeds, values, strict=True)]
    if low is not None and high is not None:
        points.append(("mean", confirmed["difference"], (low, high)))
    title = f"{confirmed['arm']} lower than {decision['current']} by, bits per byte"
    return {
        "figure": charts.differences(points, title),
        "label": title,
        "rows": [[seed, value] for seed, value in zip(seeds, confirmed["differences"], strict=True)],
        "worse": _shares(confirmed.get("regressions") or {}),
    }


def _checks(decision: Json) -> list[list[object]]:
    """Returns a row per further comparison that a promotion needs."""
    labels = {"again": "the same mixture with other data (A/A)", "low_rate": "one fifth of the learning rate"}
    return [
        [labels.get(name, name), check.get("difference"), len(check.get("seeds") or ()),
         badge("passed", "good") if check.get("passed") else badge("failed", "bad")]
        for name, check in sorted((decision.get("checks") or {}).items())
    ]  # fmt: skip


def _screening(decision: Json) -> dict[str, Any]:
    arms = sorted(decision["arms"], key=lambda arm: (arm["target_bpb"], arm["arm"]))
    sources = sorted({source for arm in arms for source in arm["weights"]})
    measured = sorted({source for arm in arms for source in arm["bpb"]})
    rows = []
    for arm in arms:
        weights = [arm["weights"].get(source) for source in sources]
        bits = [arm["bpb"].get(source) for source in measured]
        rows.append(
            [arm["arm"], arm["kind"], _verdict(arm, decision), arm["target_bpb"],
             None if arm["arm"] == decision["current"] else arm["difference"], *weights, *bits]
        )  # fmt: skip
    head = ["arm", "kind", "verdict", "#target bpb", "#lower by", *(f"#weight of {name}" for name in sources),
            *(f"#{'bits' if name in decision.get('tasks', {}) else 'bpb'} of {name}" for name in measured)]  # fmt: skip
    title = f"lower than {decision['current']} by, bits per byte; of the screening, without an interval"
    return {
        "head": head,
        "rows": rows,
        "figure": charts.differences([(arm["arm"], arm["difference"], (None, None)) for arm in arms], title),
        "label": f"Difference of each arm: {title}",
        "target": ", ".join(f"{name} {share:.3f}" for name, share in sorted(decision.get("target", {}).items())),
    }


def _verdict(arm: Json, decision: Json) -> object:
    confirmed = decision.get("confirmation")
    if arm["arm"] == decision["current"]:
        return badge("replaced", "pale") if decision.get("promoted") else badge("stays", "good")
    if confirmed and arm["arm"] == confirmed["arm"]:
        return badge("promoted", "good") if decision.get("promoted") else badge("not confirmed", "bad")
    worse = arm.get("regressions") or {}
    return badge(f"worse on {', '.join(worse)}", "bad") if worse else ""


def _response(decision: Json) -> str:
    """Returns the summary of the fit over the weights in a sentence; "" without one."""
    fit = decision.get("response")
    if not fit or "proposed_weights" not in fit:
        return ""
    weights = ", ".join(f"{name} {share:.3f}" for name, share in sorted(fit["proposed_weights"].items()))
    agreement = fit.get("rank_agreement")
    ranks = "" if agreement is None else f" Its rank correlation with arms that were left out is {agreement:.2f}."
    return f"A fit over the weights proposes {weights} and predicts {fit['proposed_bpb']:.4f} bits per byte.{ranks}"


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


def _shares(worse: Json) -> str:
    return ", ".join(f"{source} {share:+.1%}" for source, share in sorted(worse.items()))


routes = router()


@routes.get("/canaries")
def canaries_page(recipe: Name, version: VersionName, user: User, at: At) -> HTMLResponse:
    """Decisions about mixture and champion."""
    return respond(lambda: canaries(readable(recipe, user), version, at))

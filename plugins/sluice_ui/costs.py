"""What the versions of a recipe cost, planned and real, the disk that they take, and which of them others need.

Reads the records of the versions that are shown, the comparison of plan and run where the recipe has `[plan]`, and the
names of their users in the index.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fastapi.responses import HTMLResponse
from markupsafe import Markup

from sluice_ui.access import At, Name, User, readable, respond, router
from sluice_ui.frame import ROOT, Address, Version, badge, bar, link, page, page_of, size
from tasks.core.artifact import RECORD, Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.core.terminal import duration
from tasks.core.version_index import VersionIndex, find_readable
from tasks.formats.documents.tombstones import TAKEDOWN
from tasks.run.recipe import Recipe
from tasks.run.runner import open_store
from tasks.stages.registry.promote import CHAMPION, DECISION

PER_PAGE = 25
"""Versions on one page."""

FIGURES = ("price", "GPU-hours")
"""Planned and real figures of a training that are columns, if the recipe has a plan."""

MOST_USERS = 3
"""Versions that need one, in the table; more are counted."""

COUNTED = 100
"""Versions up to which they are counted."""


@dataclass(frozen=True)
class Cost:
    """What one version cost.

    Attributes:
        planned: figures of its estimate by name, such as "price" and "GPU-hours"; {} without one.
        real: those of the training run at the planned rates, as far as it was measured.
        seconds: time of the stages that made its artifacts.
        slowest: the stage with most of it.
        made: bytes of its own files.
        adopted: bytes of files that it uses of other versions.
    """

    planned: Mapping[str, float]
    real: Mapping[str, float]
    seconds: float
    slowest: str
    made: int
    adopted: int

    @classmethod
    def of(cls, artifacts: Sequence[Artifact], recipe: str) -> "Cost":
        """Adds up the artifacts of a version."""
        own = [artifact.record for artifact in artifacts if not artifact.record.adopted_from]
        by_stage: dict[str, float] = defaultdict(float)
        for record in own:
            by_stage[record.stage] += (record.finished - record.started).total_seconds()
        by_kind = {artifact.address.name.removeprefix(f"{recipe}/"): artifact for artifact in artifacts}
        planned, real = _training(by_kind)
        return cls(
            planned,
            real,
            sum(by_stage.values()),
            max(by_stage, key=lambda stage: by_stage[stage], default=""),
            sum(record.stored() for record in own),
            sum(artifact.record.bytes - artifact.record.stored() for artifact in artifacts),
        )


def _training(by_kind: Mapping[str, Artifact]) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the planned and the real figures of a version's training."""
    if reconciled := by_kind.get("reconciled"):
        rows = json.loads(reconciled.read("reconciled.json"))
        planned = {row["name"]: row["planned"] for row in rows if row["planned"] is not None}
        return planned, {row["name"]: row["real"] for row in rows if row["real"] is not None}
    if estimate := by_kind.get("estimate"):
        metrics = estimate.record.metrics
        names = {"price": "price", "gpu_hours": "GPU-hours"}
        return {title: metrics[name] for name, title in names.items() if name in metrics}, {}
    return {}, {}


def costs(recipe: Recipe, at: Address) -> str:
    """Returns the page of a recipe's costs; raises InputError if it has no version."""
    store = open_store(recipe)
    index = VersionIndex(store, recipe.name)
    known = index.versions()
    if not known:
        raise InputError(f"{recipe.name} has no artifacts yet", "run one of its DAGs first")
    number, pages = page_of(at, len(known), PER_PAGE)
    shown = known[(number - 1) * PER_PAGE : number * PER_PAGE]
    found = {version: Cost.of(index.artifacts(version), recipe.name) for version in shown}
    champion = _champion(store, recipe.name, known)
    largest = max((cost.made for cost in found.values()), default=0) or 1
    planned = "plan" in recipe.parts or any(cost.planned for cost in found.values())
    figures = [name for name in FIGURES if planned]
    rows: list[list[object]] = [
        [link(version, f"{ROOT}/recipe/{recipe.name}", version=version), _needed(index, version, champion),
         round(cost.made / 1e6, 1), bar(cost.made / largest), round(cost.adopted / 1e6, 1),
         round(cost.seconds / 60, 1), cost.slowest,
         *(of.get(name) for name in figures for of in (cost.planned, cost.real))]
        for version, cost in found.items()
    ]  # fmt: skip
    return page(
        "costs",
        "Cost and disk",
        at,
        Version(recipe.name, "", "costs", "crawl" in recipe.parts),
        cards=_totals(list(found.values())),
        figures=[f"#{which} {name}" for name in figures for which in ("planned", "real")],
        rows=rows,
        number=number,
        pages=pages,
        count=len(known),
        links={step: at.href(page=str(number + step)) for step in (-1, 1) if 1 <= number + step <= pages},
        planned=planned,
    )


def _totals(found: Sequence[Cost]) -> list[tuple[str, str, str]]:
    """Returns label, value and remark of the sums over the versions that are shown; a price only if one is known."""

    def price(of: str) -> str:
        prices = [getattr(cost, of)["price"] for cost in found if "price" in getattr(cost, of)]
        return f"{sum(prices):,.4g}" if prices else ""

    prices = [
        ("Planned price", price("planned"), "of the trainings with an estimate"),
        ("Real price", price("real"), "of the measured trainings, at the planned rates"),
    ]
    return [
        *(card for card in prices if card[1]),
        ("Stage time", duration(sum(cost.seconds for cost in found)), "of the stages that made something"),
        ("Disk", size(sum(cost.made for cost in found)), "own files of these versions"),
        ("Saved by adoption", size(sum(cost.adopted for cost in found)), "files of other versions that they use"),
    ]


def _champion(store: Store, recipe: str, versions: Sequence[str]) -> str:
    """Returns the id of the champion's model; "" if there is none."""
    decided = set(store.folders(f"{recipe}/champion"))
    for version in versions:
        if version in decided and (found := find_readable(store, ArtifactId(f"{recipe}/champion", version))):
            return str(json.loads(found.read(DECISION))[CHAMPION]["artifact"])
    return ""


def _needed(index: VersionIndex, version: str, champion: str) -> Markup:
    """Returns who needs the files of a version."""
    own = f"{index.recipe}/"
    by_version: dict[tuple[str, str], str] = {}
    for user in index.users_of_version(version):
        by_version.setdefault((user.partition("/")[0], user.rpartition("@")[2]), user)
        if len(by_version) == COUNTED:
            break
    needed: list[Markup] = []
    for (recipe, other), user in by_version.items():
        if len(needed) < MOST_USERS and find_readable(index.store, ArtifactId.parse(user)):
            name = other if user.startswith(own) else f"{recipe} {other}"
            needed.append(link(name, f"{ROOT}/recipe/{recipe}", version=other))
    more = len(by_version) - len(needed) if len(needed) == MOST_USERS else 0
    text = Markup(", ").join(needed) + (
        f" and {'at least ' if len(by_version) == COUNTED else ''}{more} more" if more else ""
    )
    if champion.rpartition("@")[2] == version and champion.startswith(own):
        text = badge("champion", "good") + (Markup(" ") + text if text else "")
    if index.store.exists(f"{own}{TAKEDOWN}/{version}/{RECORD}"):
        text = badge("takedown", "bad") + (Markup(" ") + text if text else "")
    return text or badge("no other version", "pale")


routes = router()


@routes.get("/costs")
def costs_page(recipe: Name, user: User, at: At) -> HTMLResponse:
    """Cost and disk of the versions of a recipe."""
    return respond(lambda: costs(readable(recipe, user), at))

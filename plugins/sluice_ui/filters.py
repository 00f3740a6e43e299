"""The page of the filters: the values that each limit is compared with, and what other limits would keep.

Reads the measured columns of a version and computes verdicts as `what-if` and the stage `consolidate` do. Of a version
with more than MOST documents it reads a sample, and the numbers are estimates with a 95 % interval.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from fastapi import Form, Request, Response
from fastapi.concurrency import run_in_threadpool

from sluice_ui.access import VERSION_NAME, At, Name, User, VersionName, readable, respond, router
from sluice_ui.frame import ROOT, Address, Version, link, page
from sluice_ui.histogram import SIDES, Histogram, figure
from sluice_ui.trigger import Token, offer, trigger
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.config import changes
from tasks.core.errors import SluiceError
from tasks.run.forecast import changed_settings, inputs_at, settings_of
from tasks.run.recipe import Recipe
from tasks.run.runner import open_store
from tasks.stages.consolidate.aligned_inputs import AlignedInputs
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.limit_values import LimitSummary, summaries
from tasks.stages.consolidate.sampling import Estimate, copies_of, estimate, sample_of
from tasks.stages.consolidate.what_if import WhatIfResult, what_if

MOST = 20_000
"""Documents of a version that are read in full; of a larger one, the first ones of some parts are a sample. Rows of a
part are in the order of ids, which are hashes, so its first rows are a random sample of it."""

EXAMPLES = 5
"""Documents that are shown for each direction in which verdicts change."""

SECTION = "consolidate"
_PREFIX = "limits."
_GOLD = "gold"
"""Setting whose names have dots, so that it is replaced as a whole; also the prefix of its paths."""

NUMBERS = ("kept_before", "kept_after", "gained", "lost", "gold_before", "gold_after")
"""Numbers of `PartCounts` that the page shows."""


@dataclass(frozen=True)
class Measured:
    """The measured documents of a version.

    Attributes:
        documents: the version's documents, with the settings they were made with.
        config: these settings.
        inputs: what they were made from.
        sample: the parts that are read; None for all.
    """

    documents: Artifact
    config: ConsolidateConfig
    inputs: AlignedInputs
    sample: list[str] | None

    @classmethod
    def open(cls, recipe: Recipe, version: str) -> "Measured":
        """Opens a version; raises InputError if it has no documents, or an input of them is gone."""
        store = open_store(recipe)
        documents = Artifact.open_at(store, ArtifactId(f"{recipe.name}/documents", version))
        inputs = inputs_at(store, recipe.name, version)
        return cls(documents, settings_of(documents), inputs, sample_of(inputs.extracted, MOST))

    @property
    def total(self) -> int:
        """Number of documents of the version."""
        return self.inputs.extracted.record.rows_out

    @property
    def most(self) -> int | None:
        """Number of documents that are read of each part; None for all."""
        return None if self.sample is None else -(-MOST // len(self.sample))

    def limits(self) -> list[LimitSummary]:
        """Returns the numeric limits with the values of all documents or the sample."""
        return summaries(self.config, self.inputs, self.sample, self.most)

    def compare(self, after: ConsolidateConfig) -> WhatIfResult:
        """Returns what other settings would keep, of all documents or the sample."""
        copies = None if self.sample is None else copies_of(self.documents, self.sample)
        return what_if(self.config, after, self.inputs, EXAMPLES, copies, self.most)

    def estimate(self, result: WhatIfResult, name: str) -> Estimate:
        """Returns a number of `PartCounts` for the whole version."""
        sizes, parts = self._sizes
        counts = [
            getattr(part, name) * size / max(1, part.documents) for part, size in zip(result.parts, sizes, strict=True)
        ]
        return estimate(counts, sizes, self.total, parts)

    @cached_property
    def _sizes(self) -> tuple[list[int], int]:
        """Number of documents of each part that is read, and number of all parts."""
        names = self.inputs.names()
        rows = self.inputs.extracted.parts.rows_out()
        return [rows[part] for part in (names if self.sample is None else self.sample)], len(names)


def filters(recipe: Recipe, version: str, at: Address, user: Any) -> str:
    """Returns the page of the filters; the query has other limits by their dotted paths.

    Raises:
        InputError: the version has no documents, or an input of them is gone.
    """
    measured = Measured.open(recipe, version)
    limits = measured.limits()
    asked = _asked(limits, at.query)
    problem, effect, overrides = "", None, {}
    if asked:
        try:
            after = _changed(measured.config, asked)
            effect = _effect(measured, after, recipe, version)
            overrides = _overrides(recipe, after)
        except SluiceError as error:
            problem = str(error)
    of = Version(recipe.name, version, "filters", "crawl" in recipe.parts)
    return page(
        "filters",
        f"{recipe.name} {version}: filters",
        at,
        of,
        query=of.query,
        cards=_cards(limits, at.query),
        figure=figure,
        documents=measured.total,
        read=None if measured.sample is None else len(measured.sample),
        asked=asked,
        problem=problem,
        effect=effect,
        overrides=overrides,
        offer=offer(user, f"{recipe.name}.corpus") if effect else None,
        suggestion=f"{version}-limits",
        version_pattern=VERSION_NAME,
        reset=Address("/filters", of.query).href(),
    )


def _asked(limits: Sequence[LimitSummary], query: Mapping[str, str]) -> dict[str, Any]:
    """Returns the limits of the address that differ from those of the version, by dotted path."""
    asked: dict[str, Any] = {}
    for limit, *_ in limits:
        text = query.get(limit.path, "").strip()
        if text and (value := _number(text)) != limit.bound:
            asked[limit.path] = value
    return asked


def _changed(config: ConsolidateConfig, asked: Mapping[str, Any]) -> ConsolidateConfig:
    """Returns the settings with other limits by dotted path; raises RecipeError for an unusable value."""
    values = {path: value for path, value in asked.items() if not path.startswith(f"{_GOLD}.")}
    gold = {path.removeprefix(f"{_GOLD}."): value for path, value in asked.items() if path not in values}
    return changed_settings(config, {**values, **({_GOLD: {**config.gold, **gold}} if gold else {})})


def _number(text: str) -> int | float | str:
    """Returns a number, as an integer if it is one; other text as it is, for the error of the settings."""
    try:
        value = float(text)
    except ValueError:
        return text
    return int(value) if value.is_integer() else value


def _cards(limits: Sequence[LimitSummary], query: Mapping[str, str]) -> list[dict[str, Any]]:
    """Returns the limits as the template shows them: by path, with a histogram for each reason, on the same axis."""
    by_path: dict[str, list[LimitSummary]] = {}
    for summary in limits:
        by_path.setdefault(summary.limit.path, []).append(summary)
    return [_card(of_path, query.get(path, "").strip()) for path, of_path in by_path.items()]


def _card(limits: Sequence[LimitSummary], text: str) -> dict[str, Any]:
    first = limits[0].limit
    asked = _number(text) if text else first.bound
    tried = asked if isinstance(asked, int | float) and math.isfinite(asked) else first.bound
    bounds = [value for value in (first.bound, tried) if value is not None]
    axis = Histogram.of(np.concatenate([summary.limit.values for summary in limits]), bounds)
    return {
        "path": first.path,
        "name": first.path.removeprefix(_PREFIX),
        "side": first.side,
        "words": SIDES[first.side],
        "own": _text(first.bound),
        "text": text or _text(first.bound),
        "axis": axis,
        "reasons": [
            {
                "reason": limit.reason,
                "documents": len(limit.values),
                "beyond": beyond,
                "alone": alone,
                "drawn": axis.count(limit.values).drawn(first.bound, tried, first.side),
            }
            for limit, beyond, alone in limits
        ],
    }


def _text(bound: float | None) -> str:
    return "" if bound is None else str(int(bound)) if float(bound).is_integer() else str(bound)


def _effect(measured: Measured, after: ConsolidateConfig, recipe: Recipe, version: str) -> dict[str, Any]:
    """Returns the numbers and examples of other limits as the template shows them."""
    result = measured.compare(after)
    numbers = {name: measured.estimate(result, name) for name in NUMBERS}
    examples = [
        [
            move.before or "kept",
            move.after or "kept",
            link(move.url or move.id, f"{ROOT}/trace", recipe=recipe.name, version=version, what=move.id),
            "" if move.value is None else round(move.value, 4),
            move.text,
        ]
        for move in result.moved
    ]
    return {"numbers": numbers, "examples": examples, "gold": bool(after.gold)}


def _overrides(recipe: Recipe, after: ConsolidateConfig) -> dict[str, Any]:
    """Returns the overrides of a run that makes documents with these settings, by dotted path of the recipe."""
    before = recipe.of(ConsolidateConfig)
    own, other = (config.model_dump(mode="json", exclude={"kinds", _GOLD}) for config in (before, after))
    found = changes(own, other, SECTION)
    overrides = {path: {} if value is None and isinstance(old, dict) else value for path, old, value in found}
    return overrides if before.gold == after.gold else {**overrides, f"{SECTION}.{_GOLD}": dict(after.gold)}


routes = router()


@routes.get("/filters")
def filters_page(recipe: Name, version: VersionName, user: User, at: At) -> Response:
    """The filters of a version, and what other limits would keep."""
    found = readable(recipe, user)
    return respond(lambda: filters(found, version, at, user))


@routes.post("/filters")
async def make_version(
    request: Request,
    recipe: Name,
    version: VersionName,
    user: User,
    at: At,
    token: Token = "",
    new_version: Annotated[str, Form(pattern=f"^{VERSION_NAME}$", max_length=100)] = "",
) -> Response:
    """Triggers the corpus of a new version with the limits of the address."""
    found = await run_in_threadpool(readable, recipe, user)
    conf: dict[str, object] = {"version": new_version, "source_version": version}

    def overrides() -> str:
        measured = Measured.open(found, version)
        limits = measured.limits()
        conf["overrides"] = _overrides(found, _changed(measured.config, _asked(limits, at.query)))
        return ""

    await run_in_threadpool(respond, overrides)
    made = await trigger(request, user, token, f"{recipe}.corpus", conf)
    return made.response

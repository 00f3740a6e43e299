"""What of a version needs a person: faults, open decisions, takedowns that came later, inputs that have changed.

Reads records, and of the estimate whether the training fits.
"""

import json
from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup

from sluice_ui.frame import ROOT, artifact_link, link
from sluice_ui.lineage import marks
from tasks.core.artifact import Artifact, ArtifactId, InputRef
from tasks.core.ledger import changed
from tasks.core.store import Store
from tasks.core.version_index import find_readable

MOST_REFS = 200
"""Inputs of other versions that are looked up."""

DEARER = 1.5
"""Ratio of the real and the planned price above which it is shown."""

DECISIONS = {"comparison": "champion", "tuned_comparison": "tuned_champion"}
"""Kind of the decision that follows a comparison."""


def attention(store: Store, recipe: str, version: str, artifacts: Sequence[Artifact]) -> list[tuple[Markup | str, str]]:
    """Returns where something needs a person, as a link, and what it is."""
    kinds = {artifact.address.name.removeprefix(f"{recipe}/"): artifact for artifact in artifacts}
    return [
        *_faults(artifacts),
        *_open_decisions(kinds),
        *_plan(kinds),
        *_taken_down(store, recipe, artifacts),
        *_changed_inputs(store, artifacts),
    ]


def _faults(artifacts: Sequence[Artifact]) -> Iterator[tuple[Markup | str, str]]:
    """Yields the artifacts whose run had alerts or faults."""
    for one in artifacts:
        counts = {
            name: value
            for name, value in one.record.metrics.items()
            if value and name.startswith(("alerts/", "faults/"))
        }
        if counts:
            text = ", ".join(f"{name.replace('/', ': ')} {value:,.0f}" for name, value in sorted(counts.items()))
            yield artifact_link(str(one.address)), text


def _open_decisions(kinds: Mapping[str, Artifact]) -> Iterator[tuple[Markup | str, str]]:
    for comparison, decision in DECISIONS.items():
        if comparison in kinds and decision not in kinds and kinds[comparison].record.metrics.get("promoted"):
            found = kinds[comparison]
            yield (
                artifact_link(str(found.address)),
                f"the model is to become champion, but the decision is open. {found.record.note}",
            )


def _plan(kinds: Mapping[str, Artifact]) -> Iterator[tuple[Markup | str, str]]:
    if "estimate" in kinds and "checkpoint" not in kinds:
        memory = json.loads(kinds["estimate"].read("estimate.json"))["memory"]
        if not memory["fits"]:
            text = f"the training needs {memory['needed_gib']:,.1f} GiB on a rank that has {memory['usable_gib']:,.1f}"
            yield artifact_link(str(kinds["estimate"].address)), text
    if "reconciled" in kinds:
        ratio = kinds["reconciled"].record.metrics.get("ratio/price", 0.0)
        if ratio > DEARER:
            yield (
                artifact_link(str(kinds["reconciled"].address)),
                f"the training cost {ratio:.2f} times its planned price",
            )


def _taken_down(store: Store, recipe: str, artifacts: Sequence[Artifact]) -> Iterator[tuple[Markup | str, str]]:
    if found := marks(store, recipe, artifacts):
        names = ", ".join(address.partition("@")[0].removeprefix(f"{recipe}/") for address in sorted(found))
        yield (
            link("takedowns", f"{ROOT}/takedowns", recipe=recipe),
            f"up to {max(found.values()):,} documents were taken down after this version was made: {names}",
        )


def _changed_inputs(store: Store, artifacts: Sequence[Artifact]) -> Iterator[tuple[Markup | str, str]]:
    """Yields the artifacts with an input that is gone or has other bytes now."""
    now: dict[str, Artifact | None] = {str(one.address): one for one in artifacts}
    left = MOST_REFS
    for one in artifacts:
        for ref in one.record.inputs:
            if ref.address not in now and left:
                left -= 1
                now[ref.address] = _found(store, ref)
            if ref.address in now and (text := changed(ref, now[ref.address])):
                yield artifact_link(str(one.address)), text


def _found(store: Store, ref: InputRef) -> Artifact | None:
    name, at_sign, version = ref.address.partition("@")
    return find_readable(store, ArtifactId(name, version)) if at_sign else None

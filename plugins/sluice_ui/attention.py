"""What of a version needs a person: runs that wait or failed, faults, decisions, takedowns, lost inputs, a full disk.

Reads records, of the estimate whether the training fits, Airflow's database, and the free space of a local store.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup

from sluice_ui.frame import ROOT, artifact_link, link, size
from sluice_ui.lineage import marks
from sluice_ui.scheduling import open_runs
from tasks.core.artifact import Artifact, ArtifactId, InputRef
from tasks.core.ledger import changed
from tasks.core.store import Store
from tasks.core.version_index import find_readable

MOST_REFS = 200
"""Inputs of other versions that are looked up."""

DEARER = 1.5
"""Ratio of the real and the planned price above which it is shown."""

LOOK_AT = {
    "seeds": {"bad_seeds": "invalid lines of seed files are left out"},
    "documents": {"sources_nearly_lost": "sources have lost nearly all documents to the filters"},
}
"""Metrics that need a person if they are not 0, by kind, with what they count."""

DECISIONS = {"comparison": "champion", "tuned_comparison": "tuned_champion"}
"""Kind of the decision that follows a comparison."""


def attention(store: Store, recipe: str, version: str, artifacts: Sequence[Artifact]) -> list[tuple[Markup | str, str]]:
    """Returns where something needs a person, as a link, and what it is."""
    kinds = {artifact.address.name.removeprefix(f"{recipe}/"): artifact for artifact in artifacts}
    return [
        *open_runs(recipe, version),
        *_faults(artifacts),
        *_counts(kinds),
        *_open_decisions(kinds),
        *_plan(kinds),
        *_taken_down(store, recipe, artifacts),
        *_changed_inputs(store, artifacts),
        *_full_disk(store, recipe, artifacts),
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


def _counts(kinds: Mapping[str, Artifact]) -> Iterator[tuple[Markup | str, str]]:
    for kind, metrics in LOOK_AT.items():
        for metric, text in metrics.items():
            if kind in kinds and (count := kinds[kind].record.metrics.get(metric)):
                yield artifact_link(str(kinds[kind].address)), f"{count:,.0f} {text}. {kinds[kind].record.note}"


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
        estimate = json.loads(kinds["estimate"].read("estimate.json"))
        memory, texts = estimate["memory"], list(estimate["warnings"])
        if not memory["fits"]:
            texts.append(
                f"the training needs {memory['needed_gib']:,.1f} GiB on a rank that has {memory['usable_gib']:,.1f}"
            )
        for text in texts:
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


def _full_disk(store: Store, recipe: str, artifacts: Sequence[Artifact]) -> Iterator[tuple[Markup | str, str]]:
    """Yields whether another version of this size would not fit on the disk of a local store."""
    if not store.is_local:
        return
    made, free = sum(one.record.stored() for one in artifacts), disk_free(store)
    if free < made:
        where = link("cost and disk", f"{ROOT}/costs", recipe=recipe)
        yield (
            where,
            f"the disk of the store has {size(free)} free, and this version took {size(made)}: another may not fit",
        )


def disk_free(store: Store) -> int:
    """Returns the free bytes of the disk of a local store."""
    return shutil.disk_usage(store.root).free


def _found(store: Store, ref: InputRef) -> Artifact | None:
    name, at_sign, version = ref.address.partition("@")
    return find_readable(store, ArtifactId(name, version)) if at_sign else None

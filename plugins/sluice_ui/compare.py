"""Two versions of a recipe side by side: settings, funnel, documents that changed sides, figures, scores.

Reads records, funnels and scores. Kept documents are looked up in the other version: all of them in a small version, a
sample in a large one, whose size is on the page.
"""

import json
import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi.responses import HTMLResponse

from sluice_ui import charts
from sluice_ui.access import AnyVersion, At, Name, User, VersionName, readable, respond, router
from sluice_ui.costs import Cost
from sluice_ui.frame import ROOT, Address, Version, artifact_link, link, page
from tasks.core.artifact import Artifact
from tasks.core.config import changes
from tasks.core.errors import InputError
from tasks.core.version_index import VersionIndex
from tasks.formats.documents.key_index import ID, KeyIndex
from tasks.formats.documents.tombstones import TAKEDOWN
from tasks.formats.tokens.index import DocumentIndex
from tasks.run.catalogue import STAGES
from tasks.run.recipe import Recipe
from tasks.run.runner import open_store
from tasks.run.trace.graph import many
from tasks.stages.consolidate.funnel import totals
from tasks.stages.registry.promote import COMPARISON
from tasks.trainer.evaluation.paired import PairedDifference, mean, of_sized

MOST_VERSIONS = 100
"""Versions to choose from, those begun last."""

WHOLE = 100_000
"""Rows of documents up to which all of them are looked up."""

SAMPLE = 500
"""Kept documents of each version that are looked up in the other one if it is larger."""

MOST_PARTS = 8
"""Files of kept documents, and of rejected ones, that are read of a larger version."""

EXAMPLES = 20
"""Documents of each direction that are listed."""

CONFIDENCE = 0.95

_UNKNOWN = "not known: too few documents"

Kinds = Mapping[str, Artifact]

FIGURES = (
    ("documents", "kept", "kept documents"),
    ("documents", "kept_share", "kept share of the extracted documents"),
    ("documents", "kept_bytes", "bytes of kept text"),
    ("shards", "tokens", "tokens"),
    ("checkpoint", "loss", "loss, mean of the last twentieth of the steps, nats per token"),
    ("scores", "bpb", "bits per byte of held-out text"),
    ("scores", "unigram_bpb", "bits per byte of a unigram model"),
)
"""Figures of both versions: kind of the artifact, metric, and what it is."""


def compare(recipe: Recipe, version: str, other: str, at: Address) -> str:
    """Returns the page that compares a version with another one; without another one, only the choice.

    Raises:
        InputError: one of the versions has no artifacts.
    """
    store = open_store(recipe)
    index = VersionIndex(store, recipe.name)
    requests = set(store.folders(f"{recipe.name}/{TAKEDOWN}"))
    versions = [name for name in index.versions() if name not in requests]
    new = _kinds(index, version)
    older = versions[versions.index(version) + 1 :] if version in versions else []
    known = [name for name in versions[:MOST_VERSIONS] if name != version]
    of = Version(recipe.name, version, "compare", "crawl" in recipe.parts)
    values: dict[str, Any] = {
        "known": known,
        "other": other or next(iter(older), ""),
        "compared": None,
        "query": of.query,
    }
    if other:
        values["compared"] = _compared(recipe, _kinds(index, other), new, other, version)
    title = f"{version} compared with {other}" if other else f"Compare {version} with another version"
    return page("compare", title, at, of, **values)


def _kinds(index: VersionIndex, version: str) -> Kinds:
    """Returns the artifacts of a version by kind with member, such as "segment/p0"."""
    artifacts = index.artifacts(version)
    if not artifacts:
        raise InputError(f"{index.recipe} has no artifacts of version {version}", "choose one of the list")
    return {artifact.address.name.removeprefix(f"{index.recipe}/"): artifact for artifact in artifacts}


def _compared(recipe: Recipe, old: Kinds, new: Kinds, other: str, version: str) -> dict[str, Any]:
    """Returns everything of the comparison that the template shows."""
    moved = moves(old, new)
    return {
        "figures": _figures(recipe.name, old, new),
        "settings": settings(old, new),
        "same": _same(old, new),
        "funnel": funnel(old.get("documents"), new.get("documents")),
        "moved": moved,
        "counts": [] if moved is None else _counts(moved, other, version),
        "gained": [] if moved is None else _examples(moved.gained, recipe.name, version),
        "lost": [] if moved is None else _examples(moved.lost, recipe.name, other),
        "scores": paired_scores(old.get("scores"), new.get("scores")),
        "verdict": _verdict(new, old) or _verdict(old, new),
    }


def _figures(recipe: str, old: Kinds, new: Kinds) -> list[list[object]]:
    """Returns figure, both values and the difference."""
    rows: list[list[object]] = []

    def row(name: str, before: float | None, after: float | None) -> None:
        if before is not None or after is not None:
            both = before is not None and after is not None
            rows.append([name, before, after, after - before if both else None,  # type: ignore[operator]
                         f"{after / before - 1:+.1%}" if both and before else ""])  # type: ignore[operator]  # fmt: skip

    for kind, metric, name in FIGURES:
        row(name, *(_metric(kinds, kind, metric) for kinds in (old, new)))
    first, second = (Cost.of(list(kinds.values()), recipe) for kinds in (old, new))
    row("planned price of the training", first.planned.get("price"), second.planned.get("price"))
    row("real price of the training", first.real.get("price"), second.real.get("price"))
    row("real GPU-hours", first.real.get("GPU-hours"), second.real.get("GPU-hours"))
    row("minutes of its stages", round(first.seconds / 60, 2), round(second.seconds / 60, 2))
    row("MB of own files", round(first.made / 1e6, 1), round(second.made / 1e6, 1))
    return rows


def _metric(kinds: Kinds, kind: str, metric: str) -> float | None:
    value = kinds[kind].record.metrics.get(metric) if kind in kinds else None
    return int(value) if value is not None and value.is_integer() else value


def settings(old: Kinds, new: Kinds) -> list[list[object]]:
    """Returns each changed setting: dotted path, both values; and stages whose own version differs."""
    found: dict[str, tuple[str, str]] = {}
    for kind in sorted(old.keys() & new.keys()):
        before, after = old[kind].record, new[kind].record
        section = STAGES[after.stage].section if after.stage in STAGES else after.stage
        for path, first, second in changes(before.config, after.config, section):
            found.setdefault(path, (_value(first), _value(second)))
        if before.stage_version != after.stage_version:
            found[f"version of the stage {after.stage}"] = (str(before.stage_version), str(after.stage_version))
    return [[path, first, second] for path, (first, second) in sorted(found.items())]


def _value(value: object) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _same(old: Kinds, new: Kinds) -> list[str]:
    """Returns the kinds of artifacts with the same bytes in both versions, without members."""
    same = {kind for kind in old.keys() & new.keys() if old[kind].record.content == new[kind].record.content}
    return sorted({kind.partition("/")[0] for kind in same})


def funnel(old: Artifact | None, new: Artifact | None) -> list[list[object]]:
    """Returns source, step, reason, documents of both versions, and the difference; [] without both funnels."""
    counts: list[dict[tuple[str, str, str], int]] = []
    for documents in (old, new):
        if documents is None or "funnel.parquet" not in documents.files():
            return []
        rows = totals(documents.table("funnel.parquet"), ["source", "step", "reason"])
        counts.append({(row["source"], row["step"], row["reason"] or "kept"): row["documents"] for row in rows})
    before, after = counts
    return [
        [*key, before.get(key, 0), after.get(key, 0), after.get(key, 0) - before.get(key, 0)]
        for key in dict.fromkeys([*after, *before])
    ]


@dataclass
class Side:
    """Kept documents of one version, and what they are in the other one.

    Attributes:
        sampled: number of documents that were looked up.
        kept: number of the version's kept documents.
        reasons: documents that are not kept in the other version, by their reason there; "" if it does not have them.
        examples: (id, URL, reason) of the first of them.
    """

    kept: int
    sampled: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    examples: list[tuple[str, str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Moves:
    """Documents that are kept in only one of two versions: `gained` in the new one, `lost` in the old one."""

    gained: Side
    lost: Side


def moves(old: Kinds, new: Kinds) -> Moves | None:
    """Returns the documents that changed sides; None unless both versions have documents."""
    if "documents" not in old or "documents" not in new:
        return None
    if old["documents"].record.content == new["documents"].record.content:
        count = _count(new["documents"])
        return Moves(Side(count, count), Side(count, count))
    return Moves(_side(new["documents"], old), _side(old["documents"], new))


def _side(documents: Artifact, other: Kinds) -> Side:
    side = Side(_count(documents))
    sample = _kept(documents)
    there = _fates(other, list(sample))
    for id_, url in sample.items():
        if id_ in there:
            side.sampled += 1
            if (reason := there[id_]) is not None:
                side.reasons[reason] += 1
                if len(side.examples) < EXAMPLES:
                    side.examples.append((id_, url, reason))
    return side


def _count(documents: Artifact) -> int:
    return documents.total("kept/").rows


def _kept(documents: Artifact) -> dict[str, str]:
    """Returns URL by id of the kept documents, or of some from files at equal distances."""
    paths = documents.files("kept/")
    whole = documents.record.rows_in <= WHOLE
    if not whole:
        paths = paths[:: -(-len(paths) // MOST_PARTS)]
    found: dict[str, str] = {}
    for path in paths:
        rows = documents.table(path, ["id", "url"])
        if not whole:
            rows = rows.take(list(range(0, rows.num_rows, max(1, rows.num_rows * len(paths) // SAMPLE))))
        found.update(zip(rows["id"].to_pylist(), rows["url"].to_pylist(), strict=True))
    return found


def _fates(other: Kinds, ids: Sequence[str]) -> dict[str, str | None]:
    """Returns what documents are in a version: None if kept, else the reason, "" if it does not have the document.

    Of a large version, documents of which this is not known are left out: those in files that are not read, and kept
    ones of a version without tokens.
    """
    documents = other["documents"]
    if documents.record.rows_in > WHOLE:
        return _indexed_fates(documents, other.get("shards"), ids)
    fates: dict[str, str | None] = dict.fromkeys(ids, "")
    for path in documents.files("kept/"):
        fates.update((id_, None) for id_ in documents.table(path, ["id"])["id"].to_pylist() if id_ in fates)
    fates.update(_reasons(documents, documents.files("rejected/"), fates))
    return fates


def _indexed_fates(documents: Artifact, shards: Artifact | None, ids: Sequence[str]) -> dict[str, str | None]:
    """`_fates` by the index of the rejected documents, and the index of the tokens for the kept ones."""
    rejected = KeyIndex(documents)
    part_of = {id_: places[0][0] for id_ in ids if (places := rejected.find(ID, id_, 1)[1])}
    most = {part for part, _ in Counter(part_of.values()).most_common(MOST_PARTS)}
    paths = [f"rejected/{rejected.parts[part]}.parquet" for part in sorted(most)]
    fates: dict[str, str | None] = dict(_reasons(documents, paths, {id_ for id_ in part_of if part_of[id_] in most}))
    if shards:
        tokens = DocumentIndex(shards)
        left = [id_ for id_ in ids if id_ not in part_of]
        entries = many(lambda id_: tokens.by_uid(bytes.fromhex(id_)), left)
        fates.update((id_, None if entry else "") for id_, entry in zip(left, entries, strict=True))
    return fates


def _reasons(documents: Artifact, paths: Sequence[str], ids: Container[str]) -> dict[str, str]:
    """Returns the first reason of those documents that are rejected in some files."""
    found: dict[str, str] = {}
    for path in paths:
        rows = documents.table(path, ["id", "reason"])
        found.update(
            (id_, reason)
            for id_, reason in zip(rows["id"].to_pylist(), rows["reason"].to_pylist(), strict=True)
            if id_ in ids
        )
    return found


def _counts(moved: Moves, other: str, version: str) -> list[list[object]]:
    """Returns direction, reason, documents, and their share of the documents that were looked up."""
    rows: list[list[object]] = []
    for side, there, name in ((moved.gained, other, "kept now"), (moved.lost, version, "kept before")):
        for reason, count in side.reasons.most_common():
            text = f"{reason} in {there}" if reason else f"not in {there}"
            rows.append([name, text, count, f"{count / max(side.sampled, 1):.2%}"])
    return rows


def _examples(side: Side, recipe: str, version: str) -> list[list[object]]:
    return [
        [url, reason or "not there", link(id_, f"{ROOT}/trace", recipe=recipe, version=version, what=id_)]
        for id_, url, reason in side.examples
    ]


def paired_scores(old: Artifact | None, new: Artifact | None) -> dict[str, Any] | None:
    """Returns the difference of both models on the documents held out in both versions; None if there is none.

    Bits per byte do not depend on the tokenizer, and the difficulty of a document cancels in its difference.
    """
    if old is None or new is None:
        return None
    rows: list[list[Any]] = []
    estimates = []
    for path in sorted(set(old.files("documents/")) & set(new.files("documents/"))):
        before, after = (_bits(scores, path) for scores in (old, new))
        common = [id_ for id_ in after if id_ in before and before[id_][0] == after[id_][0]]
        if not common:
            continue
        sizes = [after[id_][0] for id_ in common]
        # Above 0: the new model needs fewer bits.
        estimate = of_sized([before[id_][1] - after[id_][1] for id_ in common], sizes)
        estimates.append(estimate)
        first, second = (sum(bits[id_][1] for id_ in common) / sum(sizes) for bits in (before, after))
        source = path.removeprefix("documents/").removesuffix(".parquet")
        rows.append([source, len(common), first, second, estimate.value, _interval(estimate)])
    if not rows:
        return None
    total = mean(estimates)
    rows.append(["mean of the sources", sum(row[1] for row in rows), None, None, total.value, _interval(total)])
    estimates.append(total)
    points = [(row[0], one.value, one.bounds(CONFIDENCE)) for row, one in zip(rows, estimates, strict=True)]
    figure = charts.differences(points, "bits per byte that the new model needs less")
    return {"rows": rows, "figure": figure, "label": _label(total)}


def _label(total: PairedDifference) -> str:
    """Returns the mean difference of the models as a sentence without a final period."""
    words, sign = ("less", 1) if total.value >= 0 else ("more", -1)
    low, high = sorted(sign * end for end in total.interval(CONFIDENCE))
    found = _UNKNOWN if math.isinf(high) else charts.interval((low, high))
    return f"the new model needs {abs(total.value):.4f} bits per byte {words}, 95 % interval {found}"


def _bits(scores: Artifact, path: str) -> dict[str, tuple[int, float]]:
    """Returns bytes and bits of each held-out document, by id."""
    rows = scores.table(path, ["id", "bytes", "bits"]).to_pylist()
    return {row["id"]: (row["bytes"], row["bits"]) for row in rows}


def _interval(estimate: PairedDifference) -> str:
    return charts.interval(estimate.bounds(CONFIDENCE), otherwise=_UNKNOWN)


def _verdict(challenger: Kinds, champion: Kinds) -> dict[str, Any] | None:
    """Returns reason and rows of the comparison of a version's model with the champion, if that is the other one's."""
    if "comparison" not in challenger or "model" not in champion:
        return None
    comparison = challenger["comparison"]
    content = json.loads(comparison.read(COMPARISON))
    if not content["champion"] or content["champion"]["artifact"] != str(champion["model"].address):
        return None
    columns = ("name", "metric", "items", "first", "second", "difference")
    rows = [[*(row[name] for name in columns), charts.interval(row["interval"])] for row in content["rows"]]
    return {"reason": content["reason"], "rows": rows, "of": artifact_link(str(comparison.address))}


routes = router()


@routes.get("/compare")
def compare_page(recipe: Name, version: VersionName, user: User, at: At, other: AnyVersion = "") -> HTMLResponse:
    """A version compared with another one."""
    return respond(lambda: compare(readable(recipe, user), version, other, at))

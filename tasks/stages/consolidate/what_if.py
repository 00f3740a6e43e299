"""Comparison of two settings of consolidate: both funnels, and documents that are kept with only one of them.

Reads `extracted`, `attributes` and `duplicates` of one version; writes nothing. Only small columns are read and joined;
nothing is measured again.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from tasks.stages.consolidate.aligned_inputs import AlignedInputs, AlignedParts
from tasks.stages.consolidate.config import GOLD, SILVER, ConsolidateConfig
from tasks.stages.consolidate.funnel import EXTRACT, STEPS
from tasks.stages.consolidate.mask import mask_texts
from tasks.stages.consolidate.resolve import resolve
from tasks.stages.consolidate.rules import (
    COLUMNS,
    check_measured,
    limit_values,
    read_by_tiers,
    step_of,
    verdicts,
)

_EXCERPT = 160
_TIERS = ("", GOLD, SILVER)


@dataclass(frozen=True)
class ChangedVerdict:
    """A document whose verdict changes.

    Attributes:
        id: its id.
        url: its URL.
        before: its first reason before, "" if it was kept.
        after: its first reason after, "" if it would be kept.
        text: the beginning of its text, masked.
        value: the value that the limit of the reason is compared with; None for a reason without a numeric limit.
    """

    id: str
    url: str
    before: str
    after: str
    text: str
    value: float | None = None


class PartCounts(NamedTuple):
    """Numbers of documents of one part: all, kept before and after, with another verdict, gold before and after."""

    documents: int
    kept_before: int
    kept_after: int
    gained: int
    lost: int
    gold_before: int = 0
    gold_after: int = 0


OutcomeCounts = dict[tuple[str, str, str, str], int]
"""Number of captures and files by source, step, reason ("" for kept) and tier ("" for dropped)."""


@dataclass(frozen=True)
class WhatIfResult:
    """Both funnels, and examples of documents whose verdict changes.

    `gained` is the number of documents that would be kept instead of dropped, `lost` the reverse.
    """

    before: OutcomeCounts
    after: OutcomeCounts
    gained: int
    lost: int
    moved: tuple[ChangedVerdict, ...]
    parts: tuple[PartCounts, ...] = ()


_Verdict: TypeAlias = tuple[str, str, str]
"""Verdict on a document: its source, first reason ("" if it is kept) and tier ("" if it is dropped)."""


class _ChangedRow(NamedTuple):
    """A document whose verdict changes, by part and row; sorts by id."""

    id: str
    part: str
    row: int
    before: str
    after: str


def what_if(
    before: ConsolidateConfig,
    after: ConsolidateConfig,
    aligned: AlignedInputs,
    examples: int = 5,
    sample: Mapping[str, pa.Table] | None = None,
    most: int | None = None,
) -> WhatIfResult:
    """Compares two settings; memory is bounded by one part, the examples, and 100 bytes per document with a copy.

    Args:
        before: the current settings.
        after: the other settings.
        aligned: the inputs.
        examples: number of gained and of lost documents to return: those with the smallest ids, which are hashes, so
            that they are a random sample.
        sample: the parts to read, with their copies (`sampling.copies_of`); None for all. The keeper of a copy may be
            in another part, so a sample does not choose keepers again: a copy of a document that only the other
            settings drop is not counted in its place.
        most: number of documents to read of each part: the first ones, which are those with the smallest ids; None for
            all.

    Raises:
        InputError: the inputs do not have the same parts, or an attribute that the settings read was not measured.
    """
    names = aligned.names()
    for config in (before, after):
        check_measured(config, aligned.attribute_schema(names[0]), str(aligned.attributes.address))
    names = names if sample is None else list(sample)
    resolved = [resolve(config, aligned) if sample is None else sample for config in (before, after)]
    parts = aligned.parts
    counts: tuple[Counter[_Verdict], Counter[_Verdict]] = (Counter(), Counter())
    rejections = Counter[tuple[str, str]]()
    by_part: list[PartCounts] = []
    examples_by_side: dict[bool, list[_ChangedRow]] = {True: [], False: []}
    for name in names:
        documents, sides = _verdicts((before, after), aligned.parts, name, resolved, most)
        sources = documents.column("source").to_pylist()
        _count_rejections(rejections, parts.extract_rejections(name))
        for count, (first, tiers) in zip(counts, sides, strict=True):
            count.update(zip(sources, first, tiers, strict=True))
        firsts = [first for first, _ in sides]
        changed_rows = (
            _ChangedRow(documents.column("id")[row].as_py(), name, row, old, new)
            for row, (old, new) in enumerate(zip(*firsts, strict=True))
            if bool(old) != bool(new)
        )
        changed = _by_side(changed_rows)
        for is_gain, rows in changed.items():
            examples_by_side[is_gain] = nsmallest(examples, [*examples_by_side[is_gain], *rows])
        kept_before, kept_after = (first.count("") for first in firsts)
        gold = (tiers.count(GOLD) for _, tiers in sides)
        by_part.append(
            PartCounts(len(sources), kept_before, kept_after, len(changed[True]), len(changed[False]), *gold)
        )
    chosen_examples = tuple(_examples(before, after, parts, [*examples_by_side[True], *examples_by_side[False]]))
    funnels = (_funnel(counts[0], rejections), _funnel(counts[1], rejections))
    gained, lost = (sum(getattr(part, side) for part in by_part) for side in ("gained", "lost"))
    return WhatIfResult(*funnels, gained, lost, chosen_examples, tuple(by_part))


def _count_rejections(counts: Counter[tuple[str, str]], rows: pa.Table) -> None:
    for row in rows.group_by(["source", "reason"]).aggregate([([], "count_all")]).to_pylist():
        counts[row["source"], row["reason"]] += row["count_all"]


def _funnel(counts: Mapping[_Verdict, int], rejections: Mapping[tuple[str, str], int]) -> OutcomeCounts:
    """Returns the counts by step, including the rejections of extract."""
    rejected: OutcomeCounts = {(source, EXTRACT, reason, ""): number for (source, reason), number in rejections.items()}
    judged = {(source, step_of(reason), reason, tier): number for (source, reason, tier), number in counts.items()}
    return {**rejected, **judged}


def _by_side(changed_rows: Iterable[_ChangedRow]) -> dict[bool, list[_ChangedRow]]:
    """Returns the documents that would be kept (key True) and those that would be dropped (key False)."""
    sides: dict[bool, list[_ChangedRow]] = {True: [], False: []}
    for changed_row in changed_rows:
        sides[not changed_row.after].append(changed_row)
    return sides


def _verdicts(
    configs: Sequence[ConsolidateConfig],
    aligned: AlignedParts,
    name: str,
    resolved: Sequence[Mapping[str, pa.Table]],
    most: int | None,
) -> tuple[pa.Table, list[tuple[list[str], list[str]]]]:
    """Returns id and source of the documents of one part; their first reasons and tiers for each of some settings.

    Args:
        configs: the settings.
        aligned: the inputs.
        name: the part.
        resolved: for each of the settings the documents to drop as copies, by part.
        most: number of documents to read; None for all.
    """
    read = dict.fromkeys(name for config in configs for name in (*config.filters, *read_by_tiers(config)))
    documents, judged, duplicates = aligned.part(name, ["id", "url", "source"], list(read), COLUMNS)
    documents, judged, duplicates = (table.slice(0, most) for table in (documents, judged, duplicates))
    taken_down = aligned.taken_down(documents)
    sources = documents.column("source")
    found = []
    for config, copies in zip(configs, resolved, strict=True):
        part_verdicts = verdicts(config, sources, judged, copies[name], duplicates, taken_down)
        found.append((part_verdicts.first, part_verdicts.tiers))
    return documents, found


def _examples(
    before: ConsolidateConfig, after: ConsolidateConfig, aligned: AlignedParts, changed: Sequence[_ChangedRow]
) -> Iterator[ChangedVerdict]:
    """Yields the documents in their order; reads each part once."""
    found: dict[_ChangedRow, ChangedVerdict] = {}
    for name in dict.fromkeys(row.part for row in changed):
        of_part = [row for row in changed if row.part == name]
        annotators = list(dict.fromkeys([*before.filters, *after.reads()]))
        documents, judged, _ = aligned.part(name, ["id", "source", "url", "text"], annotators, ["id"])
        indices = pa.array([row.row for row in of_part], pa.int64())
        documents, judged = documents.take(indices), judged.take(indices)
        texts = mask_texts(after, documents, judged, [not row.after for row in of_part])
        sides = [_values(config, documents.column("source"), judged) for config in (before, after)]
        for at, (row, url, text) in enumerate(zip(of_part, documents.column("url").to_pylist(), texts, strict=True)):
            value = sides[0].get((at, row.before)) if row.before else sides[1].get((at, row.after))
            excerpt = " ".join(text[: 4 * _EXCERPT].split())[:_EXCERPT]
            found[row] = ChangedVerdict(row.id, url, row.before, row.after, excerpt, value)
    yield from (found[row] for row in changed)


def _values(config: ConsolidateConfig, sources: pa.ChunkedArray, judged: pa.Table) -> dict[tuple[int, str], float]:
    """Returns the values that limits are compared with, by row and reason."""
    of_limits = limit_values(config, sources, judged, np.zeros(len(sources), np.bool_))
    return {
        (row, limit.reason): float(value)
        for rows, limit in of_limits
        for row, value in zip(rows.tolist(), limit.values.tolist(), strict=True)
    }


def render(answer: WhatIfResult) -> str:
    """Returns the answer as text for a terminal."""
    total = sum(answer.before.values())
    lines = [f"{'source':14} {'step':9} {'reason':44} {'before':>10} {'after':>10} {'change':>10}"]
    rows = [(source, STEPS.index(step), reason) for source, step, reason, _ in {*answer.before, *answer.after}]
    for source, step, reason in sorted(set(rows)):
        outcome = (source, STEPS[step], reason)
        by_tier = {tier: [side.get((*outcome, tier), 0) for side in (answer.before, answer.after)] for tier in _TIERS}
        lines.append(_line(source, STEPS[step], reason, *map(sum, zip(*by_tier.values(), strict=True))))
        if any(by_tier[GOLD]):
            lines += [_line(source, "", f"  of these {tier}", *by_tier[tier]) for tier in (GOLD, SILVER)]
    lines.append(
        f"{answer.gained:,} documents would be kept, {answer.lost:,} would be dropped, of {total:,} captures and files"
    )
    for move in answer.moved:
        lines += ["", f"{move.before or 'kept'} -> {move.after or 'kept'}  {move.url}", f"  {move.text}"]
    return "\n".join(lines)


def _line(source: str, step: str, reason: str, before: int, after: int) -> str:
    change = f"{after - before:+,}" if after != before else ""
    return f"{source:14} {step:9} {reason:44} {before:>10,} {after:>10,} {change:>10}".rstrip()

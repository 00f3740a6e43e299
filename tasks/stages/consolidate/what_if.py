"""Comparison of two settings of consolidate: both funnels, and documents that would be kept or dropped instead.

Reads `extracted`, `attributes` and `duplicates` of one version; writes nothing. Nothing is measured again: the cost is
reading small columns and the join.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from typing import NamedTuple

import pyarrow as pa

from tasks.stages.consolidate.aligned_inputs import AlignedInputs, AlignedParts
from tasks.stages.consolidate.config import GOLD, SILVER, ConsolidateConfig
from tasks.stages.consolidate.funnel import EXTRACT, STEPS
from tasks.stages.consolidate.mask import masked
from tasks.stages.consolidate.resolve import resolve
from tasks.stages.consolidate.rules import (
    COLUMNS,
    check_measured,
    read_by_tiers,
    step_of,
    verdicts,
)

_EXCERPT = 160
_TIERS = ("", GOLD, SILVER)


@dataclass(frozen=True)
class Moved:
    """A document whose verdict changes: its first reason `before` and `after`, "" if it is kept."""

    id: str
    url: str
    before: str
    after: str
    text: str


Ended = dict[tuple[str, str, str, str], int]
"""Number of captures and files by source, step, reason ("" for kept) and tier ("" for dropped)."""


@dataclass(frozen=True)
class Answer:
    """Both funnels, and examples of the documents whose verdict changes.

    `gained` counts the documents that would be kept instead of dropped, `lost` the opposite.
    """

    before: Ended
    after: Ended
    gained: int
    lost: int
    moved: tuple[Moved, ...]


class _Verdict(NamedTuple):
    """Verdict on a document: first reason ("" if it is kept) and tier ("" if it is dropped)."""

    source: str
    reason: str
    tier: str


class _Place(NamedTuple):
    """Position of a document whose verdict changes. Sorts by id."""

    id: str
    part: str
    row: int
    before: str
    after: str


def what_if(before: ConsolidateConfig, after: ConsolidateConfig, aligned: AlignedInputs, examples: int = 5) -> Answer:
    """Compares two settings; memory is bounded by one part, the examples, and 100 bytes for each document with a copy.

    Args:
        before: the current settings.
        after: the other settings.
        aligned: the inputs.
        examples: number of gained and of lost documents to show; the smallest ids, which are hashes: a random sample.

    Raises:
        InputError: the inputs do not have the same parts, or an attribute that the settings read was not measured.
    """
    names = aligned.names()
    for config in (before, after):
        check_measured(config, aligned.measured(names[0]), str(aligned.attributes.address))
    parts = aligned.parts
    counts: tuple[Counter[_Verdict], Counter[_Verdict]] = (Counter(), Counter())
    refused = Counter[tuple[str, str]]()
    sums, shown = Counter[bool](), dict[bool, list[_Place]]({True: [], False: []})
    for name, was, will in zip(names, *(_verdicts(config, aligned) for config in (before, after)), strict=True):
        _add_refused(refused, parts.refused(name))
        for count, ends in zip(counts, (was, will), strict=True):
            count.update(ends)
        ids = parts.extracted.table(f"documents/{name}.parquet", columns=["id"]).column("id").to_pylist()
        moved = (
            _Place(identity, name, row, old.reason, new.reason)
            for row, (identity, old, new) in enumerate(zip(ids, was, will, strict=True))
            if bool(old.reason) != bool(new.reason)
        )
        for gains, places in _by_side(moved).items():
            sums[gains] += len(places)
            shown[gains] = nsmallest(examples, [*shown[gains], *places])
    shown_moves = tuple(_moved(after, parts, place) for gains in (True, False) for place in shown[gains])
    funnels = (_funnel(counts[0], refused), _funnel(counts[1], refused))
    return Answer(*funnels, sums[True], sums[False], shown_moves)


def _add_refused(refused: Counter[tuple[str, str]], rows: pa.Table) -> None:
    for row in rows.group_by(["source", "reason"]).aggregate([([], "count_all")]).to_pylist():
        refused[row["source"], row["reason"]] += row["count_all"]


def _funnel(counts: Mapping[_Verdict, int], refused: Mapping[tuple[str, str], int]) -> Ended:
    """Returns the counts by step, including the rejections of extract."""
    gone: Ended = {(source, EXTRACT, reason, ""): number for (source, reason), number in refused.items()}
    judged = {(source, step_of(reason), reason, tier): number for (source, reason, tier), number in counts.items()}
    return {**gone, **judged}


def _by_side(moved: Iterable[_Place]) -> dict[bool, list[_Place]]:
    """Returns the documents that would be kept (True) and those that would be dropped (False)."""
    found: dict[bool, list[_Place]] = {True: [], False: []}
    for place in moved:
        found[not place.after].append(place)
    return found


def _verdicts(config: ConsolidateConfig, inputs: AlignedInputs) -> Iterator[list[_Verdict]]:
    """Yields for every part the verdict on each document."""
    copies, aligned = resolve(config, inputs), inputs.parts
    measured = list(dict.fromkeys([*config.filters, *read_by_tiers(config)]))
    for name in inputs.names():
        documents, judged, duplicates = aligned.part(name, ["id", "source"], measured, COLUMNS)
        sources = documents.column("source")
        gone = aligned.taken_down(name, documents.num_rows)
        found = verdicts(config, sources, judged, copies[name], duplicates, gone)
        ends = zip(sources.to_pylist(), found.first, found.tiers, strict=True)
        yield [_Verdict(*end) for end in ends]


def _moved(config: ConsolidateConfig, aligned: AlignedParts, place: _Place) -> Moved:
    documents, judged, _ = aligned.part(place.part, ["id", "source", "url", "text"], config.reads(), ["id"])
    document = documents.slice(place.row, 1)
    (text,) = masked(config, document, judged.slice(place.row, 1), [not place.after])
    (url,) = document.column("url").to_pylist()
    excerpt = " ".join(text[: 4 * _EXCERPT].split())[:_EXCERPT]
    return Moved(place.id, url, place.before, place.after, excerpt)


def render(answer: Answer) -> str:
    """Returns the answer as text for a terminal."""
    total = sum(answer.before.values())
    lines = [f"{'source':14} {'step':9} {'reason':44} {'before':>10} {'after':>10} {'change':>10}"]
    rows = [(source, STEPS.index(step), reason) for source, step, reason, _ in {*answer.before, *answer.after}]
    for source, step, reason in sorted(set(rows)):
        ended = (source, STEPS[step], reason)
        tiered = {tier: [side.get((*ended, tier), 0) for side in (answer.before, answer.after)] for tier in _TIERS}
        lines.append(_line(source, STEPS[step], reason, *map(sum, zip(*tiered.values(), strict=True))))
        if any(tiered[GOLD]):
            lines += [_line(source, "", f"  of these {tier}", *tiered[tier]) for tier in (GOLD, SILVER)]
    lines.append(
        f"{answer.gained:,} documents would be kept, {answer.lost:,} would go, of {total:,} captures and files"
    )
    for move in answer.moved:
        lines += ["", f"{move.before or 'kept'} -> {move.after or 'kept'}  {move.url}", f"  {move.text}"]
    return "\n".join(lines)


def _line(source: str, step: str, reason: str, was: int, will: int) -> str:
    change = f"{will - was:+,}" if will != was else ""
    return f"{source:14} {step:9} {reason:44} {was:>10,} {will:>10,} {change:>10}".rstrip()

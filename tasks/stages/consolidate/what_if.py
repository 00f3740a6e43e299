"""Comparison of two settings of consolidate: both funnels, and documents that are kept with only one of them.

Reads `extracted`, `attributes` and `duplicates` of one version; writes nothing. Only small columns are read and joined;
nothing is measured again.
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
from tasks.stages.consolidate.mask import mask_texts
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
class ChangedVerdict:
    """A document whose verdict changes; `before` and `after` are its first reasons, "" if it is kept."""

    id: str
    url: str
    before: str
    after: str
    text: str


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


class _Verdict(NamedTuple):
    """Verdict on a document: its source, first reason ("" if it is kept) and tier ("" if it is dropped)."""

    source: str
    reason: str
    tier: str


class _ChangedRow(NamedTuple):
    """A document whose verdict changes, by part and row; sorts by id."""

    id: str
    part: str
    row: int
    before: str
    after: str


def what_if(
    before: ConsolidateConfig, after: ConsolidateConfig, aligned: AlignedInputs, examples: int = 5
) -> WhatIfResult:
    """Compares two settings; memory is bounded by one part, the examples, and 100 bytes per document with a copy.

    Args:
        before: the current settings.
        after: the other settings.
        aligned: the inputs.
        examples: number of gained and of lost documents to return: those with the smallest ids, which are hashes, so
            that they are a random sample.

    Raises:
        InputError: the inputs do not have the same parts, or an attribute that the settings read was not measured.
    """
    names = aligned.names()
    for config in (before, after):
        check_measured(config, aligned.attribute_schema(names[0]), str(aligned.attributes.address))
    parts = aligned.parts
    counts: tuple[Counter[_Verdict], Counter[_Verdict]] = (Counter(), Counter())
    rejections = Counter[tuple[str, str]]()
    sums, examples_by_side = Counter[bool](), dict[bool, list[_ChangedRow]]({True: [], False: []})
    for name, before_verdicts, after_verdicts in zip(
        names, *(_verdicts(config, aligned) for config in (before, after)), strict=True
    ):
        _count_rejections(rejections, parts.extract_rejections(name))
        for count, verdicts_of_part in zip(counts, (before_verdicts, after_verdicts), strict=True):
            count.update(verdicts_of_part)
        ids = parts.extracted.table(f"documents/{name}.parquet", columns=["id"]).column("id").to_pylist()
        changed_rows = (
            _ChangedRow(doc_id, name, row, old.reason, new.reason)
            for row, (doc_id, old, new) in enumerate(zip(ids, before_verdicts, after_verdicts, strict=True))
            if bool(old.reason) != bool(new.reason)
        )
        for is_gain, rows in _by_side(changed_rows).items():
            sums[is_gain] += len(rows)
            examples_by_side[is_gain] = nsmallest(examples, [*examples_by_side[is_gain], *rows])
    chosen_examples = tuple(
        _example(after, parts, changed_row) for is_gain in (True, False) for changed_row in examples_by_side[is_gain]
    )
    funnels = (_funnel(counts[0], rejections), _funnel(counts[1], rejections))
    return WhatIfResult(*funnels, sums[True], sums[False], chosen_examples)


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


def _verdicts(config: ConsolidateConfig, inputs: AlignedInputs) -> Iterator[list[_Verdict]]:
    """Yields the verdicts on the documents of each part."""
    copies, aligned = resolve(config, inputs), inputs.parts
    annotators = list(dict.fromkeys([*config.filters, *read_by_tiers(config)]))
    for name in inputs.names():
        documents, judged, duplicates = aligned.part(name, ["id", "source"], annotators, COLUMNS)
        sources = documents.column("source")
        taken_down = aligned.taken_down(name, documents.num_rows)
        part_verdicts = verdicts(config, sources, judged, copies[name], duplicates, taken_down)
        rows = zip(sources.to_pylist(), part_verdicts.first, part_verdicts.tiers, strict=True)
        yield [_Verdict(*row) for row in rows]


def _example(config: ConsolidateConfig, aligned: AlignedParts, changed_row: _ChangedRow) -> ChangedVerdict:
    documents, judged, _ = aligned.part(changed_row.part, ["id", "source", "url", "text"], config.reads(), ["id"])
    document = documents.slice(changed_row.row, 1)
    (text,) = mask_texts(config, document, judged.slice(changed_row.row, 1), [not changed_row.after])
    (url,) = document.column("url").to_pylist()
    excerpt = " ".join(text[: 4 * _EXCERPT].split())[:_EXCERPT]
    return ChangedVerdict(changed_row.id, url, changed_row.before, changed_row.after, excerpt)


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

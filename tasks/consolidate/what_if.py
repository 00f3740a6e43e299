"""What if the limits were others: the funnel before and after, and documents that would change side.

Reads `extracted`, `attributes` and `duplicates` of one version (`Joint.at`); writes nothing. Used by the shell (`python
-m tasks what-if`). Nothing is measured again: the cost is reading small columns and the join.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import NamedTuple

from tasks.consolidate.config import ConsolidateConfig
from tasks.consolidate.joint import Joint
from tasks.consolidate.mask import masked
from tasks.consolidate.resolve import resolve
from tasks.consolidate.rules import check_measured, columns, reasons

_EXCERPT = 160


@dataclass(frozen=True)
class Moved:
    """A document that changes side: `before` and `after` hold its first reason, "" where it is kept."""

    id: str
    url: str
    before: str
    after: str
    text: str


@dataclass(frozen=True)
class Answer:
    """How many documents end for which first reason ("" for kept), by source, and examples of those that move.

    `gained` and `lost` count the documents that change side.
    """

    before: dict[tuple[str, str], int]
    after: dict[tuple[str, str], int]
    gained: int
    lost: int
    moved: tuple[Moved, ...]


class _Place(NamedTuple):
    """Where a document that moves stands. They sort by id."""

    id: str
    part: str
    row: int
    before: str
    after: str


def what_if(before: ConsolidateConfig, after: ConsolidateConfig, joint: Joint, examples: int = 5) -> Answer:
    """Compares two settings; of the documents that move it holds no more in memory than it shows.

    Args:
        before: the settings as they are.
        after: the others.
        joint: the inputs.
        examples: documents to show of each side; the smallest ids, which are hashes, so a fair sample.

    Raises:
        InputError: the inputs were not made for one another, or something that the settings read was not measured.
    """
    names = joint.names()
    for config in (before, after):
        check_measured(config, joint.measured(names[0]), str(joint.attributes.address))
    counts: tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]] = (Counter(), Counter())
    sums, shown = Counter[bool](), dict[bool, list[_Place]]({True: [], False: []})
    for name, was, will in zip(names, *(_verdicts(config, joint, names) for config in (before, after)), strict=True):
        documents = joint.extracted.table(f"documents/{name}.parquet", columns=["id", "source"])
        ids, sources = (documents.column(column).to_pylist() for column in ("id", "source"))
        for count, verdicts in zip(counts, (was, will), strict=True):
            count.update(zip(sources, verdicts, strict=True))
        moved = (
            _Place(identity, name, row, *sides)
            for row, (identity, *sides) in enumerate(zip(ids, was, will, strict=True))
            if bool(sides[0]) != bool(sides[1])
        )
        for gains, places in _by_side(moved).items():
            sums[gains] += len(places)
            shown[gains] = nsmallest(examples, [*shown[gains], *places])
    several = tuple(_moved(after, joint, place) for gains in (True, False) for place in shown[gains])
    return Answer(dict(counts[0]), dict(counts[1]), sums[True], sums[False], several)


def _by_side(moved: Iterable[_Place]) -> dict[bool, list[_Place]]:
    """Returns those that would be kept (True) and those that would go (False)."""
    found: dict[bool, list[_Place]] = {True: [], False: []}
    for place in moved:
        found[not place.after].append(place)
    return found


def _verdicts(config: ConsolidateConfig, joint: Joint, names: Sequence[str]) -> Iterator[list[str]]:
    """Yields for every part the first reason of each document, "" for one that is kept."""
    copies = resolve(config, joint, names) if config.dedup else {}
    for name in names:
        documents, judged, _ = joint.part(name, ["id", "source"], columns(config), ["id"])
        found = reasons(config, documents.column("source"), judged)
        going = {row["id"]: f"duplicate_{row['kind']}" for row in copies[name].to_pylist()} if copies else {}
        ids = documents.column("id").to_pylist()
        yield [why[0] if why else going.get(identity, "") for why, identity in zip(found, ids, strict=True)]


def _moved(config: ConsolidateConfig, joint: Joint, place: _Place) -> Moved:
    documents, judged, _ = joint.part(place.part, ["id", "source", "url", "text"], ["id", *config.reads()], ["id"])
    document = documents.slice(place.row, 1)
    (text,) = masked(config, document, judged.slice(place.row, 1), [not place.after])
    (url,) = document.column("url").to_pylist()
    excerpt = " ".join(text[: 4 * _EXCERPT].split())[:_EXCERPT]
    return Moved(place.id, url, place.before, place.after, excerpt)


def render(answer: Answer) -> str:
    """Returns the answer as text for a terminal."""
    total = max(1, sum(answer.before.values()))
    lines = [f"{'source':14} {'reason':44} {'before':>10} {'after':>10} {'change':>10}"]
    for source, reason in sorted({*answer.before, *answer.after}):
        was, will = (side.get((source, reason), 0) for side in (answer.before, answer.after))
        change = f"{will - was:+,}" if will != was else ""
        lines.append(f"{source:14} {reason or 'kept':44} {was:>10,} {will:>10,} {change:>10}")
    lines.append(f"{answer.gained:,} documents would be kept, {answer.lost:,} would go, of {total:,}")
    for one in answer.moved:
        lines += ["", f"{one.before or 'kept'} -> {one.after or 'kept'}  {one.url}", f"  {one.text}"]
    return "\n".join(lines)

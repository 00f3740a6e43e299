"""What if the limits were others: the funnel before and after, and documents that would change side.

Reads `extracted`, `attributes` and `duplicates` of one version; writes nothing. Used by the shell (`python -m tasks
what-if`). Nothing is measured again: the cost is reading small columns and the join.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tasks.consolidate.config import ConsolidateConfig
from tasks.consolidate.joint import Joint
from tasks.consolidate.mask import masked
from tasks.consolidate.resolve import resolve
from tasks.consolidate.rules import columns, reasons

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


def what_if(before: ConsolidateConfig, after: ConsolidateConfig, joint: Joint, examples: int = 5) -> Answer:
    """Compares two settings.

    Args:
        before: the settings as they are.
        after: the others.
        joint: the inputs.
        examples: documents to show of each side; the smallest ids, which are hashes, so a fair sample.

    Raises:
        InputError: the inputs were not made for one another.
    """
    names = joint.names()
    sides = [dict(zip(names, _verdicts(config, joint, names), strict=True)) for config in (before, after)]
    counts: list[dict[tuple[str, str], int]] = [{}, {}]
    gained: list[tuple[str, str, int]] = []
    lost: list[tuple[str, str, int]] = []
    for name in names:
        documents = joint.extracted.table(f"documents/{name}.parquet", columns=["id", "source"])
        rows = zip(*(documents.column(column).to_pylist() for column in ("id", "source")), strict=True)
        for row, (identity, source) in enumerate(rows):
            was, will = (side[name][row] for side in sides)
            for count, reason in zip(counts, (was, will), strict=True):
                count[source, reason] = count.get((source, reason), 0) + 1
            if bool(was) != bool(will):
                (gained if was else lost).append((identity, name, row))
    shown = sorted(gained)[:examples] + sorted(lost)[:examples]
    moved = tuple(_moved(after, joint, sides[0][name][row], sides[1][name][row], name, row) for _, name, row in shown)
    return Answer(counts[0], counts[1], len(gained), len(lost), moved)


def _verdicts(config: ConsolidateConfig, joint: Joint, names: Sequence[str]) -> Iterator[list[str]]:
    """Yields for every part the first reason of each document, "" for one that is kept."""
    copies = resolve(config, joint, names) if config.dedup else {}
    for name in names:
        documents, judged, _ = joint.part(name, ["id", "source"], columns(config), ["id"])
        found = reasons(config, documents.column("source"), judged)
        going = {row["id"]: f"duplicate_{row['kind']}" for row in copies[name].to_pylist()} if copies else {}
        ids = documents.column("id").to_pylist()
        yield [why[0] if why else going.get(identity, "") for why, identity in zip(found, ids, strict=True)]


def _moved(config: ConsolidateConfig, joint: Joint, before: str, after: str, name: str, row: int) -> Moved:
    documents, judged, _ = joint.part(name, ["id", "url", "text"], ["id", *config.reads()], ["id"])
    document = documents.slice(row, 1)
    (text,) = masked(config, document, judged.slice(row, 1), pa.array([True]), None)
    identity, url = (document.column(column)[0].as_py() for column in ("id", "url"))
    return Moved(identity, url, before, after, " ".join(text[: 4 * _EXCERPT].split())[:_EXCERPT])


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

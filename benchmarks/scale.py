"""Growth of every cost that could end a large corpus: requests, bytes, CPU and memory by parts, versions and so on.

    python -m benchmarks.scale [CURVE ...] [--quick] [--rounds 1]

Runs operations and whole stages on made-up parts at three or more sizes in equal ratio, each part two documents, and
prints a row for each cost: its value at each size, the exponent of its growth, and whether that is at most 1.05; of
CPU-seconds, whose exponents are good to a tenth on a busy machine, 1.15.
Requests and bytes are counted by an S3 server on loopback (with SLUICE_S3_DELAY_MS, each takes that long), CPU and
memory are of the process. With `--rounds`, CPU is the least of so many runs.

The exponent is the slope of a line through log(increment) by log(size), fitted by least squares. An increment is the
cost at a size less that at the size before. The sizes are in equal ratio, so the increments of a + b n^e grow like n^e
whatever a is: what a run costs at any size, such as imports, has no influence. A cost that grows by less than a
twentieth from the smallest to the largest size has the exponent 0. An increment below a hundredth of the largest one
counts as that.

`wall` is the number of pages at which one process reaches 64 GB. For memory it follows from the bytes at the largest
size and the exponent, with the pages of a part in `sluice plan --pages 1e10`; for a stage it is where the plan says so.
Dedup has buckets of 32 records here, so that they grow with the parts as in a large corpus. Writes `scale.json`, in
which curves that did not run keep their last figures.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import linear_regression
from typing import Any

from benchmarks.harness import keep, last, parser
from benchmarks.scale_curves import CPU, CURVES, MEMORY, Curve
from tasks.core.terminal import table_lines
from tasks.run.scale.plan import plan_corpus

BOUND = 1.05
NOISE = 0.1
"""Of an exponent of CPU-seconds."""
LEAST, GROWING = 0.01, 0.05
"""Share of the largest increment that each has at least, and of the largest cost by which one that grows has grown."""
_LIMIT = 64e9
_PAGES = 1e10
_MOST_PAGES = 1e14


def exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Returns the exponent of the growth of a cost, without what does not grow; see the docstring of the module."""
    ratios = {round(more / fewer, 3) for fewer, more in pairwise(sizes)}
    if len(ratios) != 1:
        raise ValueError(f"sizes are not in equal ratio: {list(sizes)}")
    increments = [more - fewer for fewer, more in pairwise(costs)]
    if costs[-1] - costs[0] <= GROWING * costs[-1] or (most := max(increments)) <= 0:
        return 0.0
    grown = [math.log(max(increment, LEAST * most)) for increment in increments]
    return round(max(0.0, linear_regression([math.log(size) for size in sizes[1:]], grown).slope), 2)


def wall(curve: Curve, grown: float) -> float | None:
    """Returns the pages at which a process reaches 64 GB; None if no size does, or the curve is of something else."""
    if curve.stage:
        return _planned_wall(curve.stage)
    if curve.what != MEMORY or curve.unit != "parts" or grown < 0.05:
        return None
    corpus = plan_corpus(_PAGES).corpus
    parts: float = curve.sizes[-1] * (_LIMIT / curve.costs[-1]) ** (1 / grown)
    return parts * corpus.pages / corpus.parts


def _planned_wall(stage: str) -> float | None:
    """Returns the most pages, to the nearest tenth, at which a stage fits into 64 GB by the plan; None if all do."""
    pages = 1e6
    while pages < _MOST_PAGES:
        if not all(row.fits for row in plan_corpus(pages).rows if row.need.stage == stage):
            return pages
        pages *= 1.1
    return None


def least(runs: Sequence[list[Curve]]) -> Iterator[Curve]:
    """Yields each curve of several runs with the least cost at each size."""
    for same in zip(*runs, strict=True):
        first = same[0]
        costs = [min(values) for values in zip(*(one.costs for one in same), strict=True)]
        yield Curve(first.name, first.unit, first.what, first.sizes, costs, first.stage)


def figures(curve: Curve) -> dict[str, Any]:
    """Returns the figures of a curve for the result."""
    grown = exponent(curve.sizes, curve.costs)
    (fewer, more), (less, most) = curve.sizes[-2:], curve.costs[-2:]
    return {
        "curve": curve.name,
        "unit": curve.unit,
        "what": curve.what,
        "sizes": list(curve.sizes),
        "costs": [round(cost, 3) for cost in curve.costs],
        "each_more": round((most - less) / (more - fewer), 6),
        "exponent": grown,
        "within_bound": grown <= BOUND + (NOISE if curve.what == CPU else 0),
        "wall_pages": wall(curve, grown),
    }


def show(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the table of the figures of several curves."""
    head = ("curve", "cost", "by", "sizes", "cost at each", "one more", "exponent", "in bound", "wall, pages")
    cells = (
        (
            row["curve"],
            row["what"],
            row["unit"],
            " ".join(f"{size:,}" for size in row["sizes"]),
            " ".join(f"{cost:,.3g}" if cost < 100 else f"{cost:,.0f}" for cost in row["costs"]),
            f"{row['each_more']:.3g}",
            f"{row['exponent']:.2f}",
            "yes" if row["within_bound"] else "NO",
            f"{row['wall_pages']:.2g}" if row["wall_pages"] else "",
        )
        for row in rows
    )
    return "\n".join(table_lines([head, *cells]))


def main() -> None:
    """Measures the curves."""
    options = parser(__doc__)
    options.add_argument("curves", nargs="*", metavar="CURVE", help=f"all by default: {', '.join(CURVES)}")
    options.add_argument("--quick", action="store_true", help="tiny sizes, to see that all runs; keeps no result")
    options.add_argument("--rounds", type=int, default=1)
    given = options.parse_args()
    if unknown := {*given.curves} - {*CURVES}:
        options.error(f"no curve {', '.join(sorted(unknown))}: {', '.join(CURVES)}")
    found: dict[str, list[dict[str, Any]]] = {}
    for name in given.curves or CURVES:
        runs = [list(CURVES[name](given.quick)) for _ in range(given.rounds)]
        found[name] = [figures(curve) for curve in least(runs)]
        print(show(found[name]), flush=True)
    if not given.quick:
        kept = last("scale").get("curves", {}) | found
        keep("scale", {"bound": BOUND, "curves": {name: kept[name] for name in CURVES if name in kept}})
        print(show([row for rows in kept.values() for row in rows]))


if __name__ == "__main__":
    main()

"""What a month costs beside the first one: a web on loopback of which five pages in a hundred are new each month.

    python -m benchmarks.months --pages 300 --months 4

Three sites have PAGES pages in the first month and a twentieth of that number more in each later one; some pages are
edited, deleted or copied besides. The sites answer conditional requests. A later month trains for a twentieth of the
steps (`[train.continual]`). The months run in this process; CPU seconds are those of the stages and their processes,
without the web server. Writes `months.json`: CPU seconds and rows of each month by stage, and its share of the first.
"""

import resource
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.harness import keep, parser
from tasks.run.monthly import cycle
from tasks.run.monthly.report import month_report
from tasks.run.recipe import Recipe
from tasks.run.runner import open_store, run_stage
from tests.tasks.run.monthly.simulated import Calendar, Living, SimulatedWeb, recipe_text

NEVER = 1_000
TRAINING = {"train.steps": 400, "train.init_from": "previous", "train.continual": {"steps": 20}}


class Meter:
    """Sums of CPU seconds and of rows read, by stage, since the last `taken`."""

    def __init__(self, server: int) -> None:
        self._server = time.pthread_getcpuclockid(server)
        self._sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])

    def run_stage(self, recipe: Recipe, stage: str, **options: Any) -> Any:
        """Runs a stage and counts it."""
        begin = self._now()
        result = run_stage(recipe, stage, **options)
        self._sums[stage][0] += self._now() - begin
        self._sums[stage][1] += result.rows["in"]
        return result

    def taken(self) -> dict[str, list[float]]:
        """Returns [CPU seconds, rows] by stage, and begins anew."""
        sums = {stage: [round(cpu, 3), rows] for stage, (cpu, rows) in self._sums.items()}
        self._sums.clear()
        return sums

    def _now(self) -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        own = time.process_time() - time.clock_gettime(self._server)
        return own + children.ru_utime + children.ru_stime


def months_of(pages: int, count: int) -> list[dict[str, Any]]:
    """Runs months; returns the figures of each."""
    calendar = Calendar(NEVER, NEVER, NEVER, NEVER, NEVER, pages, max(1, pages // 20))
    world = SimulatedWeb(calendar)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, world.serve() as site:
        path = Path(folder) / "living.toml"
        path.write_text(recipe_text(site, f"{folder}/store"))
        recipe = Recipe.load(path).override(TRAINING)
        meter = Meter(site.thread_id)

        def run(version: str) -> None:
            cycle.run_month(recipe, version)
            month_report(open_store(recipe), recipe, version)

        months = Living(world, recipe, run)
        with patch("tasks.run.monthly.cycle.run_stage", meter.run_stage):
            for _ in range(count):
                months.run(1)
                stages = meter.taken()
                cpu = sum(one for one, _ in stages.values())
                first = sum(one for one, _ in rows[0]["stages"].values()) if rows else cpu
                new = len(months.pages[world.month]) / len(months.pages[1])
                figures = {"new": round(new, 3), "cpu_s": round(cpu, 2), "of_first": round(cpu / first, 3)}
                rows.append({**figures, "stages": stages})
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--pages", type=int, default=300, help="pages of a site in the first month")
    options.add_argument("--months", type=int, default=4)
    given = options.parse_args()
    months_of(4, 1)  # what the first month of a process imports is not counted
    keep("months", {"pages": given.pages, "months": months_of(given.pages, given.months)})


if __name__ == "__main__":
    main()

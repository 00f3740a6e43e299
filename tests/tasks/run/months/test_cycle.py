"""Months of a recipe in one process: each has only what is new, all at one version, and a report that can be recounted."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import DriftError, RecipeError
from tasks.run.months.cycle import run_month
from tasks.run.months.report import month_report, read_month
from tasks.run.recipe import Recipe
from tasks.run.runner import StageResult, open_store
from tests.tasks.run.test_accumulated import CHANGED, add
from tests.tasks.run.test_adopted import small_recipe

MONTHS = ("2026-10", "2026-11", "2026-12")
SETTINGS: dict[str, Any] = {
    "dedup_index.enabled": True,
    "encode.accumulate": True,
    "train.steps": 6,
    "canary.current": {},
    "makes": ["documents", "tokens", "checkpoint"],
    "promote.enabled": True,
    "cycle": {"min_new_tokens": 200},
}


class Ran(NamedTuple):
    """A month that was run."""

    results: list[StageResult]
    ended: str
    report: dict[str, Any]


class Year(NamedTuple):
    """A recipe and its months."""

    recipe: Recipe
    folder: Path
    months: dict[str, Ran]

    def run(self, version: str) -> Ran:
        """Runs one month with its report."""
        results, ended = run_month(self.recipe, version)
        report = read_month(month_report(open_store(self.recipe), self.recipe, version))
        self.months[version] = Ran(results, ended, report)
        return self.months[version]

    def artifact(self, kind: str, version: str) -> Artifact | None:
        return Artifact.find(open_store(self.recipe), ArtifactId(f"{self.recipe.name}/{kind}", version))


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory) -> Year:
    """Three months: the second has six new files and four changed ones, the third one file and too few new tokens."""
    folder = tmp_path_factory.mktemp("year")
    made = Year(small_recipe(folder).override(SETTINGS), folder, {})
    made.run(MONTHS[0])
    add(folder, "2")
    for number in range(CHANGED):
        words = " ".join(f"edit{number}x{place}" for place in range(90))
        (folder / "books" / f"{number + 4}.txt").write_text(f"the and of {words}.\n")
    made.run(MONTHS[1])
    (folder / "notes" / "late.txt").write_text(f"the and of {' '.join(f'late{place}' for place in range(60))}.\n")
    made.run(MONTHS[2])
    return made


def test_print(year: Year) -> None:
    import json
    print(json.dumps(year.months[MONTHS[1]].report, indent=1)[:6000])
    print({m: r.ended for m, r in year.months.items()})
    from tasks.run.months.tables import text
    print(text(year.months[MONTHS[2]].report))

"""Months in one process: each has only what is new, all at one version, and a report that can be recounted."""

import json
import shutil
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import DriftError, NothingNewError, RecipeError
from tasks.core.ledger import Ledger
from tasks.formats.tokens.shard import TRAIN, ShardSet
from tasks.run.evaluate_model import evaluate_model
from tasks.run.monthly import regret
from tasks.run.monthly.cycle import NOTHING_NEW, new_tokens, run_month
from tasks.run.monthly.report import month_report
from tasks.run.monthly.tables import read_month, report_of, tables
from tasks.run.place import Retention
from tasks.run.recipe import Recipe
from tasks.run.result import StageResult
from tasks.run.retention import survey
from tasks.run.runner import open_store, run_stage
from tasks.run.shell import main
from tests.kills import finish_despite_kills, rounds
from tests.tasks.run.test_accumulated import add
from tests.tasks.run.test_adopted import small_recipe

FIRST, SECOND, THIRD = MONTHS = ("2026-10", "2026-11", "2026-12")
CHANGED = 2
SETTINGS: dict[str, Any] = {
    "dedup_index.enabled": True,
    "encode.accumulate": True,
    "train.steps": 6,
    "canary.current": {},
    "makes": ["documents", "tokens", "checkpoint"],
    "promote.enabled": True,
    "cycle": {"min_new_tokens": 1000},
    "extract.parts": 1,
    "spans.enabled": False,
}
Rows = dict[str, dict[str, Any]]


class Year(NamedTuple):
    """A recipe whose months were run: the results and why each ended early, and its report."""

    recipe: Recipe
    folder: Path
    results: dict[str, list[StageResult]]
    ended: dict[str, str]

    def run(self, version: str, **changes: Any) -> None:
        """Runs one month and writes its report."""
        recipe = self.recipe.override({name.replace("__", "."): value for name, value in changes.items()})
        self.results[version], self.ended[version] = run_month(recipe, version)
        month_report(open_store(recipe), recipe, version)

    def artifact(self, kind: str, version: str) -> Artifact:
        return Artifact.open_at(open_store(self.recipe), ArtifactId(f"{self.recipe.name}/{kind}", version))

    def report(self, version: str) -> dict[str, Any]:
        return read_month(self.artifact("month", version))

    def entry(self, version: str) -> dict[str, Any]:
        """The entry of a month in its own report."""
        return dict(self.report(version)["history"][-1])

    def kept(self, version: str) -> Rows:
        documents = self.artifact("documents", version)
        return {row["id"]: row for path in documents.files("kept/") for row in documents.table(path).to_pylist()}


def write(path: Path, word: str, words: int = 90) -> None:
    path.write_text(f"the and of {' '.join(f'{word}{place}' for place in range(words))}.\n")


def change_files(folder: Path, version: str) -> None:
    """What happens before a month: six new files and two changed ones before the second, a new one before the third."""
    if version == SECOND:
        add(folder, "2")
        for number in range(CHANGED):
            write(folder / "books" / f"{number + 4}.txt", f"edit{number}x")
    if version == THIRD:
        write(folder / "notes" / "late.txt", "late")


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory) -> Year:
    """Three months, of which the third has too few tokens for a training."""
    folder = tmp_path_factory.mktemp("year")
    made = Year(small_recipe(folder).override(SETTINGS), folder, {}, {})
    for version in MONTHS:
        change_files(folder, version)
        made.run(version)
    return made


def before(year: Year, version: str) -> Iterator[dict[str, Any]]:
    """The documents of all months before a month."""
    for month in MONTHS[: MONTHS.index(version)]:
        yield from year.kept(month).values()


def test_everything_of_a_month_has_its_version(year: Year) -> None:
    made = {artifact.address.version for artifact in Ledger(open_store(year.recipe), year.recipe.name)}
    assert made == {*MONTHS}
    assert {result.version for results in year.results.values() for result in results} == {*MONTHS}


def test_a_month_that_runs_again_makes_nothing(year: Year) -> None:
    results, ended = run_month(year.recipe, THIRD)
    assert all(result.skipped for result in results)
    assert ended == year.ended[THIRD]
    report = year.artifact("month", THIRD)
    assert month_report(open_store(year.recipe), year.recipe, THIRD).record == report.record
    elsewhere = year.recipe.override({"cycle.schedule": "0 3 1 * *", "cycle.timezone": "Asia/Tokyo"})
    assert month_report(open_store(year.recipe), elsewhere, THIRD).record == report.record, "whenever it runs"


@pytest.mark.parametrize("version", MONTHS)
def test_new_and_changed_documents_are_those_that_no_earlier_month_had(year: Year, version: str) -> None:
    known = {row["id"] for row in before(year, version)}
    urls = {row["url"] for row in before(year, version)}
    published = [row for row in year.kept(version).values() if row["id"] not in known]
    changed = sum(row["url"] in urls for row in published)
    counts = year.entry(version)["documents"]
    assert (counts["new"], counts["changed"]) == (len(published) - changed, changed)
    assert counts["kept"] == len(year.kept(version))
    assert counts["known"] == len(known | year.kept(version).keys())
    assert (counts["changed"] > 0) == (version == SECOND)


@pytest.mark.parametrize("version", MONTHS)
def test_distributions_are_of_the_published_documents(year: Year, version: str) -> None:
    known = {row["id"] for row in before(year, version)}
    published = [row for row in year.kept(version).values() if row["id"] not in known]
    profile = year.entry(version)["profile"]
    assert {name: sum(counts.values()) for name, counts in profile.items() if name != "steps"} == dict.fromkeys(
        ("languages", "domains", "lengths", "quality"), len(published)
    )
    assert profile["domains"] == {
        host: sum(row["host"] == host for row in published) for host in {row["host"] for row in published}
    }
    sizes = [len(row["text"].encode()) for row in published]
    lengths = {int(low): count for low, count in profile["lengths"].items()}
    assert all(count == sum(low <= size < 2 * low for size in sizes) for low, count in lengths.items())


@pytest.mark.parametrize("version", MONTHS)
def test_new_tokens_are_those_that_no_earlier_model_has_read(year: Year, version: str) -> None:
    sizes = []
    for month in (FIRST, SECOND, version):
        shards = ShardSet.open(year.artifact("shards", month))
        names = [name for source in shards.sources for name in shards.names(source, TRAIN)]
        sizes.append(sum(int(shards.shard(name).lengths.sum()) for name in names))
    tokens = year.entry(version)["tokens"]
    since = {FIRST: "", SECOND: FIRST, THIRD: SECOND}[version]
    assert tokens["all"] == sizes[-1]
    assert tokens["new"] == sizes[-1] - {"": 0, FIRST: sizes[0], SECOND: sizes[1]}[since]
    assert tokens["since"] == since


def test_a_month_with_too_few_new_tokens_ends_after_its_tokens(year: Year) -> None:
    new = year.entry(THIRD)["tokens"]["new"]
    assert 0 < new < 1000
    assert year.ended == {FIRST: "", SECOND: "", THIRD: year.entry(THIRD)["ended"]}
    assert year.ended[THIRD].startswith(f"{new} new training tokens since {SECOND}, of 1,000")
    kinds = {artifact.address.name for artifact in Ledger(open_store(year.recipe)) if artifact.address.version == THIRD}
    assert f"{year.recipe.name}/plan" in kinds
    assert not kinds & {f"{year.recipe.name}/{kind}" for kind in ("checkpoint", "scores", "model", "champion")}


def test_a_month_with_nothing_new_ends_in_its_corpus(year: Year, tmp_path: Path, monkeypatch: Any) -> None:
    def nothing_new(*_: Any) -> None:
        raise NothingNewError("none of 3 captures and files is left (revisit 3)")

    monkeypatch.setattr("tasks.stages.consolidate.stage.run", nothing_new)
    shutil.copytree(open_store(year.recipe).root, tmp_path / "store")
    recipe = year.recipe.override({"place.store": f"{tmp_path}/store"})
    assert run_month(recipe, "2027-01")[1] == "none of 3 captures and files is left (revisit 3)."
    (*_, entry) = read_month(month_report(open_store(recipe), recipe, "2027-01"))["history"]
    assert entry["ended"] == NOTHING_NEW


def test_tokens_of_a_month_without_a_training_count_in_the_next(year: Year) -> None:
    write(year.folder / "notes" / "later.txt", "later")
    year.run("2027-01", cycle__min_new_tokens=10**9)
    tokens = year.entry("2027-01")["tokens"]
    assert tokens["since"] == SECOND
    assert tokens["new"] > year.entry(THIRD)["tokens"]["new"] + 90
    for month in MONTHS:
        counted = new_tokens(open_store(year.recipe), year.recipe.name, month)
        assert counted == tuple(year.entry(month)["tokens"][name] for name in ("new", "all", "since")), (
            "later models change nothing"
        )


def test_the_regret_matrix_is_recounted_from_scored_documents(year: Year) -> None:
    matrix = year.report(THIRD)["regret"]
    assert (matrix["models"], matrix["months"]) == ([FIRST, SECOND], [*MONTHS])
    ids = {month: year.kept(month).keys() for month in MONTHS}
    text_of = {FIRST: ids[FIRST], SECOND: ids[SECOND] - ids[FIRST]}
    first, compared = year.artifact("scores", FIRST), year.artifact("comparison", SECOND)
    tables_of = {
        FIRST: [compared.table(path) for path in compared.files("documents/champion.")],
        SECOND: [
            table
            for scores in [year.artifact("scores", SECOND)]
            for table in map(scores.table, scores.files("documents/"))
        ],
    }
    expected = []
    for model in (FIRST, SECOND):
        rows = [row for table in tables_of[model] for row in table.to_pylist()]
        sums = [[row for row in rows if row["id"] in text_of[month]] for month in (FIRST, SECOND)]
        expected.append([sum(row["bits"] for row in own) / sum(row["bytes"] for row in own) for own in sums])
    assert [row[:2] for row in matrix["bpb"]] == [pytest.approx(row) for row in expected]
    assert [row[2] for row in matrix["bpb"]] == [None, None], "no model was scored in the third month"
    assert matrix["in_distribution"] == pytest.approx((expected[0][0] + expected[1][1]) / 2)
    assert matrix["backward"] == pytest.approx(expected[1][0])
    assert matrix["forward"] == pytest.approx(expected[0][1])
    assert json.loads(first.read("scores.json"))["sources"]


def test_a_model_that_was_scored_by_hand_is_in_the_matrix(year: Year, tmp_path: Path) -> None:
    shutil.copytree(open_store(year.recipe).root, tmp_path / "store")
    recipe = year.recipe.override({"place.store": str(tmp_path / "store")})
    store = open_store(recipe)
    assert regret.scores_of(store, recipe.name, THIRD) == {}
    evaluate_model(store, recipe, THIRD, f"{recipe.name}/checkpoint@{FIRST}")
    found = regret.scores_of(store, recipe.name, THIRD)
    assert [*found] == [FIRST]
    own = year.report(SECOND)["history"][-1]["scores"][FIRST]
    assert {month: found[FIRST][month] for month in own} == pytest.approx(own)


def test_costs_are_the_times_in_the_records_beside_those_of_the_first_month(year: Year) -> None:
    for version in MONTHS:
        seconds: dict[str, float] = {}
        for artifact in Ledger(open_store(year.recipe)):
            record = artifact.record
            if artifact.address.version == version and record.stage != "month":
                seconds[record.stage] = (
                    seconds.get(record.stage, 0) + (record.finished - record.started).total_seconds()
                )
        assert year.entry(version)["seconds"] == pytest.approx(seconds)
    table = next(table for table in tables(year.report(SECOND)) if table.name == "costs")
    rows = {str(row[0]): row[1:] for row in table.rows}
    first, second = (year.entry(version)["seconds"] for version in (FIRST, SECOND))
    assert rows["encode"] == [second["encode"], first["encode"], second["encode"] / first["encode"]]
    assert rows["all"][0] == pytest.approx(sum(second.values()))


def test_the_decision_on_the_champion_has_its_interval(year: Year) -> None:
    comparison = json.loads(year.artifact("comparison", SECOND).read("comparison.json"))
    decision = json.loads(year.artifact("champion", SECOND).read("champion.json"))
    champion = year.entry(SECOND)["champion"]
    assert champion == {
        **{name: comparison[name] for name in ("promoted", "reason")},
        **{name: comparison["score"][name] for name in ("difference", "interval", "unit")},
        "decided": True,
        "champion": decision["champion"]["artifact"],
    }
    assert year.entry(THIRD)["champion"] is None


def test_a_report_has_the_months_before_it(year: Year) -> None:
    for earlier, later in pairwise(MONTHS):
        assert year.report(later)["history"][:-1] == year.report(earlier)["history"]
    newest = report_of(open_store(year.recipe), year.recipe.name)
    assert newest is not None
    assert newest.address.version >= THIRD
    assert year.entry(FIRST)["profile"]
    assert year.report(FIRST)["drift"] == []
    assert {one["name"] for one in year.report(SECOND)["drift"]} >= {"steps", "languages", "domains", "lengths"}


def test_a_report_whose_month_went_on_is_not_silently_another_one(year: Year) -> None:
    with pytest.raises(DriftError, match="month@2026-11 exists"):
        month_report(open_store(year.recipe), year.recipe.override({"cycle.months": 2}), SECOND)


def test_reports_outlive_the_files_of_their_months(year: Year) -> None:
    found = survey(open_store(year.recipe), year.recipe.name, Retention(versions=1, grace_days=0))
    needed = {one.artifact: one.needed for one in found.holdings}
    assert needed[f"{year.recipe.name}/month@{FIRST}"] == "the report of a month"


def test_limits_that_drop_nearly_a_whole_source_need_a_person(year: Year, tmp_path: Path) -> None:
    recipe = small_recipe(tmp_path).override({**SETTINGS, "consolidate.limits.books.gopher_quality.min_words": 145})
    for stage in recipe.stages("corpus"):
        run_stage(recipe, stage, version=FIRST)
    (need,) = read_month(month_report(open_store(recipe), recipe, FIRST))["needs"]
    assert need.startswith("filters dropped 92% of the documents of books")
    assert year.report(FIRST)["needs"] == []


def test_the_shell_prints_a_month(year: Year, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["month", "--recipe", year.recipe.text, "--version", SECOND]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{year.recipe.name}, {SECOND}\n")
    assert "Champion and challenger" in printed
    assert main(["cycle", "--recipe", year.recipe.text, "--version", THIRD]) == 0
    assert capsys.readouterr().out.startswith(f"ended early: {year.ended[THIRD]}\n")


def test_the_page_shows_a_month_without_a_network(year: Year) -> None:
    html = year.artifact("month", THIRD).read("month.html").decode()
    assert "<b>Ended early:</b>" in html
    assert "http" not in html
    assert "<script" not in html


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"dedup_index.enabled": False, "encode.accumulate": False}, "set dedup_index.enabled = true"),
        ({"encode.accumulate": False}, "set encode.accumulate = true"),
        ({"schedule": "@daily"}, r"\[cycle\] has the schedule of this recipe"),
    ],
)
def test_a_recipe_that_would_not_grow_month_by_month_is_refused(
    settings: dict[str, Any], cause: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=cause):
        small_recipe(tmp_path).override({**SETTINGS, **settings})


def test_a_month_that_a_person_must_approve_does_not_run_in_a_shell(tmp_path: Path) -> None:
    recipe = small_recipe(tmp_path).override({**SETTINGS, "place.ask_human": True})
    with pytest.raises(RecipeError, match=r"Trigger smoke\.cycle"):
        run_month(recipe, FIRST)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_months_that_are_killed_at_random_moments_have_the_same_bytes(year: Year, tmp_path: Path) -> None:
    def contents(recipe: Recipe) -> dict[str, str]:
        """The content of what the months made, but for reports, which have times."""
        made = (one for one in Ledger(open_store(recipe), recipe.name) if one.address.version in MONTHS)
        return {str(one.address): one.record.content for one in made if "/month@" not in str(one.address)}

    expected, kills = contents(year.recipe), 0
    for number, left in rounds():
        (folder := tmp_path / str(number)).mkdir()
        recipe, draw = small_recipe(folder).override(SETTINGS), Random(number)
        for version in MONTHS:
            change_files(folder, version)
            command = [sys.executable, "-m", "tasks", "cycle", "--recipe", recipe.text, "--version", version]
            kills += finish_despite_kills(command, folder / "store", draw, left())
        assert contents(recipe) == expected
        shutil.rmtree(folder)
    assert kills

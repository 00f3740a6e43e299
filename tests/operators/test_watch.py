"""The watch on files: a change is one event, and the run that it starts has a version of its own."""

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from operators.runs import newest_event
from operators.watch import STATE, FilesTrigger, watched_files
from tasks.core.errors import RecipeError
from tasks.formats.lakes import TableAddress
from tasks.run.recipe import Recipe, find_recipe

RECIPE = """
name = "watched"
[[extract.files]]
name = "books"
kind = "text"
path = "{folder}/in/**/*.txt"
[place]
store = "{folder}/store"
watch_s = 0.01
"""


class States(dict[str, Any]):
    """Airflow's store of asset states, in memory."""

    async def aget(self, key: str, default: Any = None) -> Any:
        return self.get(key, default)

    async def aset(self, key: str, value: Any) -> None:
        self[key] = value


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    (tmp_path / "in").mkdir()
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/watched.toml").write_text(RECIPE.format(folder=tmp_path))
    monkeypatch.setenv("SLUICE_RECIPES", str(tmp_path / "recipes"))
    return find_recipe("watched")


def trigger_of(recipe: Recipe, states: States) -> FilesTrigger:
    """The trigger as the triggerer makes it: from what Airflow's database has of it."""
    (asset,) = watched_files(recipe)
    (watcher,) = asset.watchers
    path, arguments = watcher.trigger.serialize()
    assert path == "operators.watch.FilesTrigger"
    made = FilesTrigger(**arguments)
    made.asset_state_store = states
    return made


def test_a_new_version_of_a_table_is_a_change(tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    text = RECIPE.format(folder=tmp_path).replace('kind = "text"', 'kind = "delta"').replace("/in/**/*.txt", "/table")
    (tmp_path / "recipes/watched.toml").write_text(text)
    versions = iter(("delta:mine:1", "delta:mine:1", "delta:mine:2"))
    monkeypatch.setattr(TableAddress, "current", lambda _: next(versions))
    trigger = trigger_of(find_recipe("watched"), States())
    first, second, third = (trigger._look() for _ in range(3))
    assert first == second != third


async def events(trigger: FilesTrigger, looks: dict[int, Any], last: int) -> list[dict[str, Any]]:
    """Returns the events of a trigger until its look number `last`; before look n, `looks[n]` is called."""
    found, number, look = [], 0, trigger._look

    class Enough(Exception):
        pass

    def counted() -> str:
        nonlocal number
        number += 1
        if number > last:
            raise Enough
        looks.get(number, lambda: None)()
        return look()

    trigger._look = counted
    try:
        async for event in trigger.run():
            found.append(event.payload)
    except Enough:
        return found
    raise AssertionError("a watch does not end")


def test_a_new_file_is_one_event_and_an_old_one_none(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "in/old.txt").write_text("old")
    new = {3: lambda: (tmp_path / "in/new.txt").write_text("new")}
    (event,) = asyncio.run(events(trigger_of(recipe, States()), new, 6))
    assert re.fullmatch(r"\d{4}\.\d\d\.\d\d-\d{6}", event["version"])


def test_a_file_that_is_still_written_is_announced_when_it_is_complete(recipe: Recipe, tmp_path: Path) -> None:
    def grow() -> None:
        with (tmp_path / "in/new.txt").open("a") as file:
            file.write("more")

    assert len(asyncio.run(events(trigger_of(recipe, States()), {2: grow, 3: grow, 4: grow}, 4))) == 0
    assert len(asyncio.run(events(trigger_of(recipe, States()), {2: grow, 3: grow, 4: grow}, 6))) == 1


def test_a_file_that_came_while_no_triggerer_ran_is_announced_by_the_next_one(recipe: Recipe, tmp_path: Path) -> None:
    states = States()
    assert asyncio.run(events(trigger_of(recipe, states), {}, 2)) == []
    assert states[STATE]
    (tmp_path / "in/new.txt").write_text("new")
    assert len(asyncio.run(events(trigger_of(recipe, states), {}, 4))) == 1
    assert asyncio.run(events(trigger_of(recipe, states), {}, 4)) == []


def test_a_store_that_cannot_be_listed_is_no_event(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "in/old.txt").write_text("old")
    path = tmp_path / "recipes/watched.toml"
    lost = {2: lambda: path.rename(tmp_path / "aside"), 4: lambda: (tmp_path / "aside").rename(path)}
    assert asyncio.run(events(trigger_of(recipe, States()), lost, 6)) == []


def test_the_run_has_the_version_of_the_event() -> None:
    sent = SimpleNamespace(timestamp=1, extra={"from_trigger": True, "payload": {"version": "2026.11.21-030000"}})
    assert newest_event({"files": [sent]}) == {"version": "2026.11.21-030000"}


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ('schedule = "@daily"', "is started by its schedule"),
        ("cycle = {}\ndedup_index.enabled = true", r"is started by its \[cycle\]"),
        ('crawl = {seeds = ["https://a.example/"], contact = "mailto:me@a.example"}', "is started by its crawl"),
    ],
)
def test_a_corpus_that_something_else_starts_is_not_watched(
    more: str, problem: str, recipe: Recipe, tmp_path: Path
) -> None:
    (path := tmp_path / "recipes/watched.toml").write_text(f"{more}\n{RECIPE.format(folder=tmp_path)}")
    with pytest.raises(RecipeError, match=problem):
        Recipe.load(path)

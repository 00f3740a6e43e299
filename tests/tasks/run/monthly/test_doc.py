"""The recipes in README and in docs/months.md."""

import re
from pathlib import Path

import pytest

from tasks.run.new_recipe import new_recipe
from tasks.run.recipe import Recipe

ROOT = Path(__file__).parents[4]
STEPS = ("crawl", "corpus", "tokens", "pretrain", "takedown", "cycle")


def test_the_recipe_of_the_page_is_one(tmp_path: Path) -> None:
    block = re.search(r"```toml\n(.*?)```", (ROOT / "docs" / "months.md").read_text(), re.DOTALL)
    assert block
    (tmp_path / "news.toml").write_text(block[1])
    assert Recipe.load(tmp_path / "news.toml").dags == STEPS


def test_the_readme_makes_a_monthly_recipe_of_a_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_RECIPES", str(tmp_path))
    text = (ROOT / "README.md").read_text()
    site, contact = re.findall(r"sluice init (\S+) --contact (\S+) --name news", text)[0]
    added = re.search(r"news.toml << END\n(.*?)END\n", text, re.DOTALL)
    assert added
    new_recipe(site, "news", contact)
    path = tmp_path / "news.toml"
    path.write_text(path.read_text() + added[1])
    assert Recipe.load(path).dags == STEPS

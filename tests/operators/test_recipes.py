"""Any error in a recipe affects only that recipe: the others keep their DAGs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from operators.forms import dag_settings
from operators.recipes import read_recipes, recipes_for


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ("[extract]\nmax_page_cpu_s = inf\n", "extract.max_page_cpu_s is inf"),
        ("[annotate]\nsettings.perplexity.cuts = [2.0, inf]\n", "annotate.settings.perplexity.cuts[1] is inf"),
        ("[train.optim]\nlr = nan\n", "train.optim.lr is nan"),
        ("[extract]\nmin_chars = 07:32:00\n", "extract.min_chars is a time"),
    ],
)
def test_a_value_that_cannot_be_fingerprinted_breaks_only_its_recipe(
    recipes: Callable[..., Path], more: str, key: str
) -> None:
    recipes("good")
    recipes("bad", more)
    [line] = read_recipes()[1]
    assert line.startswith(f"bad.toml: {key}")
    [good] = recipes_for("corpus")
    made = dag_settings(good, "corpus", "About.", schedule=None)
    assert made["dag_id"] == "good.corpus"


def test_an_unreadable_file_breaks_only_its_recipe(recipes: Callable[..., Path]) -> None:
    recipes("good").with_name("bad.toml").mkdir()
    assert [recipe.name for recipe in recipes_for("corpus")] == ["good"]
    [line] = read_recipes()[1]
    assert line.startswith("bad.toml cannot be read")


def test_a_contradiction_between_sections_is_an_import_error(recipes: Callable[..., Path]) -> None:
    recipes("good")
    recipes("bad", '[consolidate]\ntrusted = ["bokks"]\n')
    [line] = read_recipes()[1]
    assert line.startswith('bad.toml: consolidate.trusted: the recipe has no source "bokks"')


def test_a_missing_extension_breaks_only_its_recipe(recipes: Callable[..., Path]) -> None:
    recipes("good")
    recipes(
        "bad",
        "[annotate]\nsettings.asking.chars = 1\n"
        '[[extract.files]]\nname = "papers"\nkind = "djvu"\npath = "/data/*.djvu"\n',
    )
    kind, settings = sorted(read_recipes()[1], reverse=True)
    assert settings.startswith('bad.toml: annotate.settings: no annotator "asking"')
    assert kind.startswith('bad.toml: extract.files.0.kind: no kind "djvu"')
    assert [recipe.name for recipe in recipes_for("corpus")] == ["good"]

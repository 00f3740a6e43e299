"""Any error in a recipe affects only that recipe: the others keep their DAGs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from operators import recipes as read
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


def test_a_remembered_recipe_is_read_again_only_when_its_file_or_the_one_it_extends_has_changed(
    recipes: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "_known", {})
    base, other = recipes("base"), recipes("other")
    recipes("more", text='name = "more"\nextends = "base.toml"\n')
    recipes("bad", text="name = ")
    read.remember_recipes()

    def again() -> dict[str, bool]:
        return {one.name: one is read._known[base.with_name(f"{one.name}.toml")].recipe for one in read_recipes()[0]}

    assert again() == {"base": True, "more": True, "other": True}
    base.write_text(base.read_text().replace("vocab_size = 300", "vocab_size = 301"))
    assert again() == {"base": False, "more": False, "other": True}
    assert {one.name: one.tokenizer.vocab_size for one in recipes_for("tokens")} == {
        "base": 301, "more": 301, "other": 300,
    }  # fmt: skip
    recipes("bad")
    other.unlink()
    assert [one.name for one in read_recipes()[0]] == ["bad", "base", "more"]

from pathlib import Path

import pytest

from tasks.core.config import canonical_json
from tasks.core.errors import RecipeError
from tasks.run.catalogue import STAGES
from tasks.run.monthly.config import Cycle
from tasks.run.place import KubernetesPlace, expand_all, expand_env
from tasks.run.recipe import Recipe, find_recipe, recipe_files

DEMO = find_recipe("demo")


def write(folder: Path, text: str, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


MINIMAL = """
name = "mine"
[crawl]
seeds = ["http://library.localhost:1/"]
allow_loopback = true
[canary]
current = { web = 1.0 }
"""


def test_every_shipped_recipe_loads() -> None:
    assert {Recipe.load(path).name for path in recipe_files()} >= {"demo", "web"}


def test_a_recipe_survives_a_round_trip_through_its_text() -> None:
    assert Recipe.from_text(DEMO.text) == DEMO


def test_truncated_text_is_refused() -> None:
    with pytest.raises(RecipeError, match="the recipe's text is not JSON"):
        find_recipe(DEMO.text[:-1])


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("max_bad_shar = 0.1", 'unknown key max_bad_shar. Did you mean "max_bad_share"?'),
        ("max_bad_share = 'much'", "max_bad_share: Input should be a valid number (got 'much')"),
        ("version = 7", "version: Input should be a valid string (got 7)"),
        ("version = 'a/b'", "a version is letters, digits"),
        ("max_bad_share = nan", "max_bad_share is nan: only finite numbers can be fingerprinted"),
        ("extract.max_page_cpu_s = inf", "extract.max_page_cpu_s is inf"),
        (
            'classifiers.train = [{ name = "q", texts = [{ path = "/x" }], ridge = inf }]',
            "classifiers.train[0].ridge is inf",
        ),
        ("annotate.settings.perplexity.cuts = [2.0, inf]", "annotate.settings.perplexity.cuts[1] is inf"),
        (
            "consolidate.limits.gopher_quality.min_words = '30'",
            "gopher_quality.min_words: Input should be a valid integer",
        ),
    ],
)
def test_an_invalid_line_is_refused_with_file_field_cause_and_remedy(tmp_path: Path, line: str, cause: str) -> None:
    with pytest.raises(RecipeError) as caught:
        Recipe.load(write(tmp_path, line + MINIMAL))
    assert str(caught.value).startswith("mine.toml: ")
    assert cause in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_mixture_that_does_not_sum_to_one_is_refused_with_its_sum(tmp_path: Path) -> None:
    text = MINIMAL.replace("{ web = 1.0 }", "{ web = 0.5, code = 0.3 }")
    with pytest.raises(RecipeError, match=r"mine.toml: canary.*0\.8"):
        Recipe.load(write(tmp_path, text))


def test_text_that_is_not_toml_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"mine.toml is not TOML: .*line 2"):
        Recipe.load(write(tmp_path, "name = 1\nversion = oops\n"))


def test_a_name_other_than_that_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r'yours\.toml: name is "mine"\. Call the recipe "yours" or rename the file'):
        Recipe.load(write(tmp_path, MINIMAL, "yours.toml"))


def test_a_recipe_inherits_unset_values_from_the_one_it_extends(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL, "base.toml")
    child = Recipe.load(
        write(tmp_path, 'extends = "base.toml"\nname = "child"\n[crawl]\nmax_pages = 7\n', "child.toml")
    )
    assert (child.name, child.crawl.max_pages) == ("child", 7)
    assert child.crawl.seeds == ("http://library.localhost:1/",)


def test_only_one_level_of_extension_is_allowed(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL, "base.toml")
    write(tmp_path, 'extends = "base.toml"\nname = "child"\n', "child.toml")
    with pytest.raises(RecipeError, match="only one level"):
        Recipe.load(write(tmp_path, 'extends = "child.toml"\nname = "grandchild"\n', "grandchild.toml"))


def test_an_override_is_checked_like_the_file() -> None:
    assert DEMO.override({"crawl.max_pages": 5}).crawl.max_pages == 5
    with pytest.raises(RecipeError, match=r'override: unknown key crawl\.max_page\. Did you mean "max_pages"'):
        DEMO.override({"crawl.max_page": 5})
    with pytest.raises(RecipeError, match=r"crawl\.max_pages"):
        DEMO.override({"crawl.max_pages": "five"})


def test_an_unknown_recipe_is_refused_with_a_list_of_the_others() -> None:
    with pytest.raises(RecipeError, match=r'no recipe "domo".*demo'):
        find_recipe("domo")


def test_a_place_expands_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_TEST_BUCKET", "s3://bucket")
    assert expand_env("${SLUICE_TEST_BUCKET}/x") == "s3://bucket/x"
    assert expand_env("${SLUICE_TEST_ABSENT:-here}") == "here"
    with pytest.raises(RecipeError, match="SLUICE_TEST_ABSENT"):
        expand_env("${SLUICE_TEST_ABSENT}")


def test_all_strings_of_a_place_are_expanded_where_the_stage_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_TEST_IMAGE", "registry/trainer:2")
    place = KubernetesPlace(
        image="${SLUICE_TEST_IMAGE}",
        env={"BUCKET": "${SLUICE_TEST_ABSENT:-sluice}"},
        secrets=("${SLUICE_TEST_ABSENT:-s}",),
    )
    made = expand_all(place)
    assert (made.image, made.env, made.secrets) == ("registry/trainer:2", {"BUCKET": "sluice"}, ("s",))
    assert made.model_copy(update={"image": place.image, "env": place.env, "secrets": place.secrets}) == place


def test_the_inputs_of_consolidate_must_be_measured() -> None:
    use = ["language", "gopher_quality", "gopher_repetition", "prose_score"]
    with pytest.raises(RecipeError, match=r'consolidate\.mask_pii: "pii" is not measured: add "pii" to annotate\.use'):
        find_recipe("demo").override({"annotate.use": use})
    assert find_recipe("demo").override({"annotate.use": use, "consolidate.mask_pii": False}).annotate.use == tuple(use)


def test_models_are_trained_if_the_recipe_configures_them() -> None:
    from tasks.stages.classifiers import ClassifiersConfig

    recipe = find_recipe("demo")
    assert not recipe.has(STAGES["train_classifiers"])
    train = ({"name": "quality", "positive": "good", "texts": ({"path": "/data/*.jsonl"},)},)
    wanted = recipe.model_copy(update={"classifiers": ClassifiersConfig(train=train)})
    assert wanted.has(STAGES["train_classifiers"])
    assert not wanted.has(STAGES["train_perplexity"])


def test_a_time_zone_is_in_the_text_of_a_recipe_only_if_it_is_set() -> None:
    cycle, in_tokyo = Cycle(), Cycle(timezone="Asia/Tokyo")
    assert "timezone" not in DEMO.text + canonical_json(cycle), "fingerprints and pods of older releases stay"
    assert Cycle.model_validate_json(canonical_json(in_tokyo)) == in_tokyo
    mine = DEMO.override({"schedule": "@daily", "timezone": "Asia/Tokyo"})
    assert Recipe.from_text(mine.text) == mine

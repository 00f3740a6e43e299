"""Constraints between sections are checked when the recipe is read, not in a stage."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from mlflow.utils.validation import _validate_model_name

from tasks.core.config import canonical_json
from tasks.core.errors import RecipeError
from tasks.run.recipe import Recipe, find_recipe

DEMO = find_recipe("demo")
DOC = Path(__file__).parents[3] / "docs" / "crawl.md"
BOOKS = {"name": "books", "kind": "text", "path": "/data/*.txt"}
CRAWLED = {"name": "captures", "kind": "warc", "path": "/data/*.warc.gz"}
TRAIN = {"name": "edu", "positive": "good", "texts": [{"path": "/data/*.jsonl"}]}
USE = ["language", "gopher_quality", "gopher_repetition", "prose_score", "pii"]
SCORES = {"edu": {"folder": "/models/edu", "label": "1"}}


def files_only(*files: dict[str, Any], **consolidate: Any) -> Recipe:
    """A recipe without a crawl, as read from its file."""
    settings = {"name": "mine", "crawl": {"enabled": False}, "canary": {}}
    return read({**settings, "extract": {"files": files}, "consolidate": consolidate})


def read(settings: dict[str, Any]) -> Recipe:
    from tasks.core.config import parse

    return parse(Recipe, settings, "mine.toml")


def refused(changes: dict[str, Any]) -> str:
    with pytest.raises(RecipeError) as caught:
        DEMO.override(changes)
    return str(caught.value)


def test_without_a_crawl_filters_apply_to_every_source() -> None:
    assert files_only(BOOKS, CRAWLED).consolidate.sources == ("books", "captures")


def test_with_a_crawl_filters_apply_to_it_and_to_other_captures() -> None:
    assert DEMO.consolidate.sources == ("web",)
    more = [source.model_dump() for source in DEMO.extract.files] + [CRAWLED]
    assert DEMO.override({"extract.files": more}).consolidate.sources == ("web", "captures")


@pytest.mark.parametrize(
    ("changes", "product"),
    [
        ({"canary.arms": 3000, "canary.seeds": [0, 1, 2, 3]}, "3,005 arms x 4 seeds = 12,020 runs"),
        ({"canary.arms": 4, "canary.seeds": list(range(1470))}, "9 arms x 1,470 seeds = 13,230 runs"),
    ],
)
def test_more_runs_of_a_round_than_a_stage_may_have_are_refused_with_the_product(
    changes: dict[str, Any], product: str
) -> None:
    assert refused(changes) == (
        f"override: canary: a round would have {product} at one time, of which at most 10,000 are possible: "
        "lower arms, or name fewer seeds."
    )
    within = DEMO.override({**changes, "canary.budget": {"runs": 1000}})
    assert within.canary.runs_at_once == 1000, "the budget admits no more"
    assert "crawl.partitions: Input should be less than or equal to 10000" in refused({"crawl.partitions": 10_001})


@pytest.mark.parametrize("name", ["team/guide", "a:b", "bob's", 'so "x"', "a`b", "../x", ".", " x", "x\n", "x" * 251])
def test_a_name_that_mlflow_refuses_for_a_model_is_refused(name: str) -> None:
    for field in ("registry.model", "tuned.model"):
        said = refused({field: name})
        assert said.startswith(f"override: {field}: a model's name in MLflow ")


def test_other_names_of_models_are_accepted() -> None:
    for name in ("guide", "Team guide 2", "catalog.schema.guide", "модель", "x" * 250, "a-b_c"):
        assert DEMO.override({"registry.model": name, "tuned.model": name}).registry.model == name
        _validate_model_name(name)


def test_filters_skip_trusted_sources_and_a_source_cannot_be_both() -> None:
    mine = files_only(BOOKS, CRAWLED, trusted=["books"])
    assert mine.consolidate.sources == ("captures",)
    assert Recipe.from_text(mine.text) == mine
    assert mine.override({"consolidate.trusted": []}).consolidate.sources == ("books", "captures")
    assert files_only(BOOKS, trusted=["books"]).consolidate.sources == (), "all of it is trusted"
    with pytest.raises(RecipeError, match=r'consolidate\.trusted: "books" is also in consolidate\.sources'):
        files_only(BOOKS, CRAWLED, sources=["books"], trusted=["books"])


def test_the_default_sources_of_filters_follow_overrides_and_survive_the_text() -> None:
    mine = files_only(BOOKS)
    assert mine.override({"extract.files": [BOOKS, CRAWLED]}).consolidate.sources == ("books", "captures")
    of_files = DEMO.override({"crawl.enabled": False, "canary.current": {"code": 0.5, "packages": 0.5}})
    assert of_files.consolidate.sources == ("code", "packages")
    assert Recipe.from_text(mine.text) == mine


def test_explicitly_named_sources_are_kept() -> None:
    named = files_only(BOOKS, CRAWLED, sources=["captures"])
    assert named.consolidate.sources == ("captures",)
    assert named.override({"consolidate.samples": 1}).consolidate.sources == ("captures",)
    assert DEMO.override({"consolidate.sources": ["web", "code"]}).consolidate.sources == ("web", "code")


def test_a_recipe_without_sources_raises_no_error_about_filters() -> None:
    assert files_only().consolidate.sources == ("web",)


@pytest.mark.parametrize("field", ["sources", "trusted"])
def test_an_unknown_source_is_refused_with_the_nearest_one(field: str) -> None:
    said = refused({f"consolidate.{field}": ["code", "packges"]})
    assert said == f'override: consolidate.{field}: the recipe has no source "packges". Did you mean "packages"?'


def test_the_crawl_is_not_a_source_of_a_recipe_without_a_crawl() -> None:
    with pytest.raises(RecipeError, match=r'mine\.toml: consolidate\.sources: the recipe has no source "web".*books'):
        files_only(BOOKS, sources=["web", "books"])


def test_filters_without_a_source_are_refused() -> None:
    said = refused({"consolidate.sources": []})
    assert "consolidate.sources is empty, so the filters would apply to nothing" in said
    assert "consolidate.filters" in said
    assert (
        DEMO.override(
            {"consolidate.sources": [], "consolidate.filters": [], "consolidate.limits": {}}
        ).consolidate.sources
        == ()
    )


def test_the_documented_example_without_a_crawl_filters_its_files() -> None:
    text = DOC.read_text().partition("A corpus does not need a crawl")[2].partition("```toml\n")[2]
    example = tomllib.loads(text.partition("```")[0])
    recipe = read({"name": "mine", "canary": {"current": {"books": 1.0}}, **example})
    assert not recipe.crawl.enabled
    assert recipe.consolidate.filters
    assert recipe.consolidate.sources == ("captures", "dump", "books")


@pytest.mark.parametrize("bound", ["at_least", "at_most"])
def test_a_limit_on_an_unused_model_is_refused_with_the_nearest_one(bound: str) -> None:
    asked = {
        "classifiers.train": [TRAIN],
        "annotate.use": [*USE, "classifier"],
        "annotate.settings.classifier": {"models": ["edu"]},
        "consolidate.filters": ["classifier"],
        "consolidate.limits": {"classifier": {bound: {"edo": 0.5}}},
    }
    said = refused(asked)
    why = "annotate.settings.classifier.models lists the scores"
    assert (
        said == f'override: consolidate.limits.classifier.{bound}: "edo" is not measured ({why}). Did you mean "edu"?'
    )
    assert DEMO.override({**asked, "consolidate.limits": {"classifier": {bound: {"edu": 0.5}}}})


def test_a_limit_on_an_unused_hugging_face_score_is_refused() -> None:
    said = refused(
        {
            "annotate.use": [*USE, "hugging_face"],
            "annotate.settings.hugging_face": {"scores": SCORES},
            "consolidate.filters": ["hugging_face"],
            "consolidate.limits": {"hugging_face": {"at_most": {"toxic": 0.5}}},
        }
    )
    why = "annotate.settings.hugging_face.scores lists the scores"
    assert f'consolidate.limits.hugging_face.at_most: "toxic" is not measured ({why}): choose from edu' in said


def test_a_used_but_untrained_model_is_refused_with_the_nearest_one() -> None:
    changes = {"classifiers.train": [TRAIN], "annotate.use": [*USE, "classifier"]}
    said = refused({**changes, "annotate.settings.classifier": {"models": ["edu", "edv"]}})
    assert 'annotate.settings.classifier.models: [[classifiers.train]] has no "edv". Did you mean "edu"?' in said
    assert DEMO.override({**changes, "annotate.settings.classifier": {"models": ["edu"]}})


@pytest.mark.parametrize(
    ("name", "settings", "model"),
    [
        ("classifier", {}, "quality"),
        ("topic", {"model": "subject"}, "subject"),
        ("quality", {"model": "prose"}, "prose"),
    ],
)
def test_an_annotator_of_models_is_refused_if_none_is_trained(name: str, settings: dict[str, Any], model: str) -> None:
    said = refused({"annotate.use": [*USE, name], f"annotate.settings.{name}": settings})
    assert f'{name} applies the model "{model}", but no model is trained' in said
    assert f'add [[classifiers.train]] with name = "{model}", or remove {name} from annotate.use' in said


def test_the_shipped_weights_of_quality_need_no_training() -> None:
    assert "quality" in DEMO.override({"annotate.use": [*USE, "quality"]}).annotate.use


@pytest.mark.parametrize(
    ("name", "settings", "train", "said"),
    [
        (
            "classifier",
            {"models": ["edu"]},
            {"positive": ""},
            'no positive label: give it one, or use it with the annotator "topic"',
        ),
        (
            "classifier",
            {"models": ["edu"]},
            {"method": "signals"},
            'of the method signals: use it with the annotator "quality"',
        ),
        (
            "topic",
            {"model": "edu"},
            {"method": "signals"},
            'of the method signals: use it with the annotator "quality"',
        ),
        ("quality", {"model": "edu"}, {}, 'of the method fasttext: use it with the annotator "classifier"'),
    ],
)
def test_a_model_of_an_unsupported_kind_is_refused(
    name: str, settings: dict[str, Any], train: dict[str, Any], said: str
) -> None:
    changes = {"classifiers.train": [{**TRAIN, **train}], "annotate.use": [*USE, name]}
    assert said in refused({**changes, f"annotate.settings.{name}": settings})


def test_perplexity_is_refused_without_references_or_a_file() -> None:
    use = {"annotate.use": [*USE, "perplexity"]}
    said = refused(use)
    assert "perplexity has no model: add [[perplexity.references]], set annotate.settings.perplexity.file" in said
    assert DEMO.override({**use, "annotate.settings.perplexity": {"file": "/models/en.arpa"}})
    reference = {"name": "wiki", "kind": "jsonl", "path": "/data/*.jsonl"}
    assert DEMO.override({**use, "perplexity.references": [reference]})


@pytest.mark.parametrize(
    ("gold", "said"),
    [
        (
            "language.nope",
            'consolidate.gold: "language.nope": language measures no "nope": choose from label, other_share, score',
        ),
        ("language.scor", 'Did you mean "score"?'),
        ("language.label", 'consolidate.gold: "language.label" is not a number (string): name a numeric'),
        ("pii.spans", '"pii.spans" is not a number (list'),
        ("gopher_quality.word", 'Did you mean "words"?'),
    ],
)
def test_gold_by_an_unmeasured_or_non_numeric_value_is_refused(gold: str, said: str) -> None:
    assert said in refused({"consolidate.gold": {gold: 0.5}})


def test_gold_by_an_unknown_annotator_is_refused_with_the_nearest_one() -> None:
    said = refused({"consolidate.gold": {"langage.score": 0.5}})
    assert said == 'override: consolidate.gold: no annotator "langage". Did you mean "language"?'


def test_the_preference_among_copies_must_be_measured() -> None:
    use = [name for name in USE if name != "prose_score"]
    assert refused({"annotate.use": use}) == 'override: annotate.use: dedup reads "prose_score": add it.'


@pytest.mark.parametrize("gold", ["language.score", "pii.count", "gopher_quality.english", "prose_score.score"])
def test_gold_by_numbers_and_booleans_is_accepted(gold: str) -> None:
    assert DEMO.override({"consolidate.gold": {gold: 1}}).consolidate.gold == {gold: 1.0}


def test_gold_by_a_model_score_needs_that_model() -> None:
    changes = {
        "classifiers.train": [TRAIN],
        "annotate.use": [*USE, "classifier"],
        "annotate.settings.classifier": {"models": ["edu"]},
    }
    assert DEMO.override({**changes, "consolidate.gold": {"classifier.edu": 0.5}})
    assert 'Did you mean "edu"?' in refused({**changes, "consolidate.gold": {"classifier.edo": 0.5}})


def test_limits_of_removed_filters_are_refused_with_a_remedy() -> None:
    said = refused({"consolidate.filters": ["language"]})
    assert "settings for gopher_quality (min_letters = 0.5, by default 0.8), which is not in use" in said
    assert "--set consolidate.limits.gopher_quality={}" in said
    assert "limits of gopher_quality, which is not in use" in said
    assert "--set consolidate.limits.pdf.gopher_quality={}" in said
    several = {f"consolidate.limits.{name}": {} for name in ("gopher_quality", "pdf.gopher_quality")}
    way_out = {"consolidate.filters": ["language"], **several}
    assert DEMO.override(way_out).consolidate.filters == ("language",)


def test_the_checks_of_a_recipe_with_models_load_nothing_heavy() -> None:
    asked = {
        "classifiers.train": [{**TRAIN, "crawl": {"sources": ["web"]}}, {**TRAIN, "name": "kind"}],
        "perplexity.references": [{"name": "web", "kind": "documents", "language": "en"}],
        "annotate.use": [*USE, "classifier", "topic", "url_blocklist", "perplexity"],
        "annotate.settings.classifier": {"models": ["edu"]},
        "annotate.settings.topic": {"model": "kind"},
        "annotate.settings.url_blocklist": {"files": {"adult": "/lists/adult"}},
        "consolidate.filters": ["classifier", "topic", "url_blocklist", "perplexity"],
        "consolidate.limits": {
            "classifier": {"at_least": {"edu": 0.5}},
            "topic": {"drop": ["lyrics"]},
            "url_blocklist": {"categories": ["adult"]},
            "perplexity": {"drop_buckets": ["tail"]},
        },
        "consolidate.gold": {"classifier.edu": 0.5, "prose_score.score": 0.5},
    }
    code = (
        "import sys; from tasks.run.recipe import find_recipe\n"
        f"find_recipe('demo').override({asked!r})\n"
        "sys.exit(' '.join({'numpy', 'pyarrow', 'torch', 'fasttext'} & set(sys.modules)) or 0)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_chunks_for_examples_come_from_the_recipe_or_a_named_artifact() -> None:
    assert "examples.chunks: the recipe cuts no chunks: set [chunks] enabled = true" in refused({"examples.chunks": {}})
    named = {"of": "mine/chunks@2026.10", "sources": ["books"]}
    assert DEMO.override({"examples.chunks": named}).stages("finetune") == ("examples",)
    own = {"chunks.enabled": True, "examples.chunks": {"sources": ["wob"]}}
    assert 'examples.chunks.sources: the recipe has no source "wob". Did you mean "web"?' in refused(own)
    assert "are <recipe>/chunks@<version>" in refused({"examples.chunks": {"of": "mine/documents@1"}})
    assert "chunks are not preferences" in refused({"examples": {"chunks": named, "kind": "preferences"}})


def test_a_fine_tuning_has_shards_but_no_other_parallelism_of_matrices_and_layers() -> None:
    tuned = {"finetune.base": "demo/checkpoint@1", "examples.files": ["/rows.jsonl"]}
    shared = {"shard": 2, "recompute": "full"}
    text = json.loads(DEMO.override(tuned).text)
    text["place"]["train"]["layout"] = shared
    assert "finetune" in Recipe.from_text(json.dumps(text)).dags
    text["place"]["train"]["layout"] |= {"tensor": 2, "pipeline": 2}
    with pytest.raises(RecipeError) as caught:
        Recipe.from_text(json.dumps(text))
    assert [line.split(": ")[1] for line in str(caught.value).splitlines()] == [
        f"place.train.layout.{name}" for name in ("tensor", "pipeline")
    ]
    assert "a fine-tuning has no tensor parallelism: use shard and replicate" in str(caught.value)
    text["finetune"]["base"] = ""
    assert Recipe.from_text(json.dumps(text)).place.train.layout.shard == 2, "a training may"


PAPERS = {"name": "papers", "kind": "pdf", "path": "/data/*.pdf"}
SHARED = DEMO.override({"extract.files": [*(one.model_dump() for one in DEMO.extract.files), PAPERS]})


def test_a_source_with_its_own_limits_is_filtered_unless_sources_are_named() -> None:
    mine = SHARED
    assert mine.consolidate.sources == ("web", "papers"), "the recipe has limits for PDF"
    assert mine.consolidate.kinds == {"web": "web", "code": "text", "packages": "metadata", "papers": "pdf"}
    own = {"consolidate.limits.code.gopher_quality.min_words": 9}
    assert mine.override(own).consolidate.sources == ("web", "code", "papers")
    assert mine.override({**own, "consolidate.trusted": ["papers"]}).consolidate.sources == ("web", "code")
    assert Recipe.from_text(mine.override(own).text) == mine.override(own)
    with pytest.raises(RecipeError, match=r'limits\.code: "code" is not filtered: add it to consolidate\.sources'):
        mine.override({**own, "consolidate.sources": ["web"]})


@pytest.mark.parametrize(("scope", "meant"), [("cod", "code"), ("pfd", "pdf"), ("papres", "papers")])
def test_limits_of_an_unknown_source_or_kind_are_refused(scope: str, meant: str) -> None:
    said = rf'no filter, source or kind of source "{scope}"\. Did you mean "{meant}"'
    with pytest.raises(RecipeError, match=said):
        SHARED.override({f"consolidate.limits.{scope}.gopher_quality.min_words": 9})


def test_the_kinds_of_sources_cannot_be_set() -> None:
    with pytest.raises(RecipeError, match=r"kinds is filled in from \[extract\]: leave it out"):
        DEMO.override({"consolidate.kinds": {"code": "pdf"}})


def test_the_recipe_for_the_public_web_has_limits_for_code() -> None:
    consolidate = find_recipe("web").consolidate
    assert consolidate.sources == ("web", "code")
    of_code, of_web = (consolidate.limits_of(source)["gopher_quality"] for source in ("code", "web"))
    assert of_code["min_letters"] < of_web["min_letters"]
    assert (of_code["min_stop_words"], of_code["min_words"]) == (0, of_web["min_words"])


def test_limits_of_a_source_are_in_the_fingerprint() -> None:
    own = DEMO.override({"consolidate.limits.code.gopher_quality.min_words": 9}).consolidate
    assert canonical_json(own) != canonical_json(DEMO.consolidate)


@pytest.mark.parametrize("section", ["canary", "train", "finetune"])
def test_a_warmup_that_is_longer_than_its_run_is_refused(section: str) -> None:
    changes = {f"{section}.steps": 20, f"{section}.optim.warmup_steps": 25}
    assert refused(changes) == (
        f"override: {section}.optim.warmup_steps: the run would end in its warm-up, at 80% of the learning rate: "
        f"set at most 20, or raise {section}.steps."
    )
    at_most = DEMO.override({**changes, f"{section}.optim.warmup_steps": 20})
    assert at_most.field(f"{section}.optim.warmup_steps") == 20
    wrong = refused({**changes, "crawl.max_page": 5})
    assert f"{section}.optim.warmup_steps" in wrong, "reported together with other errors"


def test_a_default_warmup_may_be_longer_than_a_small_run() -> None:
    smoke = find_recipe("smoke")
    assert smoke.field("canary.steps") < smoke.field("canary.optim.warmup_steps")
    assert Recipe.from_text(smoke.text) == smoke
    assert DEMO.override({"train.steps": 7}).field("train.optim.warmup_steps") == 30

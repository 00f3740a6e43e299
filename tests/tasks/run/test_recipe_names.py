"""Unknown names are refused when the recipe is read: sources, topics, categories, languages."""

from pathlib import Path
from typing import Any

import pytest

from tasks.core.errors import RecipeError
from tasks.formats.tokens.labels import DOCUMENT_COLUMNS
from tasks.run.recipe import Recipe
from tasks.stages.canary import CanaryConfig
from tasks.stages.consolidate.stage import KEPT_SCHEMA
from tasks.stages.tokens import TokenizerConfig
from tests.tasks.run.test_recipe_validation import BOOKS, DEMO, TRAIN, USE, files_only, refused

GATE = {**TRAIN, "name": "gate", "crawl": {"sources": ["web"]}}
ASTRAY = {**GATE, "crawl": {"sources": ["web", "packges"]}}
CORPUS = {"name": "packages", "kind": "documents"}


@pytest.mark.parametrize(
    ("changes", "at"),
    [
        ({"classifiers.train": [TRAIN, ASTRAY]}, "classifiers.train.1.crawl.sources"),
        ({"perplexity.references": [{**CORPUS, "name": "packges"}]}, "perplexity.references.0.name"),
        ({"perplexity.references": [CORPUS], "perplexity.cut_source": "packges"}, "perplexity.cut_source"),
        ({"tokenizer.weights": {"web": 0.5, "packges": 0.5}}, "tokenizer.weights"),
        ({"canary.current": {"web": 0.5, "packges": 0.5}}, "canary.current"),
        ({"canary.target": {"packges": 1.0}}, "canary.target"),
        ({"canary.guarded": ["web", "packges"]}, "canary.guarded"),
    ],
)
def test_an_unknown_source_of_texts_or_a_mixture_is_refused_with_the_nearest_one(
    changes: dict[str, Any], at: str
) -> None:
    assert refused(changes) == f'override: {at}: the recipe has no source "packges". Did you mean "packages"?'


def test_guards_of_a_new_champion_are_sources_or_tasks() -> None:
    task = {"name": "quiz", "kind": "cloze", "path": "/data/quiz.jsonl", "prompt": "{{text}}"}
    changes = {"evaluate.tasks": [task], "promote.guarded": ["web", "quiz"]}
    recipe = DEMO.override(changes)
    assert recipe.promote.guarded == ("web", "quiz")
    assert Recipe.from_text(recipe.text) == recipe, "as a pod reads it"
    said = refused({**changes, "promote.guarded": ["quis"]})
    assert said == 'override: promote.guarded: the recipe has no source and no task "quis". Did you mean "quiz"?'


QUIZ, TRIVIA = ({"name": name, "kind": "cloze", "path": "/q.jsonl", "prompt": "{{q}}"} for name in ("quiz", "trivia"))
TASKS = {"evaluate.tasks": [QUIZ, TRIVIA], "canary.tasks": ["trivia"]}


def test_canaries_score_tasks_of_the_evaluation_whose_settings_alone_are_in_their_fingerprint() -> None:
    named = {"canary.target": {"web": 0.5, "trivia": 0.5}, "canary.guarded": ["trivia"]}
    recipe = DEMO.override({**TASKS, **named})
    assert [task.name for task in recipe.canary.scored] == ["trivia"]
    assert Recipe.from_text(recipe.text) == recipe, "as a pod reads it"
    assert recipe.override({"evaluate.tasks": [{**QUIZ, "limit": 1}, TRIVIA]}).canary == recipe.canary
    assert recipe.override({"evaluate.tasks": [QUIZ, {**TRIVIA, "limit": 1}]}).canary != recipe.canary
    assert DEMO.override({"evaluate.tasks": [QUIZ]}).canary == DEMO.canary


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"canary.tasks": ["trivai"]}, '[[evaluate.tasks]] has no task "trivai". Did you mean "trivia"?'),
        ({"canary.tasks": ["quiz"], "evaluate.tasks": []}, '[[evaluate.tasks]] has no task "quiz": define it there.'),
        ({"canary.tasks": ["quiz", "quiz"]}, '"quiz" is named twice: leave one out.'),
        ({"canary.tasks": ["web"], "evaluate.tasks": [{**QUIZ, "name": "web"}]}, '"web" is also a source: rename it.'),
    ],
)
def test_tasks_that_canaries_cannot_score_are_refused(changes: dict[str, Any], said: str) -> None:
    assert refused({**TASKS, **changes}) == f"override: canary.tasks: {said}"


def test_a_task_that_is_not_scored_cannot_be_guarded_or_in_the_target() -> None:
    said = 'the recipe has no source and no task "quiz": choose from code, packages, trivia, web.'
    assert refused({**TASKS, "canary.guarded": ["quiz"]}) == f"override: canary.guarded: {said}"
    assert refused({**TASKS, "canary.target": {"quiz": 1.0}}) == f"override: canary.target: {said}"
    assert "canary.scored is filled in from [evaluate.tasks]" in refused({**TASKS, "canary.scored": [QUIZ]})


def test_a_comparison_uses_the_settings_of_the_evaluation() -> None:
    on = DEMO.override({"promote.enabled": True, "evaluate.max_tokens": 77})
    assert on.promote.evaluate == on.evaluate
    assert on.override({"evaluate.max_tokens": 78}).promote.evaluate.max_tokens == 78  # type: ignore[union-attr]
    assert on.override({"promote.enabled": False}).promote.evaluate is None
    said = refused({"promote.enabled": True, "promote.evaluate": {"max_tokens": 3}})
    assert "promote.evaluate is filled in from [evaluate]: leave it out" in said


@pytest.mark.parametrize(
    ("changes", "at"),
    [
        ({"train.mixture": {"packges": 1.0}}, "train.mixture"),
        ({"train.anneal": {"mixture": {"packges": 1.0}}}, "train.anneal.mixture"),
        ({"train.replay": {"share": 0.5, "old": ["packges"]}}, "train.replay.old"),
    ],
)
def test_an_unknown_training_source_is_refused_with_the_nearest_one(changes: dict[str, Any], at: str) -> None:
    said = refused({"makes": ["warc", "documents", "tokens", "checkpoint"], **changes})
    assert said == f'override: {at}: the recipe has no source "packges". Did you mean "packages"?'


def test_the_grouping_column_must_exist_in_the_shards() -> None:
    said = refused({"pack.by": "topic"})
    assert 'pack.by: the shards have no column "topic": add it to encode.columns' in said
    assert "or choose from source, tier, language" in said
    assert '"tokens" is a column of every shard: leave it out' in refused({"encode.columns": ["tokens"]})


def test_grouped_by_another_column_mixtures_name_its_values_and_targets_still_sources() -> None:
    by_tier = {"pack.by": "tier", "canary.current": {"gold": 0.5, "silver": 0.5}, "canary.target": {"web": 1.0}}
    assert DEMO.override(by_tier).pack.by == "tier"
    said = refused({**by_tier, "canary.current": {"gold": 0.5, "sliver": 0.5}})
    assert (
        said == 'override: canary.current: tier, which [pack] groups by, has no value "sliver". Did you mean "silver"?'
    )
    for field, names in (("target", {"gold": 1.0}), ("guarded", ["gold"])):
        said = refused({**by_tier, f"canary.{field}": names})
        assert said == f'override: canary.{field}: the recipe has no source "gold": choose from code, packages, web.'
    files = [{"name": "bought", "path": "/data/*.idx"}]
    unknown = {**by_tier, "canary.current": {"gold": 0.5, "unknown": 0.5}}
    assert 'has no value "unknown"' in refused(unknown)
    assert DEMO.override({**unknown, "encode.token_files": files}).encode.token_files[0].name == "bought"
    by_host = {"pack.by": "host", "encode.columns": ["host"], "canary.current": {"only.documents.know": 1.0}}
    assert DEMO.override(by_host).encode.columns == ("host",)


def test_components_of_a_mixture_are_checked_value_by_value() -> None:
    joint = {"pack.by": "source+tier+language", "canary.current": {"web": 0.5, "code+gold+ja": 0.5}}
    exponents = {"canary.alpha": {"language": 0.3}}
    assert DEMO.override({**joint, **exponents}).of(CanaryConfig).alpha == {"language": 0.3}
    for name, problem in (
        ("wbe+gold", 'the recipe has no source "wbe"'),
        ("web+glod", 'tier, which [pack] groups by, has no value "glod"'),
        ("web+gold+ja+x", '"web+gold+ja+x" has 4 values, and [pack] by = "source+tier+language" has 3'),
    ):
        assert problem in refused({**joint, "canary.current": {name: 1.0}})
    assert '[pack] by = "source" has no column "language"' in refused(exponents)
    assert 'the column "tier" is named twice' in refused({"pack.by": "tier+tier", "canary.current": {}})
    sampled = {"tokenizer.by": "language", "tokenizer.alpha": {"language": 0.3}}
    assert DEMO.override(sampled).of(TokenizerConfig).by == "language"
    assert 'tokenizer.alpha: by = "source" has no column' in refused({"tokenizer.alpha": {"language": 0.3}})


def test_the_sample_of_the_tokenizer_is_drawn_by_columns_that_documents_have() -> None:
    assert {*KEPT_SCHEMA.names} - {*DOCUMENT_COLUMNS} == {"text", "metadata", "prose_score"}
    for by in ("source+language", "tier", "fetched_at", "metadata.topic"):
        assert DEMO.override({"tokenizer.by": by}).of(TokenizerConfig).by == by
    for by, problem in (
        ("langauge", 'the documents have no column "langauge" of names: did you mean "language"?'),
        ("source+", 'the documents have no column "" of names: choose from canonical, '),
        ("metadata.", 'no column "metadata." of names: did you mean "metadata.<field>"?'),
        ("prose_score", 'no column "prose_score" of names'),
        ("source+source", 'the column "source" is named twice: leave one out'),
    ):
        said = refused({"tokenizer.by": by})
        assert said.startswith("override: tokenizer.by: ")
        assert problem in said


def test_existing_sources_are_accepted_everywhere() -> None:
    changes = {
        "classifiers.train": [GATE],
        "perplexity.references": [CORPUS, {"name": "wiki", "kind": "jsonl", "path": "/data/*.jsonl"}],
        "perplexity.cut_source": "code",
        "tokenizer.weights": {"web": 0.5, "code": 0.5},
        "canary.target": {"web": 1.0},
        "canary.guarded": ["code"],
    }
    recipe = DEMO.override(changes)
    assert Recipe.from_text(recipe.text) == recipe


def test_a_mixture_with_the_crawl_is_refused_without_a_crawl() -> None:
    said = refused({"crawl.enabled": False})
    assert said == 'override: canary.current: the recipe has no source "web": choose from code, packages.'


def test_a_mixture_replaces_the_inherited_one_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "below.toml").write_text('name = "below"\n[canary]\ncurrent = { web = 1.0 }\nsteps = 7\n')
    books = '[[extract.files]]\nname = "books"\nkind = "text"\npath = "/data/*.txt"\n'
    mine = f'extends = "below.toml"\nname = "mine"\n[crawl]\nenabled = false\n{books}[canary]\ncurrent = '
    for current, weights in (("{ books = 1.0 }", {"books": 1.0}), ("{}", {})):
        (tmp_path / "mine.toml").write_text(mine + current)
        canary = Recipe.load(tmp_path / "mine.toml").canary
        assert (canary.current, canary.steps) == (weights, 7)


def test_default_cut_points_need_no_crawl() -> None:
    recipe = files_only(BOOKS)
    assert recipe.perplexity.cut_source == "web"
    assert recipe.override({"perplexity.references": [{**CORPUS, "name": "books"}]}).perplexity.active


def test_a_sample_of_the_crawl_is_refused_without_a_crawl() -> None:
    with pytest.raises(
        RecipeError, match=r'classifiers\.train\.0\.crawl\.sources: the recipe has no source "web".*books'
    ):
        files_only(BOOKS).override({"classifiers.train": [GATE]})


def test_a_priority_of_an_unknown_stage_is_refused_with_the_nearest_one() -> None:
    said = refused({"place.kubernetes": {"queue_priority": {"pretrain": "high"}}})
    assert said == 'override: place.kubernetes.queue_priority: no stage "pretrain". Did you mean "train"?'
    assert DEMO.override({"place.kubernetes": {"queue_priority": {"train": "high", "canary": "low"}}})


def test_perplexity_by_language_without_language_detection_is_refused() -> None:
    reference = {"name": "wiki", "kind": "jsonl", "path": "/data/*.jsonl", "language": "en"}
    changes = {
        "annotate.use": ["prose_score", "pii", "perplexity"],
        "consolidate.filters": ["perplexity"],
        "consolidate.limits": {},
        "perplexity.references": [reference],
    }
    said = refused(changes)
    assert said.startswith(
        "override: annotate.use: perplexity only has models for en, but the language of documents is not measured"
    )
    assert 'add language before perplexity, or give a reference the language "und"' in said
    assert DEMO.override({**changes, "perplexity.references": [{**reference, "language": "und"}]})
    assert DEMO.override({**changes, "annotate.use": ["language", "prose_score", "pii", "perplexity"]})


def test_buckets_are_refused_if_the_model_has_no_cut_points() -> None:
    changes = {
        "annotate.use": [*USE, "perplexity"],
        "annotate.settings.perplexity": {"file": "/models/en.arpa"},
        "consolidate.filters": ["perplexity"],
        "consolidate.limits": {"perplexity": {"drop_buckets": ["tail"]}},
    }
    said = refused(changes)
    assert "consolidate.limits.perplexity.drop_buckets: a model from a file has no cut points" in said
    assert "set annotate.settings.perplexity.cuts" in said
    assert DEMO.override({**changes, "annotate.settings.perplexity": {"file": "/en.arpa", "cuts": [200.0, 500.0]}})


def topics(drop: str, **texts: Any) -> dict[str, Any]:
    return {
        "classifiers.train": [{**TRAIN, "positive": "", "texts": [{"path": "/data/*.jsonl", **texts}]}],
        "annotate.use": [*USE, "topic"],
        "annotate.settings.topic": {"model": "edu"},
        "consolidate.filters": ["topic"],
        "consolidate.limits": {"topic": {"drop": [drop]}},
    }


def test_an_unknown_topic_is_refused_with_the_nearest_one() -> None:
    relabel = {"1": "news", "2": "lyrics"}
    said = refused(topics("lyric", relabel=relabel))
    assert said == (
        'override: consolidate.limits.topic.drop: the model "edu" has no label "lyric". Did you mean "lyrics"?'
    )
    assert DEMO.override(topics("lyrics", relabel=relabel))


def test_any_topic_is_accepted_if_only_files_define_the_labels() -> None:
    assert DEMO.override(topics("lyric", label_field="kind"))


@pytest.mark.parametrize(
    ("lists", "said"),
    [
        ({"files": {"adult": "/lists/adult"}}, 'Did you mean "adult"?'),
        ({"folders": ["/lists"], "categories": ["adult", "games"]}, 'Did you mean "adult"?'),
        ({"banned_words": ["casino"]}, "choose from banned_word"),
        ({}, "there is none at all"),
    ],
)
def test_a_url_category_without_a_list_is_refused(lists: dict[str, Any], said: str) -> None:
    asked = {
        "annotate.use": [*USE, "url_blocklist"],
        "annotate.settings.url_blocklist": lists,
        "consolidate.filters": ["url_blocklist"],
        "consolidate.limits": {"url_blocklist": {"categories": ["adlt"]}},
    }
    found = refused(asked)
    assert 'consolidate.limits.url_blocklist.categories: annotate.settings.url_blocklist has no list of "adlt"' in found
    assert said in found
    assert DEMO.override({**asked, "annotate.settings.url_blocklist": {"folders": ["/lists"]}})


def test_a_relative_path_is_refused_with_its_key() -> None:
    notes = {"name": "notes", "kind": "text"}
    for path in ("/notes/*.txt", "s3://notes/*.txt", "{stdlib}/*.py"):
        assert files_only({**notes, "path": path}).extract.files[0].path == path
    with pytest.raises(RecipeError, match=r'the path "notes/\*\.txt" is not absolute: begin it with / or s3://'):
        files_only({**notes, "path": "notes/*.txt"})

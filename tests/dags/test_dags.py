"""Requirements on every DAG: it parses, has a description, can be triggered with a form, and retries with a delay."""

import json
import re
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from tasks.run.catalogue import MAKERS, STAGES
from tasks.run.recipe import Recipe

CHAIN = ("crawl", "corpus", "tokens", "canary", "pretrain")
DAGS = (*CHAIN, "takedown")
ROOT = Path(__file__).parents[2]
PROMOTING = "[promote]\nenabled = true\n"
STREAMING = '[[extract.streams]]\nname = "news"\ntopic = "articles"\n'
FILES = sorted(path.name for path in (ROOT / "dags").glob("*.py"))


def filled(params, conf):
    params.update(conf)
    return params.validate()


def stages_of(dag):
    return [task for task in dag.tasks if task.task_type != "ReportApproval"]


def test_each_good_recipe_gets_one_dag_per_part_of_the_pipeline(recipes, dag_bag):
    recipes("one")
    recipes("two")
    bag = dag_bag()
    assert bag.import_errors == {}
    assert sorted(bag.dags) == sorted(f"{recipe}.{dag}" for recipe in ("one", "two") for dag in DAGS)


def test_the_recipes_of_the_repository_parse(dag_bag, monkeypatch):
    monkeypatch.delenv("SLUICE_RECIPES", raising=False)
    bag = dag_bag()
    assert bag.import_errors == {}
    some = {f"manuals.{dag}" for dag in ("corpus", "tokens", "finetune", "takedown")}
    some |= {f"multilingual.{dag}" for dag in ("corpus", "tokens", "pretrain", "takedown")}
    assert {f"{recipe}.{dag}" for recipe in ("demo", "smoke", "web") for dag in DAGS} | some == set(bag.dags)
    alerted = {task.task_id for dag in bag.dags.values() for task in dag.tasks if task.on_failure_callback}
    assert alerted == {"train", "finetune"}, "a training that fails for good is an alert"


def test_recipes_for_other_places_differ_from_the_demo_only_in_their_place(dag_bag, monkeypatch):
    # The Airflow home is the checkout, which the paths of pod templates are relative to.
    monkeypatch.chdir(ROOT)
    operators = {}
    for recipe in ("s3", "cluster"):
        monkeypatch.setenv("SLUICE_RECIPES", str(ROOT / "dags" / "recipes" / recipe))
        bag = dag_bag()
        assert bag.import_errors == {}
        assert {f"{recipe}.{dag}" for dag in DAGS} == set(bag.dags)
        operators |= {f"{name}.{task.task_id}": task.task_type for name, dag in bag.dags.items() for task in dag.tasks}
    assert operators["s3.pretrain.train"] == operators["s3.pretrain.evaluate"] == "StageOperator"
    assert operators["cluster.pretrain.train"] == "JobSetOperator"
    assert operators["cluster.pretrain.evaluate"] == operators["cluster.canary.round_1.canary"] == "GpuPodOperator"
    dask = {kind for name, kind in operators.items() if name.startswith("cluster.corpus")}
    assert {"DaskSetupOperator", "DaskTeardownOperator"} <= dask
    demo = Recipe.load(ROOT / "dags" / "recipes" / "demo.toml")
    s3 = Recipe.load(ROOT / "dags" / "recipes" / "s3" / "s3.toml")
    assert s3.model_copy(update={"name": demo.name, "place": demo.place}) == demo


def test_a_bad_recipe_is_an_import_error_that_names_it_and_leaves_the_others_alone(recipes, dag_bag):
    recipes("good")
    recipes("typo", "[dedup]\njacard = 0.7\n")
    recipes("garbled", text="name = ")
    bag = dag_bag()
    assert {dag for dag in bag.dags if dag.startswith("good.")} == {f"good.{dag}" for dag in DAGS}
    assert not [dag for dag in bag.dags if not dag.startswith("good.")]
    [(file, error)] = bag.import_errors.items()
    assert file.endswith("recipe_errors.py")
    assert "typo.toml: unknown key dedup.jacard" in error
    assert 'Did you mean "jaccard"?' in error
    assert "garbled.toml is not TOML" in error


def test_a_recipe_whose_name_differs_from_its_file_is_refused(recipes, dag_bag):
    recipes("other").rename(recipes("other").with_name("mine.toml"))
    bag = dag_bag()
    assert not bag.dags
    assert any('mine.toml: name is "other"' in error for error in bag.import_errors.values())


@pytest.mark.parametrize("part", DAGS)
def test_every_dag_follows_the_policy(part, recipes, dag_bag):
    recipes("tiny")
    dag = dag_bag().dags[f"tiny.{part}"]
    assert {"sluice", "tiny"} <= dag.tags
    assert dag.max_active_runs == 1
    assert not dag.catchup
    for word in ("reads", "writes", "costs"):
        assert f"| {word} |" in dag.doc_md
    for task in stages_of(dag):
        assert task.owner == "sluice"
        assert task.retries >= 2
        assert task.retry_exponential_backoff > 1
        assert task.max_retry_delay


def test_every_pool_that_a_task_names_is_in_the_pools_file(recipes, dag_bag):
    recipes("tiny")
    pools = json.loads((Path(__file__).parents[2] / "dags" / "pools.json").read_text())
    used = {task.pool for dag in dag_bag().dags.values() for task in dag.tasks} - {"default_pool"}
    assert used == set(pools)


def test_the_dags_are_chained_by_assets(recipes, dag_bag):
    recipes("tiny")
    dags = dag_bag().dags
    for maker, kind, reader in (
        ("crawl", "warc", "corpus"),
        ("corpus", "documents", "tokens"),
        ("tokens", "tokens", "canary"),
        ("canary", "mixture", "pretrain"),
    ):
        made = {outlet.uri for task in dags[f"tiny.{maker}"].tasks for outlet in task.outlets}
        waited = {asset.uri for asset in dags[f"tiny.{reader}"].schedule}
        read = {inlet.uri for task in dags[f"tiny.{reader}"].tasks for inlet in task.inlets}
        assert made == waited == read & waited == {f"x-sluice://tiny/{kind}"}


@pytest.mark.parametrize(
    "more", ["", "[promote]\nenabled = true\n", '[[extract.streams]]\nname = "news"\ntopic = "articles"\n']
)
def test_every_task_names_the_assets_that_its_stage_reads_and_completes(more, recipes, dag_bag):
    recipe = Recipe.load(recipes("graph", more))
    completes = Counter()
    for dag in dag_bag().dags.values():
        for task in dag.tasks:
            completes.update(outlet.name for outlet in task.outlets)
            stage = task.partial_kwargs.get("stage") if task.is_mapped else getattr(task, "stage", None)
            if stage is None:
                continue
            makers = [MAKERS[kind] for kind in STAGES[stage].input_kinds()]
            read = {
                f"graph/{one.asset}" for one in makers if one.asset and one.dag != STAGES[stage].dag and recipe.has(one)
            }
            shown = {"promote": {"graph/checkpoint"}, "stream": {"graph/streams"}}.get(stage, set())
            assert {inlet.name for inlet in task.inlets} == read | shown, task.task_id
    assert completes == {f"graph/{kind}": 1 for kind in ("warc", "documents", "tokens", "mixture", "checkpoint")}


def test_the_recipe_sets_the_schedule_of_the_crawl(recipes, dag_bag):
    recipes("nightly", text='schedule = "0 3 * * *"\n' + recipes("nightly").read_text())
    assert dag_bag().dags["nightly.crawl"].schedule == "0 3 * * *"


def test_a_changed_recipe_makes_a_new_version_of_the_affected_dag_only(recipes, dag_bag):
    recipes("tiny")
    before = {name: dag.doc_md for name, dag in dag_bag().dags.items()}
    recipes("tiny", "[train]\nsteps = 7\n")
    after = {name: dag.doc_md for name, dag in dag_bag().dags.items()}
    assert {name for name in before if before[name] != after[name]} == {"tiny.pretrain"}


def test_in_a_task_process_only_the_tasks_own_dag_is_built(recipes, dag_bag, monkeypatch):
    recipes("one")
    recipes("two")
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "two.corpus")
    assert set(dag_bag().dags) == {"two.corpus"}


def test_a_human_approves_the_gate_if_the_recipe_requires_it(recipes, dag_bag):
    recipes("asking", "[place]\nask_human = true\n")
    dag = dag_bag().dags["asking.canary"]
    assert dag.task_dict["gate"].upstream_task_ids == {"decide", "approve"}
    approve = dag.task_dict["approve"]
    assert (approve.upstream_task_ids, approve.response_timeout, approve.defaults) == ({"decide"}, None, None)
    assert approve.rejects


def test_a_mixture_that_nobody_approves_in_time_is_rejected(recipes, dag_bag):
    recipes("late", "[place]\nask_human = true\napprove_within_h = 36\n")
    approve = dag_bag().dags["late.canary"].task_dict["approve"]
    assert (approve.response_timeout, approve.defaults) == (timedelta(hours=36), ["Reject"])


def test_priorities_are_proposed_after_the_gate_if_the_recipe_wants_them(recipes, dag_bag):
    recipes("plain")
    recipes("wishing", "[priorities]\nenabled = true\n")
    dags = dag_bag().dags
    assert dags["wishing.canary"].task_dict["prioritize"].upstream_task_ids == {"gate"}
    assert "prioritize" not in dags["plain.canary"].task_dict


def test_every_round_waits_for_the_one_before_and_a_skipped_one_skips_nothing(recipes, dag_bag):
    recipes("rounds", "rounds = 2\n")
    tasks = dag_bag().dags["rounds.canary"].task_dict
    upstream = {name: tasks[name].upstream_task_ids for name in ("round_1.arms", "round_2.arms", "finalist", "decide")}
    assert upstream == {
        "round_1.arms": set(),
        "round_2.arms": {"round_1.canary"},
        "finalist": {"round_2.canary"},
        "decide": {"confirm"},
    }
    assert {tasks[name].trigger_rule for name in upstream} == {"none_failed"}
    assert "round_3.arms" not in tasks


def test_a_human_approves_a_new_champion_if_the_recipe_requires_it(recipes, dag_bag):
    recipes("asking", "[train]\n[promote]\nenabled = true\n[place]\nask_human = true\n")
    recipes("alone", "[train]\n[promote]\nenabled = true\n")
    asking, alone = (dag_bag().dags[f"{name}.pretrain"].task_dict for name in ("asking", "alone"))
    assert asking["compare"].upstream_task_ids == {"register"}
    assert asking["promote"].upstream_task_ids == {"compare", "approve"}
    assert (alone["promote"].upstream_task_ids, "approve" in alone) == ({"compare"}, False)
    assert "promote" not in dag_bag().dags["alone.canary"].task_dict


@pytest.mark.parametrize(
    ("conf", "accepted"),
    [
        ({"version": "2026.11.21"}, True),
        ({"version": None, "overrides": {"crawl.max_pages": 5}}, True),
        ({"crawl.max_pages": 5}, True),
        ({"source_version": "2026.11.21-0300"}, True),
        # Airflow's form would say only "Bad Request"; the first task refuses these, and the note of the run says why.
        ({"source_version": "tiny/documents@dev"}, True),
        ({"version": "../escape"}, True),
        ({"version": ""}, True),
        ({"crawl.max_pages": 0}, False),
        ({"crawl.max_pages": "many"}, False),
        ({"overrides": {"name": "another"}}, True),
        ({"overrides": {"place.store": "s3://elsewhere"}}, True),
        ({"overrides": "crawl.max_pages=5"}, False),
    ],
)
def test_the_form_refuses_values_of_another_type_and_leaves_the_others_to_the_run(conf, accepted, recipes, dag_bag):
    from airflow.sdk.exceptions import ParamValidationError

    recipes("tiny")
    params = dag_bag().dags["tiny.crawl"].params
    if accepted:
        filled(params, conf)
    else:
        with pytest.raises(ParamValidationError):
            filled(params, conf)


def test_the_form_explains_source_version_and_its_syntax(recipes, dag_bag):
    recipes("tiny")
    form = dag_bag().dags["tiny.corpus"].params
    said = form.get_param("source_version").description
    assert "are adopted where settings and inputs are the same" in said
    example = re.search(r"Enter the version alone, such as (\S+),", said)[1]
    assert filled(form, {"source_version": example})["source_version"] == example


def test_dag_files_are_short():
    for name in FILES:
        lines = (Path(__file__).parents[2] / "dags" / name).read_text().splitlines()
        assert len(lines) <= 60, name
        assert re.match(r'"""[A-Z]', lines[0]), name


BOOKS = '[[extract.files]]\nname = "books"\nkind = "text"\npath = "/data/*.txt"\n'
SEEDS = '[crawl]\nseeds = ["http://site.localhost:18799/"]\nallow_loopback = true\n'
OFF = "crawl = { enabled = false }\n"


def test_the_messages_of_a_stream_are_read_before_they_are_extracted(recipes, dag_bag):
    stream = '[[extract.streams]]\nname = "news"\ntopic = "articles"\n'
    recipes("mine", text=f'name = "mine"\nschedule = "*/30 * * * *"\n{stream}')
    corpus = dag_bag().dags["mine.corpus"]
    assert corpus.schedule == "*/30 * * * *"
    assert corpus.task_dict["extract"].upstream_task_ids == {"stream"}


def test_a_watched_recipe_declares_the_asset_of_its_files_and_the_watcher(recipes, dag_bag):
    recipes("mine", text=f'name = "mine"\n{BOOKS}[pack]\nseq_len = 64\n[place]\nwatch_s = 30\n')
    dags = dag_bag().dags
    (files,) = dags["mine.corpus"].schedule
    (watcher,) = files.watchers
    assert (files.uri, watcher.name) == ("x-sluice://mine/files", "mine/files")
    assert watcher.trigger.serialize() == ("operators.watch.FilesTrigger", {"recipe": "mine", "every_s": 30.0})
    assert [asset.uri for asset in dags["mine.tokens"].schedule] == ["x-sluice://mine/documents"]


@pytest.mark.parametrize(
    ("sections", "dags"),
    [
        (BOOKS, ["corpus"]),
        (SEEDS, ["crawl"]),
        (SEEDS + "[consolidate]\n", ["crawl", "corpus"]),
        (BOOKS + "[pack]\nseq_len = 64\n", ["corpus", "tokens"]),
        (BOOKS + "[canary]\nsteps = 3\n", ["corpus", "tokens", "canary"]),
        (BOOKS + "[train]\nmixture = { books = 1.0 }\n", ["corpus", "tokens", "pretrain"]),
        (OFF + BOOKS + "[canary]\n[train]\n", ["corpus", "tokens", "canary", "pretrain"]),
        (SEEDS + "[canary]\n[train]\n", CHAIN),
        ('makes = ["warc", "documents"]\n' + SEEDS + "[canary]\n[train]\n", ["crawl", "corpus"]),
    ],
)
def test_the_sections_of_a_recipe_determine_its_dags(sections, dags, recipes, dag_bag):
    recipes("mine", text='name = "mine"\nschedule = "0 3 * * *"\n' + sections)
    bag = dag_bag()
    assert bag.import_errors == {}
    assert set(bag.dags) == {f"mine.{dag}" for dag in (*dags, "takedown")}
    # The first DAG has a time schedule, each other one follows the asset of its predecessor.
    kinds = {"crawl": "warc", "corpus": "documents", "tokens": "tokens", "canary": "mixture"}
    assert bag.dags[f"mine.{dags[0]}"].schedule == "0 3 * * *"
    for before, after in pairwise(dags):
        assert {one.uri for one in bag.dags[f"mine.{after}"].schedule} == {f"x-sluice://mine/{kinds[before]}"}


def test_a_recipe_that_extends_another_selects_its_dags(recipes, dag_bag):
    recipes("whole")
    recipes("less", text='extends = "whole.toml"\nname = "less"\nmakes = ["warc", "documents", "tokens"]\n')
    bag = dag_bag()
    assert bag.import_errors == {}
    assert {dag for dag in bag.dags if dag.startswith("less.")} == {
        "less.crawl",
        "less.corpus",
        "less.tokens",
        "less.takedown",
    }


def test_the_import_error_lists_all_errors_of_a_recipe(recipes, dag_bag):
    recipes("bad", '[dedup]\njacard = 0.7\n[consolidate]\ntrusted = ["wib"]\n[train]\nsteps = "many"\n')
    [error] = dag_bag().import_errors.values()
    for said in (
        'bad.toml: unknown key dedup.jacard. Did you mean "jaccard"?',
        "bad.toml: train.steps: Input should be a valid integer (got 'many'). Write a whole number, without quotes.",
        'bad.toml: consolidate.trusted: the recipe has no source "wib". Did you mean "web"?',
    ):
        assert said in error


def test_models_of_a_recipe_are_trained_before_documents_are_measured(recipes, dag_bag):
    learn = '[[classifiers.train]]\nname = "quality"\npositive = "good"\ntexts = [{ path = "/data/*.jsonl" }]'
    recipes("learns", learn)
    corpus = dag_bag().dags["learns.corpus"]
    assert corpus.task_dict["train_classifiers"].upstream_task_ids == {"extract"}
    assert corpus.task_dict["annotate"].upstream_task_ids == {"train_classifiers"}
    assert "train_perplexity" not in corpus.task_dict


def test_all_tasks_of_a_mapped_stage_may_run_at_one_time(recipes, dag_bag):
    recipes("few")
    wide = "[crawl]\npartitions = 18\n" + SEEDS.partition("\n")[2] + "[canary]\narms = 30\nseeds = [0, 1]\n"
    recipes("wide", text=f'name = "wide"\n{wide}')
    found = {name: dag.max_active_tasks for name, dag in dag_bag().dags.items()}
    assert (found["few.crawl"], found["few.canary"], found["wide.corpus"]) == (16, 2 * (2 + 1 + 2 + 4), 16)
    assert (found["wide.crawl"], found["wide.canary"]) == (18, 2 * (2 + 1 + 2 + 30))

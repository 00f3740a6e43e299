"""Version and overrides of a DAG run: from form, event, calendar, recipe, in this order."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from airflow.sdk import Asset
from airflow.sdk.api.datamodels._generated import AssetEventDagRunReference, AssetReferenceAssetEventDagRun
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time.comms import AssetEventDagRunReferenceResult
from airflow.sdk.execution_time.context import TriggeringAssetEventsAccessor

from operators import dask_cluster
from operators.recipes import asset
from operators.runs import RunSettings, fails_at_once, run_of
from tasks.core.errors import InputError, RecipeError, TransientError
from tasks.run.recipe import Recipe

NOON = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)


@pytest.fixture
def recipe(recipes):
    return Recipe.load(recipes("tiny"))


def events(*extras, of=None):
    """The real accessor of a task's context, newest event last."""
    at = of or asset("tiny", "warc")
    return TriggeringAssetEventsAccessor.build(
        AssetEventDagRunReferenceResult.from_asset_event_dag_run_reference(
            AssetEventDagRunReference(
                asset=AssetReferenceAssetEventDagRun(name=at.name, uri=at.uri, extra={}),
                extra=extra,
                source_task_id="publish",
                source_dag_id="tiny.crawl",
                source_run_id="run",
                source_map_index=-1,
                source_aliases=[],
                timestamp=NOON + timedelta(minutes=minute),
                partition_key=None,
            )
        )
        for minute, extra in enumerate(extras)
    )


def context(run_type="manual", params=None, triggering=None, date=None):
    return {
        "params": {"version": None, "source_version": None, "overrides": {}, **(params or {})},
        "triggering_asset_events": triggering if triggering is not None else events(),
        "logical_date": date,
        "dag_run": SimpleNamespace(run_type=run_type, run_after=date),
    }


def test_an_undated_run_uses_the_version_of_the_recipe(recipe):
    assert run_of(recipe, context()) == RunSettings("dev")


def test_a_scheduled_run_and_a_backfill_are_named_by_their_date(recipe):
    assert run_of(recipe, context("scheduled", date=NOON)).version == "2026.11.21-0300"
    assert run_of(recipe, context("backfill", date=NOON)).version == "2026.11.21-0300"


def test_a_manual_run_uses_the_version_of_the_recipe_even_with_a_date(recipe):
    assert run_of(recipe, context("manual", date=NOON)).version == "dev"


def test_an_event_passes_on_version_and_overrides(recipe):
    triggering = events({"version": "v7", "overrides": {"crawl.max_pages": 9}, "address": "tiny/warc@v7"})
    run = run_of(recipe, context("asset_triggered", triggering=triggering))
    assert run == RunSettings("v7", None, {"crawl.max_pages": 9})
    assert run.recipe(recipe).crawl.max_pages == 9


def test_an_event_passes_on_the_source_version(recipe):
    first = RunSettings("v7", "v6", {"dedup.jaccard": 0.7})
    assert run_of(recipe, context("asset_triggered", triggering=events(first.event_fields))) == first
    typed = run_of(recipe, context(params={"source_version": "v1"}, triggering=events(first.event_fields)))
    assert typed == RunSettings("v7", "v1", {"dedup.jaccard": 0.7})


def test_the_newest_event_counts(recipe):
    triggering = events({"version": "old"}, {"version": "new"})
    assert run_of(recipe, context("asset_triggered", triggering=triggering)).version == "new"


def test_an_event_without_a_version_means_the_version_of_the_recipe(recipe):
    # As created through the REST API, or by the button on the asset's page.
    assert run_of(recipe, context("asset_triggered", triggering=events({}))) == RunSettings("dev")


def test_manual_parameters_override_those_of_an_event(recipe):
    triggering = events({"version": "v7", "overrides": {"crawl.max_pages": 9, "train.steps": 3}})
    params = {"version": "mine", "crawl.max_pages": 11, "overrides": {"dedup.jaccard": 0.7}}
    run = run_of(recipe, context("asset_triggered", params=params, triggering=triggering))
    assert run == RunSettings("mine", "v7", {"crawl.max_pages": 11, "train.steps": 3, "dedup.jaccard": 0.7})


@pytest.mark.parametrize("version", ["../../etc", "a/b", "", "-x", "a b", 7, ["v"], "v" * 101])
def test_an_event_cannot_name_a_folder_outside_the_artifact(version, recipe):
    if version == "":  # says nothing
        assert run_of(recipe, context(triggering=events({"version": version}))).version == "dev"
        return
    with pytest.raises(RecipeError, match="is not a version"):
        run_of(recipe, context(triggering=events({"version": version})))


def test_an_unknown_override_suggests_the_nearest_field(recipe):
    run = run_of(recipe, context(params={"overrides": {"crawl.max_page": 9}}))
    with pytest.raises(RecipeError, match=r"unknown key crawl\.max_page.*max_pages"):
        run.recipe(recipe)


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ({"vresion": "v7"}, r'unknown key "vresion".*\. Did you mean "version"\?'),
        ({"override": {"dedup.jaccard": 0.7}}, r'unknown key "override".*\. Did you mean "overrides"\?'),
        ({"pages": None}, r'unknown key "pages" \(.*section\.field\)\. Choose from overrides, .*, version'),
        ({"source_version": "../v7"}, "'../v7' is not a version"),
        ({"overrides": "dedup.jaccard"}, "the conf of the run has overrides = 'dedup.jaccard'"),
    ],
)
def test_a_conf_with_an_unknown_key_or_value_is_refused(conf, said, recipe):
    with pytest.raises(RecipeError, match=said):
        run_of(recipe, context(params=conf))


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ({"crawl.max_page": 9}, r"unknown key crawl\.max_page.*max_pages"),
        ({"overrides": {"dedpu.jaccard": 0.7}}, r'unknown key dedpu\. Did you mean "dedup"'),
        ({"train.steps": "many"}, r"train\.steps: Input should be a valid integer"),
    ],
)
def test_the_recipe_of_a_run_refuses_unknown_fields_and_values(conf, said, recipe):
    with pytest.raises(RecipeError, match=said):
        run_of(recipe, context(params=conf)).recipe(recipe)


def test_the_task_that_creates_the_dask_cluster_refuses_them_first(recipe, monkeypatch):
    monkeypatch.setattr(dask_cluster, "find_recipe", lambda name: recipe)
    monkeypatch.setattr(dask_cluster, "place_of", lambda recipe: pytest.fail("before the conf is read"))
    setup = dask_cluster.DaskSetupOperator(task_id="dask_up", recipe="tiny")
    with pytest.raises(AirflowFailException, match="unknown key"):
        setup.execute(context(params={"vresion": "v7"}))


@pytest.mark.parametrize(
    "path",
    [
        *("place.store", "place.kubernetes.image", "name", "version"),
        *("crawl.hosts_file", "crawl.allow_hosts", "crawl.allow_hosts.wiki", "crawl.signature.key"),
    ],
)
def test_an_event_cannot_change_the_place(path, recipe):
    run = run_of(recipe, context(triggering=events({"version": "v1", "overrides": {path: "elsewhere"}})))
    with pytest.raises(RecipeError, match=f'"{path}" cannot be overridden'):
        run.recipe(recipe)


def test_a_permanent_error_fails_without_retry_in_one_line():
    with pytest.raises(AirflowFailException, match=r"^no warc here\. Run the crawl\.$") as caught, fails_at_once():
        raise InputError("no warc\n here", "run the crawl")
    assert caught.value.__cause__ is None


def test_a_retryable_error_is_retried_by_airflow():
    with pytest.raises(TransientError), fails_at_once():
        raise TransientError("the worker was lost")


def test_an_asset_needs_no_provider_and_has_its_kinds():
    assert asset("tiny", "warc") == Asset(name="tiny/warc", uri="x-sluice://tiny/warc", group="sluice")
    with pytest.raises(ValueError, match="no asset kind"):
        asset("tiny", "warcs")

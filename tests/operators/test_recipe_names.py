"""A recipe's name in objects outside the store: Kubernetes, Airflow and MLflow accept all that a recipe may have."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from mlflow.utils.validation import _validate_experiment_name, _validate_model_name

from operators.dask.manifests import autoscaler_manifest, cluster_manifest, name_of
from operators.dask.manifests import place_of as dask_place_of
from operators.jobsets.manifest import jobset
from operators.jobsets.trainjob import training_runtime, trainjob
from operators.pods.owner import Owner
from operators.pods.spec import manifest, place_of, stage_pod
from tasks.run.recipe import find_recipe

LABEL = re.compile(r"[a-z0-9A-Z]([-_.a-z0-9A-Z]{0,61}[a-z0-9A-Z])?")
NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
"""A name that is also that of a service or of a host."""

LONGEST = {"Pod": 40, "JobSet": 40, "TrainJob": 40, "TrainingRuntime": 63, "DaskCluster": 53, "DaskAutoscaler": 53}
"""Of a gang, because host names add 23 characters; of a Dask cluster, because its service adds "-scheduler"."""


def objects(recipe: Any, run_id: str) -> Iterator[dict[str, Any]]:
    """Yields what the tasks of a recipe create in a cluster."""
    place, nproc = place_of(recipe), recipe.place.train.nproc
    for stage, index in (("train", -1), ("canary", 1023), ("evaluate_tuned", -1)):
        pod = stage_pod(recipe, stage)
        name = Owner(f"{recipe.name}.pretrain", run_id, stage, index).name(f"{recipe.name}-{stage}", 12)
        yield {**manifest(pod), "metadata": {**manifest(pod)["metadata"], "name": name}}
        yield jobset(pod, name, place, nproc)
        yield trainjob(pod, name, place, nproc)
    yield training_runtime(recipe)
    pods = dask_place_of(recipe)
    assert pods is not None
    name = name_of(f"{recipe.name}.corpus", run_id)
    yield cluster_manifest(recipe, pods, name, f"{recipe.name}.corpus {run_id}")
    yield autoscaler_manifest(pods, name)  # type: ignore[misc]


def labels(found: Any) -> Iterator[str]:
    """Yields the values of all labels and label selectors in an object."""
    if isinstance(found, dict):
        for key, value in found.items():
            if key in ("labels", "matchLabels"):
                yield from map(str, value.values())
            yield from labels(value)
    elif isinstance(found, list):
        for value in found:
            yield from labels(value)


@pytest.mark.parametrize("name", ["a", "a" * 63, "a_b-" * 15 + "a_c", "x" + "_" * 61 + "9", "n-" + "_" * 60 + "z"])
def test_every_object_of_a_recipe_has_names_and_labels_that_are_valid(name: str) -> None:
    image = "registry.example.org/sluice:1"
    place = {
        "place.kubernetes": {"image": image, "nodes": 2, "queue": "gpus"},
        "place.dask": {"kubernetes": {"image": image, "min_workers": 1, "max_workers": 2}},
    }
    recipe = find_recipe("demo").override({"name": name, **place})
    for found in objects(recipe, "manual__" + "2026-11-28T00:00:00+00:00" * 8):
        assert NAME.fullmatch(found["metadata"]["name"]), found["kind"]
        assert len(found["metadata"]["name"]) <= LONGEST[found["kind"]], found["kind"]
        for value in labels(found):
            assert LABEL.fullmatch(value), (found["kind"], value)
    for dag in recipe.dags:
        assert len(f"{name}.{dag}") <= 250
    _validate_experiment_name(name)
    _validate_model_name(f"{name}-tuned")

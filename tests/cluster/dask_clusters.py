"""A bed with the Dask operator, recipes with Dask clusters in it, and captures as input."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.artifact import ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.demo.home import CHECKOUT
from tasks.formats.warc.archive import MANIFEST, MANIFEST_SCHEMA
from tasks.run.recipe import Recipe
from tests.cluster.bed import Bed, Object
from tests.cluster.bed.dask import DaskAutoscalers, DaskClusters
from tests.cluster.bed.resources import SECRETS
from tests.cluster.settings import Settings
from tests.tasks.stages.extract.conftest import page, record

MODELS = Path(os.environ.get("SLUICE_MODELS", CHECKOUT / ".sluice" / "models"))
SECRET = "planted-secret-7f3a"

PLACE = """
[place.dask.kubernetes]
namespace = "training"
image = "sluice/worker:test"
service_type = "LoadBalancer"
memory = "1Gi"
cpu = "100m"
scheduler_cpu = "100m"
min_workers = {low}
max_workers = {high}
idle_s = {idle_s}
secrets = ["store"]
"""

FILES = """
[[extract.files]]
name = "code"
kind = "text"
path = "{stdlib}/json/*.py"
"""

WORDS = "the ship went to sea with a crew of nine and none of them had seen the ice before that winter so they sang"


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    """A cluster with the Dask operator."""
    if Settings().kube_config:
        pytest.skip("what the Dask operator is made to do here it does on the loopback bed only (unset KUBECONFIG)")
    made = Bed(tmp_path / "bed")
    (tmp_path / "bed" / "spill").mkdir(parents=True)
    made.store.create(SECRETS, {"metadata": {"name": "store", "namespace": "training"}, "stringData": {"KEY": SECRET}})
    extra = {"kube_config_path": str(made.kube_config()), "namespace": "training"}
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    yield made
    made.close()


@pytest.fixture
def dask(bed: Bed) -> DaskClusters:
    """The Dask operator of the cluster."""
    operator = DaskClusters(bed)
    bed.install(operator)
    bed.install(DaskAutoscalers(bed))
    return operator


def place(low: int = 2, high: int = 2, idle_s: int = 600, more: str = "") -> str:
    return PLACE.format(low=low, high=high, idle_s=idle_s) + more


def make(recipe: Recipe, run: str = "manual__1") -> Any:
    """Creates the cluster of a run like the setup task."""
    from operators.dask_cluster import ensure_cluster

    class Instance:
        dag_id = f"{recipe.name}.corpus"

    return ensure_cluster(recipe, {"ti": Instance, "run_id": run})


def remove(recipe: Recipe, name: str) -> str:
    """Removes a cluster like the teardown task; returns the name of its `Removal`."""
    from operators.dask.api import delete_cluster
    from operators.dask.manifests import place_of

    pods = place_of(recipe)
    assert pods is not None
    return delete_cluster(pods, name).name


def captures(store: Path, recipe: str, pages: int = 12, lost: int = 0) -> None:
    """Writes `warc` of a recipe: pages in three files, each of which lacks `lost` of its recorded captures."""
    output = Output(Store(str(store)), ArtifactId(f"{recipe}/warc", "dev"), "0" * 64)
    words = WORDS.split()
    rows = []
    with output.part("warc", conserved=False) as part:
        for number in range(3):
            name, records = f"{number:05d}.warc.gz", []
            for at in range(number, pages, 3):
                text = " ".join(words[(at * 7 + k * (at % 5 + 1)) % len(words)] for k in range(90)) + ". "
                ident = f"00000000-0000-4000-8000-{at:012d}"
                records.append(record(f"http://a.example/{at}", page(text * 2), ident=ident))
            with part.file(name) as file:
                file.write(b"".join(records))
            size = sum(map(len, records))
            rows.append({"segment": f"{recipe}/warc@dev", "path": f"{recipe}/warc/dev/{name}", "sha256": "0" * 64})
            rows[-1] |= {"bytes": size, "records": len(records) + lost}
        with part.file(MANIFEST) as file:
            pq.write_table(pa.Table.from_pylist(rows, MANIFEST_SCHEMA), file)
    commit(output, "publish", 1, Config(), [], Report())


def states(run: Any) -> dict[str, str]:
    return {ti.task_id: str(ti.state) for ti in run.get_task_instances()}


def kill(bed: Bed, pod: Object) -> None:
    """Kills the container of a pod, like a fault of its node or a lack of memory."""
    run = bed.kubelet.run_of(pod)
    assert run is not None
    run.kill_container("Error")

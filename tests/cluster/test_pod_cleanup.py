"""Pods of tasks that have ended are removed by the command of the chart's clean-up job, an hour after they ended."""

from datetime import UTC, datetime, timedelta

import pytest
import yaml
from kubernetes import client, config

from tasks.demo.home import CHECKOUT
from tests.cluster.bed import Bed
from tests.cluster.bed.resources import PODS
from tests.cluster.dask_clusters import bed
from tests.waiting import until

pytestmark = pytest.mark.real_time

__all__ = ["bed"]

OF_AIRFLOW = {"dag_id": "web.crawl", "task_id": "fetch", "try_number": "1", "airflow_version": "3.3.2"}


def task_pod(bed: Bed, name: str, code: str, labels: dict[str, str] = OF_AIRFLOW) -> None:
    container = {"name": "base", "image": "sluice/airflow:test", "command": ["python", "-c", code]}
    spec = {"restartPolicy": "Never", "containers": [container]}
    about = {"name": name, "namespace": "training", "labels": labels}
    made = client.CoreV1Api(config.new_client_from_config(str(bed.kube_config())))
    made.create_namespaced_pod("training", {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec})


def phase(bed: Bed, name: str) -> str:
    return (bed.store.find(PODS, "training", name).get("status") or {}).get("phase", "")


def ended_ago(bed: Bed, name: str, minutes: int) -> None:
    """Waits until a pod has ended, and moves the times of its end back."""
    until(lambda: phase(bed, name) == "Failed")
    at = f"{datetime.now(UTC) - timedelta(minutes=minutes):%Y-%m-%dT%H:%M:%SZ}"

    def move(pod) -> None:
        for condition in pod["status"]["conditions"]:
            condition["lastTransitionTime"] = at
        for one in pod["status"]["containerStatuses"]:
            one["state"]["terminated"]["finishedAt"] = at

    bed.store.change(PODS, "training", name, move)


@pytest.mark.smoke
def test_only_failed_task_pods_are_deleted_an_hour_after_they_end(bed: Bed, monkeypatch) -> None:
    from airflow.cli.cli_parser import get_parser

    for name in ("old", "new"):
        task_pod(bed, name, "raise SystemExit(1)")
    task_pod(bed, "runs", "import time; time.sleep(600)")
    task_pod(bed, "stranger", "raise SystemExit(1)", {"app": "shop"})
    for name, minutes in (("old", 61), ("new", 59), ("stranger", 1000)):
        ended_ago(bed, name, minutes)
    until(lambda: phase(bed, "runs") == "Running")

    values = yaml.safe_load((CHECKOUT / "k8s/helm/airflow.yaml").read_text())
    _, *arguments = [one.replace("{{ .Release.Namespace }}", "training") for one in values["cleanup"]["args"]]
    monkeypatch.setenv("AIRFLOW__KUBERNETES_EXECUTOR__IN_CLUSTER", "False")
    monkeypatch.setenv("AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE", str(bed.kube_config()))
    read = get_parser().parse_args(arguments)
    read.func(read)
    until(lambda: {one["metadata"]["name"] for one in bed.store.select(PODS)} == {"new", "runs", "stranger"})

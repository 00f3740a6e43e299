"""A stage in an undisturbed pod: its result, and the effect of each kind of failure on the task."""

import base64
import json
import re
import time

import pytest

from tests.cluster.bed.nodes import node
from tests.cluster.bed.resources import NODES, PODS
from tests.cluster.runs import first, meanwhile

pytestmark = pytest.mark.real_time


@pytest.mark.smoke
def test_a_stage_runs_in_a_pod_and_its_artifact_is_the_result(run, cluster) -> None:
    ended = run("tokenizer")
    assert ended.state == "success", ended.said
    made = ended.artifact("tokenizer")
    assert ended.result["address"] == "test/tokenizer@dev"
    assert ended.result["content"] == made.record.content
    cluster.until(lambda: not cluster.pods(), 30)
    [pod] = cluster.history.lives()
    assert pod.exit_code == 0


def test_the_pod_log_is_copied_to_the_task_log_line_by_line(run, cluster) -> None:
    ended = run("tokenizer", cmds=first("[print('line', n) or time.sleep(0.05) for n in range(20)]"))
    assert ended.state == "success", ended.said
    for number in range(20):
        assert len(re.findall(rf"\bline {number}\b", ended.said)) == 1, number


@pytest.mark.smoke
def test_a_failing_pod_is_retried_and_then_the_task_fails_with_its_last_lines(run, cluster) -> None:
    ended = run("tokenizer", retries=1, cmds=first("print('the reason is here'); sys.exit(3)"))
    assert ended.state == "failed"
    assert ended.task.try_number == 2
    assert len(cluster.history.lives()) == 2
    assert cluster.history.at_once() == 1
    assert "ended with exit code 3" in ended.said
    assert "the reason is here" in ended.said


def test_a_permanent_error_fails_at_once_with_its_cause(run, cluster) -> None:
    ended = run("decide")
    assert ended.state == "failed"
    assert ended.task.try_number == 1
    assert len(cluster.history.lives()) == 1
    assert "needs test/finalist@dev" in ended.said


def test_an_oom_killed_pod_is_reported_with_its_limit(run, cluster) -> None:
    greedy = first("held = b'x' * (600 << 20); time.sleep(30)")
    ended = run("tokenizer", retries=0, memory="256Mi", cmds=greedy)
    assert ended.state == "failed"
    assert "ran out of memory (OOMKilled, limit 256Mi)" in ended.said
    assert "memory" in ended.said


@pytest.mark.smoke
def test_a_missing_image_fails_at_once(run, cluster) -> None:
    ended = run("tokenizer", image="registry.invalid/nothing:1")
    assert ended.state == "failed"
    assert "registry.invalid/nothing:1" in ended.said
    assert cluster.history.at_once() == 0


def test_a_missing_command_fails_at_once(run, cluster) -> None:
    ended = run("tokenizer", cmds=["no-such-program"])
    assert ended.state == "failed"
    assert ended.task.try_number == 1
    assert "no-such-program" in ended.said


def test_a_missing_secret_fails_at_once_and_is_named(run, cluster) -> None:
    ended = run("tokenizer", secrets=["no-such-secret"])
    assert ended.state == "failed"
    assert ended.task.try_number == 1
    assert 'secret "no-such-secret" not found' in ended.said


@pytest.mark.smoke
def test_a_planted_secret_reaches_the_pod_and_nothing_else(run, cluster) -> None:
    planted = "s3cr3t-" + "planted" * 3
    body = {"metadata": {"name": "planted"}, "data": {"PLANTED": base64.b64encode(planted.encode()).decode()}}
    cluster.core.create_namespaced_secret(cluster.namespace, body)
    ended = run("tokenizer", secrets=["planted"], cmds=first("print('length', len(os.environ['PLANTED']))"))
    assert ended.state == "success", ended.said
    assert f"length {len(planted)}" in ended.said
    [pod] = cluster.history.lives()
    shown = [json.dumps(pod.raw), ended.said, json.dumps(ended.result)]
    assert not [text for text in shown if planted in text or base64.b64encode(planted.encode()).decode() in text]
    for path in ended.store.rglob("*"):
        assert not path.is_file() or planted.encode() not in path.read_bytes(), path


def test_a_registry_outage_costs_neither_a_try_nor_a_pod(run, cluster) -> None:
    bed = cluster.only_here("a registry that answers 503")
    bed.registry_down = True

    def mend() -> None:
        cluster.pod("Pending")
        time.sleep(4)
        bed.registry_down = False

    with meanwhile(mend):
        ended = run("tokenizer")
    assert ended.state == "success", ended.said
    assert "503 Service Unavailable" in ended.said
    assert ended.task.try_number == 1
    assert len(cluster.history.lives()) == 1


def test_a_pool_scaled_to_zero_is_waited_for(run, cluster) -> None:
    bed = cluster.only_here("a node that comes after a while")

    def grow() -> None:
        cluster.pod("Pending")
        time.sleep(5)
        bed.store.create(NODES, node("node-c", {"pool": "zero"}, gpus="8"))

    with meanwhile(grow):
        ended = run("tokenizer", node_selector={"pool": "zero"}, gpus=8)
    assert ended.state == "success", ended.said
    assert "if no autoscaler adds a node within 900 s" in ended.said
    assert ended.task.try_number == 1


def test_a_pool_that_the_autoscaler_cannot_grow_is_reported_at_once(run, cluster) -> None:
    bed = cluster.only_here("a cluster autoscaler")

    def refuse() -> None:
        pod = bed.store.get(PODS, cluster.namespace, cluster.pod("Pending").metadata.name)
        said = "pod didn't trigger scale-up: 2 node(s) didn't match Pod's node affinity/selector"
        bed.kubelet.event(pod, "NotTriggerScaleUp", said, source="cluster-autoscaler")

    with meanwhile(refuse):
        ended = run("tokenizer", node_selector={"pool": "no-such-pool"})
    assert ended.state == "failed"
    assert "no node of this cluster can take the pod" in ended.said


def test_a_missing_node_pool_is_reported_with_a_remedy(run, cluster) -> None:
    ended = run("tokenizer", node_selector={"pool": "no-such-pool"}, scale_up_s=3)
    assert ended.state == "failed"
    assert ended.task.try_number == 1
    assert "no node of this cluster can take the pod" in ended.said
    assert "node_selector" in ended.said
    cluster.until(lambda: not cluster.pods(), 30)


def test_more_gpus_than_any_node_has_are_reported_with_a_remedy(run, cluster) -> None:
    ended = run("tokenizer", gpus=1000, scale_up_s=3)
    assert ended.state == "failed"
    assert "requests 1000 nvidia.com/gpu" in ended.said
    assert "request less per pod" in ended.said.lower()


def test_an_exhausted_quota_is_reported_with_a_remedy(run, cluster) -> None:
    quota = {"metadata": {"name": "none-left"}, "spec": {"hard": {"requests.cpu": "0"}}}
    cluster.core.create_namespaced_resource_quota(cluster.namespace, quota)
    try:
        cluster.until(
            lambda: cluster.core.read_namespaced_resource_quota("none-left", cluster.namespace).status.hard, 20
        )
        ended = run("tokenizer")
    finally:
        cluster.core.delete_namespaced_resource_quota("none-left", cluster.namespace)
    assert ended.state == "failed"
    assert ended.task.try_number == 1
    assert "exceeded quota: none-left" in ended.said
    assert "raise the quota of the namespace" in ended.said


def test_a_missing_namespace_is_reported_with_a_remedy(run, cluster) -> None:
    ended = run("tokenizer", namespace="no-such-namespace")
    assert ended.state == "failed"
    assert ended.task.try_number == 1
    assert 'namespaces "no-such-namespace" not found' in ended.said
    assert "[place.kubernetes] namespace" in ended.said


@pytest.mark.smoke
def test_missing_rights_are_reported_with_a_remedy(run, cluster, monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", cluster.connection(cluster.stranger()))
    ended = run("tokenizer")
    assert ended.state == "failed"
    assert ended.task.try_number == 1
    assert "cannot list resource" in ended.said
    assert "rights" in ended.said or "role" in ended.said.lower()


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ({"priority_class": "no-such-class"}, "no PriorityClass with name no-such-class"),
        ({"runtime_class": "no-such-runtime"}, "no-such-runtime"),
        ({"service_account": "no-such-account"}, "no-such-account"),
    ],
)
def test_missing_objects_that_a_pod_refers_to_are_named(run, cluster, place, said) -> None:
    ended = run("tokenizer", **place)
    assert ended.state == "failed"
    assert ended.task.try_number == 1
    assert said in ended.said

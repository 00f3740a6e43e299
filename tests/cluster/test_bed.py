"""The loopback bed, through the Python client: responses that operators rely on."""

import json
import time
import urllib.request
from collections.abc import Iterator

import pytest
from kubernetes import client, config, watch
from kubernetes.client import ApiException

from tests.cluster.bed import Bed

SAVES = "import signal, sys, time; signal.signal(15, lambda *_: (print('saved', flush=True), sys.exit(143))); "
SAVES += "print('ready', flush=True); time.sleep(60)"


@pytest.fixture
def bed(tmp_path) -> Iterator[Bed]:
    one = Bed(tmp_path)
    yield one
    one.close()


@pytest.fixture
def core(bed) -> client.CoreV1Api:
    return client.CoreV1Api(config.new_client_from_config(str(bed.kube_config())))


def start(core, name: str, code: str, grace_s: int = 30, **container) -> None:
    base = {"name": "base", "image": "trainer:1", "command": ["python", "-u", "-c", code], **container}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": grace_s, "containers": [base]}
    core.create_namespaced_pod("training", {"metadata": {"name": name}, "spec": spec})


def ended(core, name: str):
    """Waits for the end of a pod and returns the terminated state of its container."""
    return until(lambda: core.read_namespaced_pod(name, "training").status.container_statuses[0].state.terminated)


def until(true):
    deadline = time.monotonic() + 30
    while True:
        try:
            if value := true():
                return value
        except (TypeError, ApiException):
            pass
        assert time.monotonic() < deadline
        time.sleep(0.05)


def log(core, name: str, **more) -> str:
    return core.read_namespaced_pod_log(name, "training", _preload_content=False, **more).data.decode()


def refusal(function, *arguments) -> tuple[int, str]:
    with pytest.raises(ApiException) as refused:
        function(*arguments)
    return refused.value.status, json.loads(refused.value.body)["message"]


def gone(core, name: str) -> bool:
    try:
        core.read_namespaced_pod(name, "training")
    except ApiException as error:
        return error.status == 404
    return False


@pytest.mark.parametrize(
    ("code", "exit_code", "reason"),
    [
        ("print(1)", 0, "Completed"),
        ("raise SystemExit(3)", 3, "Error"),
        ("import os; os.kill(os.getpid(), 9)", 137, "Error"),
    ],
)
def test_a_container_ends_with_the_exit_code_of_its_process(core, code, exit_code, reason) -> None:
    start(core, "one", code)
    end = ended(core, "one")
    assert (end.exit_code, end.reason) == (exit_code, reason)


def test_pid_1_without_a_handler_ignores_sigterm(core) -> None:
    start(core, "deaf", "import time; print('ready', flush=True); time.sleep(60)", grace_s=2)
    until(lambda: "ready" in log(core, "deaf"))
    began = time.monotonic()
    core.delete_namespaced_pod("deaf", "training")
    until(lambda: gone(core, "deaf"))
    assert time.monotonic() - began > 1.9


@pytest.mark.smoke
def test_with_a_handler_the_process_saves_and_its_exit_code_is_visible_before_deletion(core) -> None:
    start(core, "saving", SAVES)
    until(lambda: "ready" in log(core, "saving"))
    version = core.list_namespaced_pod("training").metadata.resource_version
    core.delete_namespaced_pod("saving", "training")
    last = None
    for event in watch.Watch().stream(
        core.list_namespaced_pod, "training", resource_version=version, timeout_seconds=10
    ):
        last = event["object"]
        if event["type"] == "DELETED":
            break
    assert last.status.phase == "Failed"
    assert last.status.container_statuses[0].state.terminated.exit_code == 143


def test_a_container_over_its_memory_limit_is_oom_killed(core) -> None:
    start(
        core, "greedy", "x = b'x' * (400 << 20); import time; time.sleep(60)", resources={"limits": {"memory": "100Mi"}}
    )
    assert (ended(core, "greedy").exit_code, ended(core, "greedy").reason) == (137, "OOMKilled")


def test_a_terminating_pod_holds_its_gpus(core, bed) -> None:
    gpus = {"limits": {"nvidia.com/gpu": "4"}}
    for name in ("a", "b"):
        start(core, name, "import time; print('ready', flush=True); time.sleep(60)", grace_s=2, resources=gpus)
        until(lambda name=name: "ready" in log(core, name))
    core.delete_namespaced_pod("a", "training")
    start(core, "c", "print(1)", resources=gpus)
    waiting = until(lambda: core.read_namespaced_pod("c", "training").status.conditions)[0]
    assert "2 Insufficient nvidia.com/gpu" in waiting.message
    events = core.list_namespaced_event("training", field_selector="involvedObject.name=c").items
    assert [one.reason for one in events] == ["FailedScheduling"]
    assert ended(core, "c").exit_code == 0


def test_a_log_is_followed_with_timestamps_and_resumed_by_the_second(core, bed) -> None:
    start(core, "says", "import time\nfor n in range(4): print('line', n); time.sleep(0.6)")
    until(lambda: "line 0" in log(core, "says"))
    whole = log(core, "says", follow=True, timestamps=True).splitlines()
    assert [line.split(" ", 1)[1] for line in whole] == ["line 0", "line 1", "line 2", "line 3"]
    # With a resolution of one second, as in the API: the reader must drop repeated lines.
    url = f"{bed.url}/api/v1/namespaces/training/pods/says/log?sinceTime={whole[2].split(' ')[0]}"
    with urllib.request.urlopen(url) as answer:
        again = answer.read().decode()
    second = whole[2][:19]
    assert again.splitlines() == [line.split(" ", 1)[1] for line in whole if line[:19] >= second]
    assert log(core, "says", tail_lines=2).splitlines() == ["line 2", "line 3"]


def test_a_dead_kubelet_does_not_answer(core, bed) -> None:
    start(core, "one", "import time; print('ready', flush=True); time.sleep(1)")
    until(lambda: "ready" in log(core, "one"))
    node = core.read_namespaced_pod("one", "training").spec.node_name
    bed.kill_kubelet(node)
    with pytest.raises(ApiException) as refused:
        log(core, "one")
    body = json.loads(refused.value.body)
    assert refused.value.status == 500
    assert f'Get "https://{node}:10250/containerLogs/training/one/base' in body["message"]
    assert "connect: connection refused" in body["message"]
    time.sleep(1.5)
    assert core.read_namespaced_pod("one", "training").status.phase == "Running"
    bed.start_kubelet(node)
    assert ended(core, "one").exit_code == 0


def test_names_quota_and_resource_versions_are_enforced(core) -> None:
    start(core, "one", "import time; time.sleep(60)")
    body = {"metadata": {"name": "one"}, "spec": {"containers": [{"name": "base", "image": "x"}]}}
    assert refusal(core.create_namespaced_pod, "training", body) == (409, 'pods "one" already exists')
    assert refusal(core.create_namespaced_pod, "nowhere", body) == (404, 'namespaces "nowhere" not found')
    body["metadata"]["name"] = "Not_A_Name"
    assert refusal(core.create_namespaced_pod, "training", body)[0] == 422
    pod = core.read_namespaced_pod("one", "training")
    core.patch_namespaced_pod("one", "training", {"metadata": {"labels": {"a": "b"}}})
    assert refusal(core.replace_namespaced_pod, "one", "training", pod)[0] == 409


def test_a_watch_resumes_at_its_version_and_ends_if_that_is_too_old(core, bed) -> None:
    version = core.list_namespaced_pod("training").metadata.resource_version
    start(core, "one", "print(1)")
    seen = watch.Watch().stream(core.list_namespaced_pod, "training", resource_version=version, timeout_seconds=1)
    assert [event["type"] for event in seen][:2] == ["ADDED", "MODIFIED"]
    bed.store.compact()
    with pytest.raises(ApiException) as refused:
        list(watch.Watch().stream(core.list_namespaced_pod, "training", resource_version=version, timeout_seconds=1))
    assert refused.value.status == 410


def test_an_undefined_kind_is_not_found(bed) -> None:
    api = client.CustomObjectsApi(config.new_client_from_config(str(bed.kube_config())))
    with pytest.raises(ApiException) as refused:
        api.list_namespaced_custom_object("jobset.x-k8s.io", "v1alpha2", "training", "jobsets")
    assert refused.value.status == 404


def test_foreground_deletion_waits_for_dependents(core, bed) -> None:
    from tests.cluster.bed.resources import CONFIG_MAPS, PODS

    above = bed.store.create(CONFIG_MAPS, {"metadata": {"name": "above", "namespace": "training"}})
    reference = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "above", "uid": above["metadata"]["uid"]}]
    base = {"name": "base", "image": "x:1", "command": ["python", "-c", "import time; time.sleep(60)"]}
    spec = {"terminationGracePeriodSeconds": 2, "restartPolicy": "Never", "containers": [base]}
    core.create_namespaced_pod("training", {"metadata": {"name": "below", "ownerReferences": reference}, "spec": spec})
    until(lambda: core.read_namespaced_pod("below", "training").status.phase == "Running")
    core.delete_namespaced_config_map("above", "training", propagation_policy="Foreground")
    until(lambda: core.read_namespaced_pod("below", "training").metadata.deletion_timestamp)
    assert bed.store.find(CONFIG_MAPS, "training", "above") is not None
    until(lambda: bed.store.find(PODS, "training", "below") is None)
    until(lambda: bed.store.find(CONFIG_MAPS, "training", "above") is None)

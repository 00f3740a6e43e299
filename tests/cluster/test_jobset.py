"""Two nodes as one gang: real torch processes that train one model over gloo and survive faults of one of them."""

import json
import time

import pytest

from tests.cluster.bed.kueue import CLUSTER_QUEUES
from tests.cluster.bed.resources import LIMIT_RANGES
from tests.cluster.clusters import JOBSETS, KUEUE
from tests.cluster.runs import Task, ended_by, event_of, meanwhile
from tests.cluster.settings import Settings

pytestmark = pytest.mark.real_time

STEPS = 600 if Settings().kube_config else 300
SAVED = "test/checkpoint/dev/.scratch/*/epoch-*/checkpoints/step-*/state.json"
RANK = "batch.kubernetes.io/job-completion-index"
GANG = {"operator": "JobSetOperator", "nodes": 2}


def jobsets(cluster) -> list[dict]:
    """The current JobSets."""
    return cluster.custom.list_namespaced_custom_object(*JOBSETS, cluster.namespace, "jobsets")["items"]


def rank(life) -> str:
    return life.last.metadata.annotations[RANK]


@pytest.fixture
def saved(cluster, store):
    """Waits until the gang has saved a checkpoint; returns its pods by rank."""

    def wait():
        cluster.until(lambda: len([pod for pod in cluster.pods() if pod.status.phase == "Running"]) == 2)
        cluster.until(lambda: len(list(store.glob(SAVED))) > 1)
        return {pod.metadata.annotations[RANK]: pod for pod in cluster.pods()}

    return wait


def trained_as_on_one_node(ended, undisturbed) -> None:
    assert ended.state == "success", ended.said
    made = ended.artifact("checkpoint")
    assert made.verify() == []
    assert made.record.content == undisturbed(STEPS)


def test_a_gang_of_two_nodes_trains_the_model_of_one_node(run, cluster, undisturbed) -> None:
    ended = run("train", steps=STEPS, **GANG)
    trained_as_on_one_node(ended, undisturbed)
    assert ended.result["address"] == "test/checkpoint@dev"
    gang = [life for life in cluster.history.lives() if RANK in life.last.metadata.annotations]
    assert sorted(map(rank, gang)) == ["0", "1"]
    assert "2 ranks" in ended.said
    cluster.until(lambda: not jobsets(cluster) and not cluster.pods(), 40)


@pytest.mark.parametrize("lost", [pytest.param("0", marks=pytest.mark.smoke), "1"])
def test_a_gang_survives_the_loss_of_one_pod(run, cluster, saved, undisturbed, lost) -> None:
    with meanwhile(lambda: cluster.kill_pod(saved()[lost].metadata.name)):
        ended = run("train", steps=STEPS, **GANG)
    trained_as_on_one_node(ended, undisturbed)
    assert ended.task.try_number == 1
    assert "the gang is restarted" in ended.said
    assert "resumed at step" in ended.said


def test_an_evicted_pod_restarts_the_gang_without_counting_as_a_failure(run, cluster, saved, undisturbed) -> None:
    with meanwhile(lambda: cluster.evict(saved()["1"].metadata.name)):
        ended = run("train", steps=STEPS, max_restarts=0, **GANG)
    trained_as_on_one_node(ended, undisturbed)
    assert ended.task.try_number == 1
    assert "of which 0 count" in ended.said


def test_the_next_try_restarts_a_gang_that_lost_a_node(run, cluster, saved, undisturbed) -> None:
    with meanwhile(lambda: cluster.lose_node(saved()["1"].spec.node_name)):
        ended = run("train", steps=STEPS, **GANG)
    trained_as_on_one_node(ended, undisturbed)
    assert "resumed at step" in ended.said


def test_a_permanent_error_fails_the_gang_at_once(run, cluster, store) -> None:
    (store / "test/plan/dev/artifact.json").unlink(missing_ok=True)
    for path in (store / "test/plan").rglob("*.json"):
        path.unlink()
    ended = run("train", steps=STEPS, **GANG)
    assert ended.state == "failed"
    assert ended.task.try_number == 1
    assert "needs test/plan@dev" in ended.said
    assert len(cluster.history.lives()) == 2, ended.said


def test_a_repeatedly_failing_gang_ends_with_the_reason_of_the_first_rank(run, cluster) -> None:
    ended = run("train", steps=STEPS, retries=0, max_restarts=1, env={"PYTHONHASHSEED": "banana"}, **GANG)
    assert ended.state == "failed"
    assert "max number of restarts" in ended.said or "ReachedMaxRestarts" in ended.said
    assert "ended with exit code 1" in ended.said
    assert {rank(life) for life in cluster.history.lives()} == {"0", "1"}
    assert len(cluster.history.lives()) == 4


def test_a_dead_kubelet_under_rank_zero_only_leaves_a_gap_in_the_log(run, cluster, saved, undisturbed) -> None:
    dead_s = 60 if cluster.slowness > 1 else 4

    def disturb() -> None:
        node = saved()["0"].spec.node_name
        cluster.stop_kubelet(node)
        time.sleep(dead_s)
        cluster.start_kubelet(node)

    with meanwhile(disturb):
        ended = run("train", steps=STEPS, **GANG)
    trained_as_on_one_node(ended, undisturbed)
    assert ended.task.try_number == 1
    gang = [life for life in cluster.history.lives() if RANK in life.last.metadata.annotations]
    assert len(gang) == 2


def test_a_second_process_of_the_task_finds_the_gang_of_the_first(recipe, cluster, saved) -> None:
    from operators.kubernetes_stage import JobSetOperator

    recipe(steps=STEPS, nodes=2)
    one = Task(lambda: JobSetOperator(task_id="train", recipe="test", stage="train"))
    one.process()
    saved()
    operator, trigger = one.process()
    assert one.resumed(operator, event_of(trigger))["address"] == "test/checkpoint@dev"
    assert len(cluster.history.lives()) == 2


def test_a_gang_whose_task_is_marked_failed_saves_and_is_deleted(recipe, cluster, saved, store) -> None:
    from operators.kubernetes_stage import JobSetOperator

    recipe(steps=100_000, nodes=2)
    one = Task(lambda: JobSetOperator(task_id="train", recipe="test", stage="train"))
    _, trigger = one.process()
    saved()
    ended_by(trigger, "failed")
    cluster.until(lambda: not cluster.pods() and not jobsets(cluster), 60)
    codes = {
        rank(one): one.last.status.container_statuses[0].state.terminated.exit_code for one in cluster.history.lives()
    }
    assert codes == {"0": 143, "1": 143}


@pytest.mark.smoke
def test_a_cluster_without_jobset_is_reported_with_a_remedy(run, cluster) -> None:
    bed = cluster.only_here("a cluster without the CRD of JobSet")
    bed.kinds = [one for one in bed.kinds if one.group != "jobset.x-k8s.io"]
    ended = run("train", **GANG)
    assert ended.state == "failed"
    assert ended.task.try_number == 1
    assert "Install JobSet" in ended.said


def test_an_intermittently_failing_api_creates_one_gang(run, cluster) -> None:
    for verb in ("create", "list", "get", "watch", "delete"):
        for code in (429, 500):
            cluster.faults.answer(code, verb=verb)
        cluster.faults.reset(verb=verb)
    cluster.faults.lose_reply(verb="create", path="*/jobsets")
    ended = run("train", steps=60, **GANG)
    assert ended.state == "success", ended.said
    assert ended.task.try_number == 1
    assert len(cluster.history.lives()) == 2, ended.said


# Kueue


@pytest.fixture
def queue(cluster) -> str:
    """The name of a queue with quota for the gang; created here unless `SLUICE_TEST_QUEUE` names one."""
    if cluster.queue:
        return cluster.queue
    cluster.only_here("a Kueue queue of the tests' own (or set SLUICE_TEST_QUEUE)")
    covered = {"cpu": 8, "memory": "32Gi", "nvidia.com/gpu": 8}
    quota = [{"name": name, "nominalQuota": amount} for name, amount in covered.items()]
    flavors = [{"name": "gpu-nodes", "resources": quota}]
    made = {"resourceGroups": [{"coveredResources": list(covered), "flavors": flavors}], "namespaceSelector": {}}
    for plural, name, spec in (
        ("resourceflavors", "gpu-nodes", {"nodeLabels": {"pool": "gpu"}}),
        ("clusterqueues", "training", made),
    ):
        cluster.custom.create_cluster_custom_object(*KUEUE, plural, {"metadata": {"name": name}, "spec": spec})
    local = {"metadata": {"name": "training"}, "spec": {"clusterQueue": "training"}}
    cluster.custom.create_namespaced_custom_object(*KUEUE, cluster.namespace, "localqueues", local)
    return "training"


@pytest.mark.soak
@pytest.mark.smoke
def test_a_gang_waits_in_its_queue_until_it_is_admitted_as_a_whole(run, cluster, queue) -> None:
    if not cluster.queue:
        cluster.kueue.delay_s = 3.0
    ended = run("train", steps=60, queue=queue, **GANG)
    assert ended.state == "success", ended.said
    assert "waiting in its Kueue queue" in ended.said
    assert len(cluster.history.lives()) == 2, ended.said


def test_a_preempted_gang_saves_queues_again_and_resumes(run, cluster, queue, saved, undisturbed) -> None:
    cluster.only_here("preemption by Kueue at will")

    def preempt() -> None:
        saved()
        [jobset] = jobsets(cluster)
        cluster.kueue.preempt(jobset["metadata"]["name"], cluster.namespace)

    with meanwhile(preempt):
        ended = run("train", steps=STEPS, queue=queue, **GANG)
    trained_as_on_one_node(ended, undisturbed)
    assert ended.task.try_number == 1
    assert "resumed at step" in ended.said


def test_a_missing_queue_is_reported_with_a_remedy(run, cluster) -> None:
    ended = run("train", queue="no-such-queue", **GANG)
    assert ended.state == "failed"
    assert ended.task.try_number == 1
    assert 'no Kueue LocalQueue "no-such-queue"' in ended.said
    assert cluster.history.at_once() == 0


@pytest.mark.parametrize("covered", [True, False])
def test_the_queue_must_cover_the_defaults_of_the_limit_range(run, cluster, queue, covered) -> None:
    bed = cluster.only_here("a ClusterQueue of the tests' own")
    sizes = {"default": {"ephemeral-storage": "220Gi"}, "defaultRequest": {"ephemeral-storage": "1Gi"}}
    limits = {"metadata": {"name": "work", "namespace": cluster.namespace}}
    bed.store.create(LIMIT_RANGES, {**limits, "spec": {"limits": [{"type": "Container", **sizes}]}})
    if covered:
        bed.store.change(CLUSTER_QUEUES, "", "training", covers_storage)
    ended = run("tokenizer", queue=queue, **GANG)
    assert (ended.state == "success") == covered, ended.said
    assert ("resource ephemeral-storage unavailable in ClusterQueue" in ended.said) != covered
    assert ended.task.try_number == 1


def covers_storage(queue: dict) -> None:
    [group] = queue["spec"]["resourceGroups"]
    group["coveredResources"].append("ephemeral-storage")
    group["flavors"][0]["resources"].append({"name": "ephemeral-storage", "nominalQuota": "10Gi"})


def test_a_gang_larger_than_its_queue_is_reported_with_a_remedy(run, cluster, queue) -> None:
    ended = run("train", queue=queue, gpus=1000, **GANG)
    assert ended.state == "failed"
    assert ended.task.try_number == 1
    assert "Kueue will not admit it" in ended.said
    assert "quota" in ended.said


def test_a_single_pod_waits_in_its_queue_too(run, cluster, queue) -> None:
    if not cluster.queue:
        cluster.kueue.delay_s = 2.0
    ended = run("tokenizer", queue=queue)
    assert ended.state == "success", ended.said
    assert len(cluster.history.lives()) == 1


def test_a_planted_secret_is_in_neither_the_jobset_nor_its_pods(recipe, cluster, saved) -> None:
    from operators.kubernetes_stage import JobSetOperator

    planted = "s3cr3t-gang-planted"
    body = {"metadata": {"name": "planted"}, "stringData": {"PLANTED": planted}}
    cluster.core.create_namespaced_secret(cluster.namespace, body)
    recipe(steps=100_000, nodes=2, secrets=["planted"])
    one = Task(lambda: JobSetOperator(task_id="train", recipe="test", stage="train"))
    operator, _ = one.process()
    pods = saved()
    shown = [json.dumps(jobsets(cluster)), *(json.dumps(life.raw) for life in cluster.history.lives())]
    assert not [text for text in shown if planted in text]
    assert all(pod.spec.containers[0].env_from[0].secret_ref.name == "planted" for pod in pods.values())
    operator.on_kill()
    cluster.until(lambda: not cluster.pods(), 60)

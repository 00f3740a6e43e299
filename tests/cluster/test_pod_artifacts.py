"""A pod or gang that exits with 0 without an artifact is not a success, and no later try adopts it."""

import pytest
from airflow.sdk.exceptions import AirflowFailException

from tests.cluster.runs import CommandedPod, Task, event_of

pytestmark = pytest.mark.real_time

IDLE = ["python", "-c", "print('nothing is made')"]


@pytest.fixture
def task(recipe):
    """A task whose pod writes no artifact while `task.idle` is true."""
    from operators.kubernetes_stage import GpuPodOperator

    recipe()
    said = {"task_id": "tokenizer", "recipe": "test", "stage": "tokenizer"}
    one = Task(lambda: CommandedPod(cmds=IDLE, **said) if one.idle else GpuPodOperator(**said))
    one.idle = True
    return one


def over(cluster) -> bool:
    return any(pod.status.phase == "Succeeded" for pod in cluster.pods())


@pytest.mark.smoke
def test_a_pod_without_an_artifact_fails_the_task_and_is_deleted(task, cluster) -> None:
    operator, trigger = task.process()
    with pytest.raises(AirflowFailException, match=r"exit code 0, but no artifact test/tokenizer@dev in .*one store"):
        task.resumed(operator, event_of(trigger))
    cluster.until(lambda: not cluster.pods(), 30)
    task.idle = False
    operator, trigger = task.process()
    assert task.resumed(operator, event_of(trigger))["address"] == "test/tokenizer@dev"
    assert len(cluster.history.lives()) == 2


@pytest.mark.parametrize("mended", [True, False])
def test_a_completed_pod_without_an_artifact_is_not_adopted(task, cluster, mended) -> None:
    task.process()  # its worker and its triggerer die before the pod ends
    cluster.until(lambda: over(cluster), 60)
    task.idle = not mended
    task.process()
    first, second = cluster.history.lives()
    assert (first.gone, second.gone) == (True, False)


def test_a_completed_pod_with_an_artifact_is_adopted(task, cluster) -> None:
    task.idle = False
    task.process()
    cluster.until(lambda: over(cluster), 60)
    operator, trigger = task.process()
    assert task.resumed(operator, event_of(trigger))["address"] == "test/tokenizer@dev"
    assert len(cluster.history.lives()) == 1


def test_a_completed_gang_without_an_artifact_is_not_adopted(recipe, cluster, store) -> None:
    from operators.jobsets.trigger import terminal_state
    from operators.kubernetes_stage import JobSetOperator
    from tests.cluster.clusters import JOBSETS

    def gangs() -> list[dict]:
        return cluster.custom.list_namespaced_custom_object(*JOBSETS, cluster.namespace, "jobsets")["items"]

    recipe(nodes=2)
    task = Task(lambda: JobSetOperator(task_id="tokenizer", recipe="test", stage="tokenizer"))
    task.process()
    cluster.until(lambda: [terminal_state(one) for one in gangs()] == ["Completed"], 90)
    [first] = gangs()
    for path in (store / "test/tokenizer/dev").glob(".artifact.json"):
        path.unlink()
    task.process()
    [second] = gangs()
    assert first["metadata"]["uid"] != second["metadata"]["uid"]

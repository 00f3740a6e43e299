"""Links of a task whose stage runs in a pod."""

import pytest

from tests.cluster.runs import first

pytestmark = pytest.mark.real_time

URL = "http://mlflow.example:5000/#/experiments/1/runs/abc"


def test_a_run_that_failed_in_a_pod_links_to_its_mlflow_page(run, cluster) -> None:
    ended = run("tokenizer", retries=0, cmds=first(f"print('08:00:00 I [test/x@dev] MLflow: {URL}'); sys.exit(1)"))
    assert ended.state == "failed"
    assert URL in ended.said
    # The failed task itself has no result to link to.
    assert ended.task.xcom_pull(task_ids=ended.task.task_id, key="link_mlflow") == URL

"""A missing or outdated Kueue is reported while a pod waits in a queue."""

import pytest

from tests.cluster.bed.kueue import LOCAL_QUEUES
from tests.cluster.bed.resources import Resource

pytestmark = pytest.mark.real_time

GANG = {"operator": "JobSetOperator", "nodes": 2}


def without_kueue(cluster):
    bed = cluster.only_here("a cluster without Kueue's custom resources")
    bed.kinds = [one for one in bed.kinds if one.group != "kueue.x-k8s.io"]
    return bed


def test_a_queue_without_kueue_is_reported_with_a_remedy(run, cluster) -> None:
    without_kueue(cluster)
    ended = run("tokenizer", queue="gpus", **GANG)
    assert ended.state == "failed"
    assert ended.task.try_number == 1
    assert "the cluster has no Kueue" in ended.said
    assert "Install Kueue" in ended.said


def test_a_kueue_with_only_the_older_api_is_queried_through_it(run, cluster) -> None:
    bed = without_kueue(cluster)
    bed.define(Resource(LOCAL_QUEUES.group, "v1beta1", LOCAL_QUEUES.plural, LOCAL_QUEUES.kind))
    ended = run("tokenizer", queue="gpus", **GANG)
    assert ended.state == "failed"
    assert 'there is no Kueue LocalQueue "gpus"' in ended.said

"""Allowed connections: no private address for the crawler; store, MLflow and gang for the trainer; Dask for itself."""

import pytest

from operators.pods.rights import USES_KUBERNETES
from tests.k8s.network import Network, Pod

OVERLAYS = ("base", "overlays/kind", "overlays/eks")


def task(**labels):
    return Pod("sluice", tuple({"tier": "airflow", "component": "worker", "release": "airflow", **labels}.items()))


def airflow(component):
    return Pod("sluice", (("tier", "airflow"), ("component", component), ("release", "airflow")))


CRAWLER = task(task_id="fetch", dag_id="web.crawl")
RENDERER = task(task_id="render", dag_id="web.crawl")
EXTRACT = task(task_id="extract", dag_id="web.corpus")
STARTING = task(task_id="train", dag_id="web.pretrain", **{USES_KUBERNETES: "true"})
MLFLOW = Pod("sluice", (("component", "mlflow"),))
STORE = Pod("sluice", (("component", "store"),))
TRAINER = Pod("sluice-work", (("sluice/stage", "train"),))
RANK = Pod("sluice-work", (("jobset.sigs.k8s.io/jobset-name", "demo-train"),))
DASK = (("dask.org/cluster-name", "demo"),)
WORKER = Pod("sluice-work", (*DASK, ("dask.org/component", "worker")))
SCHEDULER = Pod("sluice-work", (*DASK, ("dask.org/component", "scheduler")))
OPERATOR = Pod("sluice-work", (("app.kubernetes.io/name", "dask-kubernetes-operator"),))
DNS = Pod("kube-system", (("k8s-app", "kube-dns"),))
STRANGER = Pod("default", (("app", "shop"),))

PUBLIC = ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"]
PRIVATE = [
    *("10.1.2.3", "172.16.0.1", "172.31.255.254", "192.168.1.1", "127.0.0.1", "0.0.0.0"),
    # The cloud's metadata service, carrier-grade NAT, benchmark, multicast and reserved ranges.
    *("169.254.169.254", "169.254.170.23", "100.64.0.1", "198.18.0.1", "192.0.0.8", "224.0.0.1", "255.255.255.255"),
    *("::1", "fd00:ec2::254", "fe80::1", "fc00::1", "ff02::1", "::ffff:10.0.0.1", "64:ff9b::a00:1"),
]


@pytest.fixture(params=OVERLAYS)
def network(request, rendered):
    return Network(rendered(request.param))


def reached(network, pod, addresses, ports=(80, 443, 6443)):
    return [(address, port) for address in addresses for port in ports if network.lets(pod, address, port)]


def test_the_crawler_reaches_the_public_web_and_no_other_task_does(network):
    assert reached(network, CRAWLER, PUBLIC) == [(address, port) for address in PUBLIC for port in (80, 443)]
    assert reached(network, EXTRACT, PUBLIC) == []


def test_the_crawler_reaches_no_private_address(network):
    assert reached(network, CRAWLER, PRIVATE) == []


def test_the_crawlers_of_the_policies_are_the_tasks_that_open_web_pages(recipes, dag_bag, rendered):
    recipes("tiny")
    opening = {
        task.task_id
        for dag in dag_bag().dags.values()
        for task in dag.tasks
        if {"fetch", "render"} & {getattr(task, "stage", ""), getattr(task, "partial_kwargs", {}).get("stage")}
    }
    [policy] = [one["spec"] for one in rendered("base") if one["metadata"]["name"] == "crawler"]
    assert opening == set(policy["podSelector"]["matchExpressions"][0]["values"]) == {"fetch", "render"}
    # Every rule that excludes crawlers names the same tasks.
    left_out = [
        set(one["values"])
        for name in ("kubernetes-api-tasks", "dask-clients")
        for one in next(found["spec"] for found in rendered("base") if found["metadata"]["name"] == name)[
            "podSelector"
        ]["matchExpressions"]
        if one["operator"] == "NotIn"
    ]
    assert left_out == [opening, opening]
    assert dict(CRAWLER.labels)["task_id"] in opening


def test_on_eks_the_only_private_address_of_the_crawler_is_the_store(rendered):
    network = Network(rendered("overlays/eks"))
    assert network.lets(CRAWLER, "10.0.250.7", 443)
    assert not network.lets(CRAWLER, "10.0.250.7", 80)
    assert not network.lets(CRAWLER, "10.0.249.7", 443)


@pytest.mark.parametrize("pod", [TRAINER, RANK, WORKER, SCHEDULER], ids=["trainer", "rank", "worker", "scheduler"])
def test_trainers_and_dask_reach_no_outside_address(network, pod):
    assert reached(network, pod, [*PUBLIC, *PRIVATE]) == []


def test_on_eks_a_trainer_reaches_the_endpoint_of_the_store(rendered):
    assert Network(rendered("overlays/eks")).lets(TRAINER, "10.0.250.7", 443)


def test_on_kind_only_pods_that_read_artifacts_reach_the_store(rendered):
    network = Network(rendered("overlays/kind"))
    readers = [TRAINER, RANK, WORKER, CRAWLER, EXTRACT, MLFLOW, airflow("scheduler"), airflow("api-server")]
    assert all(network.lets(pod, STORE, 4566) for pod in readers)
    assert not network.lets(STRANGER, STORE, 4566)


NODE_LOCAL = Pod("kube-system", (("k8s-app", "node-local-dns"),))


@pytest.mark.parametrize(
    "server", [DNS, NODE_LOCAL, "169.254.20.10"], ids=["kube-dns", "node-local-dns", "its address"]
)
@pytest.mark.parametrize("protocol", ["UDP", "TCP"])
def test_all_pods_reach_every_kind_of_name_server(network, server, protocol):
    pods = (TRAINER, RANK, WORKER, SCHEDULER, OPERATOR, CRAWLER, EXTRACT, MLFLOW, airflow("scheduler"))
    assert all(network.lets(pod, server, 53, protocol) for pod in pods)
    assert not any(network.lets(pod, server, port, protocol) for pod in pods for port in (80, 443, 8080))


def test_the_address_of_the_name_server_opens_no_other_link_local_address(network):
    for pod in (TRAINER, CRAWLER, EXTRACT):
        assert reached(network, pod, ["169.254.20.9", "169.254.20.11", *PRIVATE], ports=(53, 80, 443)) == []


def test_trainers_reach_mlflow(network):
    assert all(network.lets(pod, MLFLOW, 5000) for pod in (TRAINER, RANK, WORKER, EXTRACT))
    assert not network.lets(STRANGER, MLFLOW, 5000)


def test_only_ranks_reach_ranks(network):
    assert network.lets(RANK, RANK, 29500)
    assert network.lets(RANK, RANK, 45123)
    assert not any(network.lets(pod, RANK, 29500) for pod in (TRAINER, WORKER, EXTRACT, STRANGER, MLFLOW))
    assert not any(network.lets(RANK, pod, 8786) for pod in (SCHEDULER, EXTRACT, TRAINER))


def test_a_dask_scheduler_accepts_only_task_pods_and_its_workers(network):
    assert network.lets(STARTING, SCHEDULER, 8786)
    assert network.lets(WORKER, SCHEDULER, 8786)
    assert network.lets(SCHEDULER, WORKER, 40001)
    assert network.lets(OPERATOR, SCHEDULER, 8787)
    others = (TRAINER, RANK, STRANGER, EXTRACT, CRAWLER, airflow("triggerer"))
    assert not any(network.lets(pod, SCHEDULER, 8786) for pod in others)
    assert not network.lets(STARTING, WORKER, 40001)


LABELLED = task(task_id="fetch", dag_id="web.crawl", **{USES_KUBERNETES: "true"})


@pytest.mark.parametrize("crawler", [CRAWLER, RENDERER, EXTRACT, LABELLED], ids=["fetch", "render", "extract", "label"])
def test_a_task_that_reads_pages_and_the_dask_scheduler_each_refuse_the_other(crawler, rendered):
    for folder in OVERLAYS:
        for namespace in ("sluice", "sluice-work"):
            # Only the policies of one side: without policies the other side allows everything.
            side = Network([one for one in rendered(folder) if one["metadata"].get("namespace") == namespace])
            assert not any(side.lets(crawler, SCHEDULER, port) for port in (8786, 8787))
            assert side.lets(STARTING, SCHEDULER, 8786)


def test_the_cleanup_reaches_only_the_kubernetes_api(rendered):
    for folder, address, port in (("overlays/eks", "10.0.12.9", 443), ("overlays/kind", "172.18.0.2", 6443)):
        network = Network(rendered(folder))
        assert network.lets(airflow("airflow-cleanup-pods"), address, port)
        assert reached(network, airflow("airflow-cleanup-pods"), PUBLIC) == []
        assert not network.lets(airflow("airflow-cleanup-pods"), SCHEDULER, 8786)


def test_task_pods_reach_airflow_and_not_its_database(rendered):
    network = Network(rendered("overlays/kind"))
    database = Pod("sluice", (("component", "postgres"),))
    assert network.lets(EXTRACT, airflow("api-server"), 8080)
    assert network.lets(CRAWLER, airflow("api-server"), 8080)
    assert not network.lets(EXTRACT, database, 5432)
    assert not network.lets(TRAINER, airflow("api-server"), 8080)


@pytest.mark.parametrize("component", ["scheduler", "triggerer", "api-server", "dag-processor"])
def test_airflow_and_mlflow_reach_the_database_inside_kind_and_outside_on_eks(component, rendered):
    database = Pod("sluice", (("component", "postgres"),))
    for pod in (airflow(component), MLFLOW, airflow("run-airflow-migrations")):
        assert Network(rendered("overlays/kind")).lets(pod, database, 5432)
        assert Network(rendered("overlays/eks")).lets(pod, "10.0.30.4", 5432)


WITH_TOKEN = [STARTING, *map(airflow, ("scheduler", "triggerer", "api-server", "airflow-cleanup-pods"))]


@pytest.mark.parametrize(
    ("folder", "api"), [("overlays/eks", ("10.0.12.9", 443)), ("overlays/kind", ("172.18.0.2", 6443))]
)
def test_only_pods_with_a_token_reach_the_kubernetes_api(folder, api, rendered):
    network = Network(rendered(folder))
    assert all(network.lets(pod, *api) for pod in WITH_TOKEN)
    assert not any(network.lets(pod, *api) for pod in (CRAWLER, EXTRACT, LABELLED, airflow("dag-processor"), TRAINER))


def test_metrics_go_to_statsd_and_from_there_only_to_monitoring(network):
    statsd, prometheus = airflow("statsd"), Pod("monitoring", (("app", "prometheus"),))
    assert network.lets(airflow("scheduler"), statsd, 9125, "UDP")
    assert network.lets(prometheus, statsd, 9102)
    assert not network.lets(STRANGER, statsd, 9102)

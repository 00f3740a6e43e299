"""The pods that reach the cluster: recipe and pod template of k8s/pods, as rendered by the operators."""

import math

import pytest
import yaml
from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator
from kubernetes.client import ApiClient
from kubernetes.utils.quantity import parse_quantity

from operators.pods.disk import planned_bytes
from tests.k8s.admission import limited, queue_refusals
from tests.k8s.conftest import K8S
from tests.k8s.definitions import built_in

TRAINERS = ("trainer.yaml", "trainer-gp3.yaml", "trainer-efa.yaml")
PLACE = """
[place]
store = "s3://sluice/store"
[place.train]
where = "kubernetes"
nproc = 8
[place.kubernetes]
namespace = "sluice-work"
image = "sluice/trainer:0.1.0"
template = "k8s/pods/{template}"
gpus = 8
cpu = "96"
memory = "900Gi"
nodes = 2
queue = "gpu"
secrets = ["sluice-store"]
[[place.kubernetes.tolerations]]
key = "nvidia.com/gpu"
[place.dask.kubernetes]
namespace = "sluice-work"
image = "sluice/worker:0.1.0"
template = "k8s/pods/dask.yaml"
secrets = ["sluice-store"]
"""


@pytest.fixture
def recipe(recipes, monkeypatch):
    """A function that returns the recipe with a template file, with paths relative to the Airflow home."""
    from tasks.run.recipe import find_recipe

    monkeypatch.chdir(K8S.parent)

    def make(template="trainer.yaml", **changes):
        recipes("placed", PLACE.format(template=template))
        return find_recipe("placed").override(changes)

    return make


def pod(recipe, stage="train"):
    from operators.pods.spec import manifest, stage_pod

    made = stage_pod(recipe, stage)
    made.metadata.name = "placed-train-1"
    return made, manifest(made)


def gang(recipe):
    from operators.jobsets.manifest import jobset

    return jobset(pod(recipe)[0], "placed-train-1", recipe.place.kubernetes, 8)


def dask(recipe):
    from operators.dask.manifests import autoscaler_manifest, cluster_manifest, place_of

    pods = place_of(recipe)
    return [cluster_manifest(recipe, pods, "placed-1", "placed.corpus/run"), autoscaler_manifest(pods, "placed-1")]


def specs(recipe):
    """Yields the name and spec of every pod of the operators."""
    yield "pod", pod(recipe)[1]["spec"]
    yield "rank", gang(recipe)["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    cluster = dask(recipe)[0]["spec"]
    yield "scheduler", cluster["scheduler"]["spec"]
    yield "worker", cluster["worker"]["spec"]


@pytest.mark.parametrize("template", TRAINERS)
def test_every_pod_of_the_operators_is_valid_in_strict_mode(recipe, template):
    for name, spec in specs(recipe(template)):
        assert built_in({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}) == [], name


@pytest.mark.parametrize("template", TRAINERS)
def test_gang_and_dask_cluster_have_no_field_that_their_projects_do_not_define(recipe, template, definitions):
    made = recipe(template)
    for one in (gang(made), *dask(made)):
        assert definitions.errors(one) == []


@pytest.mark.parametrize("template", TRAINERS)
def test_pods_pass_the_restricted_pod_security_standard(recipe, template):
    for name, spec in specs(recipe(template)):
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["runAsUser"] == 50000, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert spec["automountServiceAccountToken"] is False, name
        for container in spec["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False, name
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, name
            assert set(container["securityContext"]["capabilities"]) == {"drop"}, name
            assert set(container["securityContext"]["capabilities"]["drop"]) == {"ALL"}, name


def test_no_volume_is_mounted_twice_and_every_mount_has_its_volume(recipe):
    for name, spec in specs(recipe()):
        for container in spec["containers"]:
            paths = [mount["mountPath"] for mount in container["volumeMounts"]]
            assert sorted(paths) == sorted(set(paths)), name
            assert "/tmp" in paths, name
            assert {mount["name"] for mount in container["volumeMounts"]} <= {one["name"] for one in spec["volumes"]}


def test_pods_get_store_and_mlflow_from_the_settings_of_their_namespace(recipe, rendered):
    [settings] = [
        one for one in rendered("base") if one["kind"] == "ConfigMap" and one["metadata"]["namespace"] == "sluice-work"
    ]
    assert {"SLUICE_STORE", "MLFLOW_TRACKING_URI"} <= set(settings["data"])
    for name, spec in specs(recipe()):
        sources = [one["configMapRef"]["name"] for one in spec["containers"][0]["envFrom"] if "configMapRef" in one]
        assert sources == [settings["metadata"]["name"]], name


def is_of_work(one, kind):
    return one["kind"] == kind and one["metadata"]["namespace"] == "sluice-work"


def test_a_pod_can_fill_its_scratch_volume_without_eviction(recipe, rendered, templates):
    [limits] = [one["spec"]["limits"][0]["default"] for one in rendered("base") if is_of_work(one, "LimitRange")]
    allowed = {name: parse_quantity(limits["ephemeral-storage"]) for name in ("trainer.yaml", "dask.yaml")}
    for name in ("executor.yaml", "executor-git-sync.yaml"):
        own = templates[name]["spec"]["containers"][0]["resources"]["limits"]["ephemeral-storage"]
        allowed[name] = parse_quantity(own)
    for name, limit in allowed.items():
        volumes = [one.get("emptyDir", {}) for one in templates[name]["spec"].get("volumes", [])]
        scratch = sum(parse_quantity(one["sizeLimit"]) for one in volumes if "medium" not in one and one)
        assert scratch < limit, name


def test_a_gang_goes_to_a_queue_that_exists_and_fits_the_quota(recipe, rendered):
    made = gang(recipe())
    [local] = [one for one in rendered("base") if one["kind"] == "LocalQueue"]
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == local["metadata"]["name"]
    assert made["metadata"]["namespace"] == local["metadata"]["namespace"]
    job = made["spec"]["replicatedJobs"][0]["template"]["spec"]
    [limits] = [one for one in rendered("base") if is_of_work(one, "LimitRange")]
    asked = limited(job["template"]["spec"], limits)["containers"][0]["resources"]["requests"]
    [queue] = [one for one in rendered("base") if one["kind"] == "ClusterQueue"]
    fits = [
        flavor["name"]
        for flavor in queue["spec"]["resourceGroups"][0]["flavors"]
        if all(
            parse_quantity(asked[one["name"]]) * job["completions"] <= parse_quantity(str(one["nominalQuota"]))
            for one in flavor["resources"]
        )
    ]
    assert fits == ["gpu-spot"]


LARGE = {
    "train.steps": 20_000,
    "train.batch_size": 256,
    "train.model": {"layers": 24, "dim": 2048, "heads": 16, "kv_heads": 8},
    "pack.seq_len": 2048,
}


def disk(spec):
    sizes = spec["containers"][0]["resources"]
    return sizes["requests"].get("ephemeral-storage"), sizes["limits"].get("ephemeral-storage")


def test_a_training_requests_the_planned_disk_and_is_admitted(recipe, rendered):
    """A billion weights: five checkpoints in halves of two nodes, one whole, and the shards of the steps."""
    from tasks.trainer.model.shape import ModelShape

    made = recipe(**LARGE)
    asked, limit = disk(pod(made)[1]["spec"])
    # A weight and its two moments in fp32; tokens of two bytes.
    checkpoint = 12 * ModelShape.of(made.train.model, 300).weights["total"]
    assert 1e10 < checkpoint < 2e10
    shards = 20_000 * 256 * 2048 * 2 / 2
    assert asked == f"{math.ceil((checkpoint * (5 / 2 + 1) + shards) / 2**30)}Gi"
    assert parse_quantity(limit) > 200 * 2**30
    spec = gang(made)["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert disk(spec) == (asked, limit)
    [limits] = [one for one in rendered("base") if is_of_work(one, "LimitRange")]
    [queue] = [one for one in rendered("base") if one["kind"] == "ClusterQueue"]
    admitted = limited(spec, limits)
    assert disk(admitted) == (asked, limit)
    assert queue_refusals(admitted, 2, queue) == []


def test_a_replica_that_spans_nodes_needs_the_disk_of_another_checkpoint(recipe):
    from tasks.trainer.model.shape import ModelShape

    made = recipe(**LARGE)
    spread = made.override({"place.train.layout": {"shard": 2 * made.place.train.nproc}})
    checkpoint = 12 * ModelShape.of(made.train.model, 300).weights["total"]
    more = planned_bytes(spread, spread.place.kubernetes, "train") - planned_bytes(made, made.place.kubernetes, "train")
    assert more == checkpoint


SMALL_RUNS = {
    "canary.model": {"layers": 12, "dim": 768, "heads": 12, "kv_heads": 12},
    "canary.confirm_model": {"layers": 24, "dim": 2048, "heads": 16, "kv_heads": 8},
    "canary.steps": 4000,
    "canary.batch_size": 64,
}


@pytest.mark.parametrize(("stage", "size"), [("canary", "model"), ("confirm", "confirm_model")])
def test_a_canary_requests_the_disk_of_its_checkpoints_and_shards(recipe, stage, size):
    """The newest two, the last, and one being written, on one node; tokens of two bytes."""
    from tasks.stages.canary import CanaryConfig
    from tasks.trainer.model.shape import ModelShape

    made = recipe(**LARGE | SMALL_RUNS)
    checkpoint = 12 * ModelShape.of(getattr(made.of(CanaryConfig), size), 300).weights["total"]
    shards = 4000 * 64 * 2048 * 2
    asked, limit = disk(pod(made, stage)[1]["spec"])
    assert asked == f"{math.ceil((checkpoint * 4 + shards) / 2**30)}Gi"
    assert parse_quantity(limit) > parse_quantity(asked)


@pytest.mark.parametrize(("cache", "held"), [(None, 3), ("6", 1)], ids=["default cache", "small cache"])
def test_an_evaluation_requests_the_disk_of_the_weights_of_all_milestones(recipe, cache, held):
    from tasks.trainer.model.shape import ModelShape

    changes = {"place.kubernetes.env": {"SLUICE_CACHE_GB": cache}} if cache else {}
    made = recipe(**LARGE, **changes)
    weights = 4 * ModelShape.of(made.train.model, 300).weights["total"]
    expected = held * weights if held > 1 else max(float(cache) * 1e9, weights)
    assert disk(pod(made, "evaluate")[1]["spec"])[0] == f"{math.ceil(expected / 2**30)}Gi"


def test_a_stage_without_a_plan_has_the_defaults_of_the_namespace(recipe):
    assert disk(pod(recipe(**LARGE), "finetune")[1]["spec"]) == (None, None)


def test_a_small_training_or_one_with_its_own_volume_requests_no_disk(recipe):
    assert disk(pod(recipe())[1]["spec"]) == (None, None)
    assert disk(pod(recipe("trainer-gp3.yaml", **LARGE))[1]["spec"]) == (None, None)


def test_a_training_larger_than_its_scratch_volume_is_refused_before_it_starts(recipe):
    from tasks.core.errors import RecipeError

    with pytest.raises(RecipeError, match=r"GiB of scratch in each pod.*volume scratch.*holds 200 GiB") as told:
        pod(recipe(**LARGE | {"train.keep_checkpoints": 40}))
    assert "sizeLimit" in told.value.remedy


def test_devices_of_the_template_are_added_to_those_of_the_recipe(recipe):
    sizes = pod(recipe("trainer-efa.yaml"))[1]["spec"]["containers"][0]["resources"]
    for side in ("requests", "limits"):
        assert sizes[side].items() >= {"vpc.amazonaws.com/efa": "32", "nvidia.com/gpu": "8", "memory": "900Gi"}.items()


@pytest.mark.parametrize("folder", ["overlays/eks", "overlays/eks-fixed"])
def test_the_queue_of_eks_covers_the_network_devices_of_its_nodes(folder, recipe, rendered):
    [limits] = [one for one in rendered(folder) if is_of_work(one, "LimitRange")]
    [queue] = [one for one in rendered(folder) if one["kind"] == "ClusterQueue"]
    job = gang(recipe("trainer-efa.yaml"))["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert queue_refusals(limited(job["template"]["spec"], limits), job["completions"], queue) == []
    [base] = [one for one in rendered("base") if one["kind"] == "ClusterQueue"]
    assert "hugepages-2Mi unavailable" in queue_refusals(limited(job["template"]["spec"], limits), 1, base)[0]


def test_a_gang_with_a_topology_finds_its_level_and_flavors(recipe, rendered):
    metadata = gang(recipe("trainer-efa.yaml"))["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["metadata"]
    level = metadata["annotations"]["kueue.x-k8s.io/podset-preferred-topology"]
    objects = rendered("overlays/eks-fixed")
    [topology] = [one for one in objects if one["kind"] == "Topology"]
    assert level in {one["nodeLabel"] for one in topology["spec"]["levels"]}
    flavors = [one["spec"] for one in objects if one["kind"] == "ResourceFlavor"]
    assert [one["topologyName"] for one in flavors] == [topology["metadata"]["name"]] * 2
    # Kueue's rule for a flavor with a topology.
    assert all(one["nodeLabels"] for one in flavors)


@pytest.fixture
def task_pod(airflow_db, values, monkeypatch):
    """A function that returns the executor's pod for one try of a task with a template file."""

    settings = {}
    exec(values("airflow.yaml")["airflowLocalSettings"], settings)
    monkeypatch.setattr("airflow.settings.pod_mutation_hook", settings["pod_mutation_hook"])

    def make(template, task_id="fetch", executor_config=None):
        base = PodGenerator.deserialize_model_file(str(K8S / "pods" / template))
        made = PodGenerator.construct_pod(
            dag_id="web.crawl",
            task_id=task_id,
            pod_id="web-crawl-fetch-1",
            try_number=1,
            kube_image="sluice/airflow:0.1.0",
            date=None,
            args=["python", "-m", "airflow.sdk.execution_time.execute_workload", "--json-string", "{}"],
            pod_override_object=PodGenerator.from_obj(executor_config),
            base_worker_pod=base,
            namespace="sluice",
            scheduler_job_id="1",
            run_id="manual",
            map_index=0,
            with_mutation_hook=True,
        )
        return ApiClient().sanitize_for_serialization(made)

    return make


@pytest.mark.parametrize("template", ["executor.yaml", "executor-git-sync.yaml"])
def test_airflow_makes_a_valid_task_pod_from_the_template(task_pod, template):
    made = task_pod(template)
    assert built_in(made) == []
    [container] = made["spec"]["containers"]
    assert container["image"] == "sluice/airflow:0.1.0"
    assert container["args"][:3] == ["python", "-m", "airflow.sdk.execution_time.execute_workload"]
    # The policies select crawlers by these labels.
    assert made["metadata"]["labels"].items() >= {"component": "worker", "tier": "airflow", "task_id": "fetch"}.items()


@pytest.mark.parametrize("template", ["executor.yaml", "executor-git-sync.yaml"])
def test_a_crawler_has_its_own_account_and_no_kubernetes_token(task_pod, template):
    for task_id in ("fetch", "render"):
        spec = task_pod(template, task_id)["spec"]
        assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("airflow-crawler", False)


LOCAL = '[place.train]\nwhere = "local"\n'
STARTS_WORK = {"GpuPodOperator", "JobSetOperator", "TrainJobOperator", "DaskSetupOperator", "DaskTeardownOperator"}


PODS_AND_DASK = PLACE.format(template="trainer.yaml")


@pytest.mark.parametrize(
    ("place", "template", "on_dask"),
    [
        (LOCAL, "executor.yaml", False),
        (PODS_AND_DASK, "executor-git-sync.yaml", True),
        (PODS_AND_DASK.replace("nodes = 2", 'nodes = 2\ngang = "trainjob"'), "executor.yaml", True),
        (PODS_AND_DASK.partition("[place.dask")[0], "executor-git-sync.yaml", False),
    ],
    ids=["local", "pods and dask", "trainjobs and dask", "pods"],
)
def test_only_tasks_that_start_pods_or_dask_clusters_get_a_token(
    place, template, on_dask, recipes, dag_bag, task_pod, rendered
):
    """Mapped tasks, too. Without a Dask cluster the parts of `extract`, which parse pages, run in the task's pod."""
    from airflow.serialization.serialized_objects import DagSerialization

    recipes("placed", place)
    starting = STARTS_WORK | ({"DaskStageOperator"} if on_dask else set())
    expected, with_token, accounts = set(), set(), set()
    for dag in dag_bag().dags.values():
        # As the scheduler reads it from the database.
        for task in DagSerialization.from_dict(DagSerialization.to_dict(dag)).tasks:
            name, spec = f"{dag.dag_id}.{task.task_id}", task_pod(template, task.task_id, task.executor_config)["spec"]
            accounts.add((spec["serviceAccountName"], spec["automountServiceAccountToken"]))
            with_token |= {name} if spec["automountServiceAccountToken"] else set()
            expected |= {name} if task.task_type in starting else set()
    assert with_token == expected
    assert ("placed.corpus.extract" in with_token) == on_dask
    own = {("airflow-worker", True)} if place != LOCAL else set()
    assert accounts == {("airflow-task", False), ("airflow-crawler", False)} | own
    there = {one["metadata"]["name"] for one in rendered("base") if one["kind"] == "ServiceAccount"}
    assert {account for account, _ in accounts} <= there


@pytest.mark.parametrize("template", ["executor.yaml", "executor-git-sync.yaml"])
def test_a_task_pod_has_no_airflow_key(task_pod, template):
    text = yaml.safe_dump(task_pod(template))
    for secret in ("airflow-database", "fernet", "jwt", "SQL_ALCHEMY", "api-secret"):
        assert secret not in text


def test_dag_processor_and_task_pods_fetch_the_same_files(values, templates):
    sync = values("airflow-git-sync.yaml")
    [fetch] = templates["executor-git-sync.yaml"]["spec"]["initContainers"]
    env = {one["name"]: one["value"] for one in fetch["env"]}
    chart = sync["dags"]["gitSync"]
    assert (env["GITSYNC_REPO"], env["GITSYNC_REF"]) == (chart["repo"], chart["ref"])
    image = sync["images"]["gitSync"]
    assert fetch["image"] == f"{image['repository']}:{image['tag']}"
    assert fetch["envFrom"][0]["secretRef"]["name"] == chart["credentialsSecret"]

"""Manifest of a stage's pod: `[place.kubernetes]`, merged over the pod template file of the place.

The pod runs `python -u -m tasks <stage> --recipe '<json>' --version ...`, writes its artifact into
the store and needs neither the Kubernetes API nor a sidecar.

No secret is in a pod's spec: `[place.kubernetes] secrets` names Kubernetes secrets (`envFrom`), `service_account`
provides workload identity. The template file is for settings that recipes do not have: volumes, security context,
affinity, host network, resources of other devices. The first container of the template is the stage's.

A training asks for the disk that its plan says: its scratch volume is on the node, and a pod that fills more of it than
it asked for is the first to be evicted.
"""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator
from kubernetes.client import ApiClient
from kubernetes.client import models as k8s

from operators.pods.waiting import quantity
from tasks.core.errors import RecipeError
from tasks.run.place import KubernetesPlace, all_filled
from tasks.run.recipe import Recipe
from tasks.stages.tokens import PackConfig, TokenizerConfig
from tasks.trainer.config import TrainConfig
from tasks.trainer.model.shape import ModelShape
from tasks.trainer.planning.config import PlanConfig
from tasks.trainer.planning.estimate import estimate

CONTAINER = "base"
"""Name of the stage's container; the provider's own name for it."""

SAVE_MARGIN_S = 20
"""Seconds by which torchrun's time limit for saving is below the pod's grace period."""

DISK = "ephemeral-storage"
SPARE_GIB = 20
"""Of the node's disk beside a scratch volume: logs, and what else the container writes."""
CACHE_GB = 50.0
"""Size of the cache of shards where the place's `env` has no SLUICE_CACHE_GB."""
_GIB = 2**30

_NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def place_of(recipe: Recipe) -> KubernetesPlace:
    """Returns the place of a recipe's pods; raises RecipeError where it has none or names no image."""
    place = recipe.place.kubernetes
    if place is None:
        raise RecipeError(
            f'{recipe.name}: [place.train] where is "kubernetes" but there is no [place.kubernetes]',
            'add the section, or write where = "local"',
        )
    place = all_filled(place)
    if not place.image:
        raise RecipeError(f"{recipe.name}: [place.kubernetes] names no image", "build one with k8s/images and name it")
    if place.grace_s <= SAVE_MARGIN_S:
        raise RecipeError(
            f"{recipe.name}: [place.kubernetes] grace_s is {place.grace_s}",
            f"give the trainer more than {SAVE_MARGIN_S} s to save a checkpoint",
        )
    return place


def stage_pod(recipe: Recipe, stage: str) -> k8s.V1Pod:
    """Returns the pod of a stage without its name, owner and arguments.

    Raises:
        RecipeError: the place is incomplete, or its template file is missing or is not a pod.
    """
    place = place_of(recipe)
    pod = k8s.V1Pod(
        api_version="v1",
        kind="Pod",
        metadata=k8s.V1ObjectMeta(namespace=place.namespace, labels=stage_labels(recipe, stage, place)),
        spec=_spec(recipe, place),
    )
    if place.template:
        template = _template(recipe, place)
        template.spec.containers[0].name = CONTAINER
        _without_repeated_env(template.spec.containers[0], pod.spec.containers[0])
        _with_resources(template.spec.containers[0], pod.spec.containers[0])
        _with_placement(template.spec, pod.spec)
        pod = PodGenerator.reconcile_pods(template, pod)
    if stage == "train":
        _with_disk(pod.spec, recipe, place)
    return _with_shared_memory(pod)


def stage_labels(recipe: Recipe, stage: str, place: KubernetesPlace) -> dict[str, str]:
    """Returns the labels for selecting the pods of a stage."""
    labels = {"app.kubernetes.io/part-of": "sluice", "sluice/recipe": recipe.name, "sluice/stage": stage}
    if not place.queue:
        return labels
    labels["kueue.x-k8s.io/queue-name"] = place.queue
    priority = place.queue_priority.get(stage)
    return {**labels, "kueue.x-k8s.io/priority-class": priority} if priority else labels


def manifest(pod: k8s.V1Pod) -> dict[str, Any]:
    """Returns the pod as the JSON object for the API."""
    body: dict[str, Any] = ApiClient().sanitize_for_serialization(pod)
    return body


def _spec(recipe: Recipe, place: KubernetesPlace) -> k8s.V1PodSpec:
    container = k8s.V1Container(
        name=CONTAINER,
        image=place.image,
        image_pull_policy="IfNotPresent",
        command=["python", "-u"],
        env=[k8s.V1EnvVar(name=name, value=value) for name, value in _environment(recipe, place).items()],
        env_from=[k8s.V1EnvFromSource(secret_ref=k8s.V1SecretEnvSource(name=name)) for name in place.secrets],
        resources=_resources(place),
        # The last lines of the log become the termination message: what was wrong, also when the log is out of reach.
        termination_message_policy="FallbackToLogsOnError",
    )
    return k8s.V1PodSpec(
        containers=[container],
        restart_policy="Never",
        node_selector=dict(place.node_selector) or None,
        tolerations=_tolerations(place),
        priority_class_name=place.priority_class or None,
        runtime_class_name=place.runtime_class or None,
        service_account_name=place.service_account or None,
        # A stage never uses the Kubernetes API. Workload identity has a token of its own.
        automount_service_account_token=False,
        termination_grace_period_seconds=place.grace_s,
    )


def _environment(recipe: Recipe, place: KubernetesPlace) -> dict[str, str]:
    return {
        "SLUICE_NPROC": str(recipe.place.train.nproc),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(place.grace_s - SAVE_MARGIN_S),
        "PYTHONUNBUFFERED": "1",
        **place.env,
    }


def _resources(place: KubernetesPlace) -> k8s.V1ResourceRequirements:
    size = {"cpu": place.cpu, "memory": place.memory}
    gpus = {"nvidia.com/gpu": str(place.gpus)} if place.gpus else {}
    # No CPU limit: a throttled loader starves the GPU. GPUs must be equal in both.
    return k8s.V1ResourceRequirements(requests={**size, **gpus}, limits={"memory": place.memory, **gpus})


def _tolerations(place: KubernetesPlace) -> list[k8s.V1Toleration]:
    configured = [
        k8s.V1Toleration(key=one.key, operator=one.operator, value=one.value or None, effect=one.effect)
        for one in place.tolerations
    ]
    # How long a node may be silent (its kubelet restarts) before Kubernetes gives its pods up.
    silent = [
        k8s.V1Toleration(key=key, operator="Exists", effect="NoExecute", toleration_seconds=place.node_silent_s)
        for key in _NOT_READY
        if key not in {one.key for one in place.tolerations}
    ]
    return configured + silent


def _template(recipe: Recipe, place: KubernetesPlace) -> k8s.V1Pod:
    path = _found(place.template)
    try:
        pod = PodGenerator.deserialize_model_file(str(path)) if path else None
    except Exception as error:
        raise _bad_template(recipe, place, " ".join(str(error).split())) from None
    if pod is None:
        raise RecipeError(
            f"{recipe.name}: [place.kubernetes] template {place.template} is not there",
            f"give its path from one of {', '.join(map(str, _folders()))}, and have the file on every worker",
        )
    if pod.spec is None or not pod.spec.containers:
        raise _bad_template(recipe, place, "it has no spec.containers")
    pod.metadata = pod.metadata or k8s.V1ObjectMeta()
    return pod


def _found(template: str) -> Path | None:
    """Returns the file of a template; a relative path is searched for in the usual folders."""
    return next((folder / template for folder in _folders() if (folder / template).is_file()), None)


def _folders() -> list[Path]:
    home = [Path(os.environ["AIRFLOW_HOME"])] if "AIRFLOW_HOME" in os.environ else []
    return list(dict.fromkeys([Path.cwd(), *home, Path(__file__).parents[1]]))


def _bad_template(recipe: Recipe, place: KubernetesPlace, cause: str) -> RecipeError:
    return RecipeError(
        f"{recipe.name}: [place.kubernetes] template {place.template} is not a pod: {cause}",
        "write a manifest of kind Pod whose first container is called base",
    )


def _without_repeated_env(template: k8s.V1Container, own: k8s.V1Container) -> None:
    # Lists are joined when the two are merged; a variable must not occur twice.
    names = {one.name for one in own.env}
    template.env = [one for one in template.env or [] if one.name not in names]


def _with_resources(template: k8s.V1Container, own: k8s.V1Container) -> None:
    # The provider's merge would drop the template's, such as network devices.
    given = template.resources or k8s.V1ResourceRequirements()
    own.resources.requests = {**(given.requests or {}), **own.resources.requests}
    own.resources.limits = {**(given.limits or {}), **own.resources.limits}


def _with_disk(spec: k8s.V1PodSpec, recipe: Recipe, place: KubernetesPlace) -> None:
    """Requests the disk of a training's plan, where scratch is on the node and the template says nothing.

    Raises:
        RecipeError: the scratch volume of the template is too small for the plan.
    """
    resources, volume = spec.containers[0].resources, _scratch(spec)
    needed = math.ceil(planned_bytes(recipe, place) / _GIB)
    on_node = volume is None or (volume.empty_dir is not None and volume.empty_dir.medium != "Memory")
    # What is less than a GiB fits everywhere, and a queue of others need not cover it.
    if DISK in {**resources.requests, **resources.limits} or not on_node or needed <= 1:
        return
    room = float(needed)
    if volume is not None and volume.empty_dir.size_limit:
        room = quantity(volume.empty_dir.size_limit) / _GIB
        if needed > room:
            raise RecipeError(
                f"{recipe.name}: the training needs {needed} GiB of scratch in each pod, and the volume {volume.name} "
                f"of [place.kubernetes] template {place.template} holds {room:.0f} GiB",
                "raise its sizeLimit, take a template with a larger volume, or keep fewer checkpoints and milestones",
            )
    resources.requests[DISK] = f"{needed}Gi"
    resources.limits.setdefault(DISK, f"{math.ceil(room) + SPARE_GIB}Gi")


def planned_bytes(recipe: Recipe, place: KubernetesPlace) -> float:
    """Returns the bytes that a pod of a training has in scratch at most.

    Its part of the checkpoints that the run keeps, one more (being written, or fetched as a whole after a loss), and
    what it reads of the shards, as far as the cache keeps it.
    """
    train, layout, seq_len = recipe.of(TrainConfig), recipe.place.train.layout, recipe.of(PackConfig).seq_len
    shape = ModelShape.of(train.model, recipe.of(TokenizerConfig).vocab_size)
    ranks = recipe.place.train.nproc * place.nodes
    saving = estimate(recipe.of(PlanConfig), train, shape, seq_len, layout, ranks)["checkpoints"]
    read = train.steps * train.batch_size * seq_len * (2 if shape.vocab_size <= 2**16 else 4) / place.nodes
    cache = float(place.env.get("SLUICE_CACHE_GB") or CACHE_GB) * 1e9
    return float(saving["scratch_gb"] * 1e9 / place.nodes + saving["bytes"] + min(read, cache))


def _scratch(spec: k8s.V1PodSpec) -> k8s.V1Volume | None:
    """Returns the volume at /tmp, where scratch and cache are, or None where it is the container's own layer."""
    names = {mount.name for mount in spec.containers[0].volume_mounts or [] if mount.mount_path == "/tmp"}
    return next((volume for volume in spec.volumes or [] if volume.name in names), None)


def _with_placement(template: k8s.V1PodSpec, own: k8s.V1PodSpec) -> None:
    # The provider's merge would drop the template's as soon as the place has any.
    keys = {one.key for one in template.tolerations or []}
    own.tolerations = [*(template.tolerations or []), *(one for one in own.tolerations if one.key not in keys)]
    own.node_selector = {**(template.node_selector or {}), **(own.node_selector or {})} or None


def _with_shared_memory(pod: k8s.V1Pod) -> k8s.V1Pod:
    """Adds a /dev/shm larger than the 64 MiB of container runtimes: data loaders and NCCL share memory there.

    It counts against the container's memory limit, so that limit bounds it, and no size of its own is set.
    """
    [container, *_] = pod.spec.containers
    mounts: Sequence[k8s.V1VolumeMount] = container.volume_mounts or []
    if any(mount.mount_path == "/dev/shm" for mount in mounts):
        return pod
    container.volume_mounts = [*mounts, k8s.V1VolumeMount(name="shm", mount_path="/dev/shm")]
    memory = k8s.V1EmptyDirVolumeSource(medium="Memory")
    pod.spec.volumes = [*(pod.spec.volumes or []), k8s.V1Volume(name="shm", empty_dir=memory)]
    return pod

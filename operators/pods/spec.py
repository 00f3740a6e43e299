"""Manifest of a stage's pod: `[place.kubernetes]` merged over the pod template file of the place.

The pod runs `python -u -m tasks <stage> --recipe '<json>' --version ...` and writes its artifact to the store; it
needs neither the Kubernetes API nor a sidecar.

No secret is in a pod's spec: `[place.kubernetes] secrets` names Kubernetes secrets (`envFrom`), `service_account`
provides workload identity. The template file is for settings that recipes do not have: volumes, security context,
affinity, host network, resources of other devices. The first container of the template is the stage's.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator
from kubernetes.client import ApiClient
from kubernetes.client import models as k8s

from operators.pods.disk import request_disk
from tasks.core.errors import RecipeError
from tasks.run.place import KubernetesPlace, expand_all
from tasks.run.recipe import Recipe

CONTAINER = "base"
"""Name of the stage's container; the provider's default."""

SAVE_MARGIN_S = 20
"""Seconds by which torchrun's time limit for saving is below the pod's grace period."""

_NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def place_of(recipe: Recipe) -> KubernetesPlace:
    """Returns `[place.kubernetes]` of a recipe; raises RecipeError if it is missing or incomplete."""
    place = recipe.place.kubernetes
    if place is None:
        raise RecipeError(
            f'{recipe.name}: [place.train] where is "kubernetes" but there is no [place.kubernetes]',
            'add the section, or write where = "local"',
        )
    place = expand_all(place)
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
        spec=_spec(place),
    )
    if place.template:
        template = _template(recipe, place)
        template.spec.containers[0].name = CONTAINER
        _without_repeated_env(template.spec.containers[0], pod.spec.containers[0])
        _with_resources(template.spec.containers[0], pod.spec.containers[0])
        _with_placement(template.spec, pod.spec)
        pod = PodGenerator.reconcile_pods(template, pod)
    request_disk(pod.spec, recipe, place, stage)
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


def _spec(place: KubernetesPlace) -> k8s.V1PodSpec:
    container = k8s.V1Container(
        name=CONTAINER,
        image=place.image,
        image_pull_policy="IfNotPresent",
        command=["python", "-u"],
        env=[k8s.V1EnvVar(name=name, value=value) for name, value in _environment(place).items()],
        env_from=[k8s.V1EnvFromSource(secret_ref=k8s.V1SecretEnvSource(name=name)) for name in place.secrets],
        resources=_resources(place),
        # The last lines of the log become the termination message, which names the error if the log cannot be read.
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
        # A stage never uses the Kubernetes API. Workload identity has a separate token.
        automount_service_account_token=False,
        termination_grace_period_seconds=place.grace_s,
    )


def _environment(place: KubernetesPlace) -> dict[str, str]:
    return {
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(place.grace_s - SAVE_MARGIN_S),
        "PYTHONUNBUFFERED": "1",
        **place.env,
    }


def _resources(place: KubernetesPlace) -> k8s.V1ResourceRequirements:
    size = {"cpu": place.cpu, "memory": place.memory}
    gpus = {"nvidia.com/gpu": str(place.gpus)} if place.gpus else {}
    # No CPU limit: a throttled data loader starves the GPU. Requests and limits of GPUs must be equal.
    return k8s.V1ResourceRequirements(requests={**size, **gpus}, limits={"memory": place.memory, **gpus})


def _tolerations(place: KubernetesPlace) -> list[k8s.V1Toleration]:
    configured = [
        k8s.V1Toleration(key=entry.key, operator=entry.operator, value=entry.value or None, effect=entry.effect)
        for entry in place.tolerations
    ]
    # How long a node may be unreachable (its kubelet restarts) before Kubernetes evicts its pods.
    unreachable = [
        k8s.V1Toleration(key=key, operator="Exists", effect="NoExecute", toleration_seconds=place.node_silent_s)
        for key in _NOT_READY
        if key not in {entry.key for entry in place.tolerations}
    ]
    return configured + unreachable


def _template(recipe: Recipe, place: KubernetesPlace) -> k8s.V1Pod:
    path = _template_path(place.template)
    try:
        pod = PodGenerator.deserialize_model_file(str(path)) if path else None
    except Exception as error:
        raise _bad_template(recipe, place, " ".join(str(error).split())) from None
    if pod is None:
        raise RecipeError(
            f"{recipe.name}: [place.kubernetes] template {place.template} does not exist",
            f"give its path relative to one of {', '.join(map(str, _folders()))}; every worker needs the file",
        )
    if pod.spec is None or not pod.spec.containers:
        raise _bad_template(recipe, place, "it has no spec.containers")
    pod.metadata = pod.metadata or k8s.V1ObjectMeta()
    return pod


def _template_path(template: str) -> Path | None:
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
    # The merge concatenates lists; a variable must not occur twice.
    names = {variable.name for variable in own.env}
    template.env = [variable for variable in template.env or [] if variable.name not in names]


def _with_resources(template: k8s.V1Container, own: k8s.V1Container) -> None:
    # The provider's merge would drop the template's resources, such as network devices.
    base = template.resources or k8s.V1ResourceRequirements()
    own.resources.requests = {**(base.requests or {}), **own.resources.requests}
    own.resources.limits = {**(base.limits or {}), **own.resources.limits}


def _with_placement(template: k8s.V1PodSpec, own: k8s.V1PodSpec) -> None:
    # The provider's merge would drop the template's tolerations and selector if the place has any.
    keys = {entry.key for entry in template.tolerations or []}
    own.tolerations = [*(template.tolerations or []), *(entry for entry in own.tolerations if entry.key not in keys)]
    own.node_selector = {**(template.node_selector or {}), **(own.node_selector or {})} or None


def _with_shared_memory(pod: k8s.V1Pod) -> k8s.V1Pod:
    """Adds a /dev/shm larger than the default 64 MiB: data loaders and NCCL share memory there.

    It has no size limit, because it counts against the container's memory limit.
    """
    [container, *_] = pod.spec.containers
    mounts: Sequence[k8s.V1VolumeMount] = container.volume_mounts or []
    if any(mount.mount_path == "/dev/shm" for mount in mounts):
        return pod
    container.volume_mounts = [*mounts, k8s.V1VolumeMount(name="shm", mount_path="/dev/shm")]
    memory = k8s.V1EmptyDirVolumeSource(medium="Memory")
    pod.spec.volumes = [*(pod.spec.volumes or []), k8s.V1Volume(name="shm", empty_dir=memory)]
    return pod

"""The node's disk that the pod of a stage requests, by the plan of the stage.

The scratch volume of a pod is on the node's disk, and a pod that uses more than it requested is evicted first. A size
is planned for trainings, canaries and evaluations of what the recipe trains. A fine-tuning may start from a model whose
size is known only when it runs: there the defaults of the namespace apply.
"""

import math

from kubernetes.client import models as k8s

from operators.pods.waiting import quantity
from tasks.core.errors import RecipeError
from tasks.run.place import KubernetesPlace
from tasks.run.recipe import Recipe
from tasks.stages.canary import CanaryConfig
from tasks.stages.tokens import PackConfig, TokenizerConfig
from tasks.trainer.config import TrainConfig
from tasks.trainer.model.shape import ModelShape
from tasks.trainer.planning.estimate import checkpoint_bytes, kept_checkpoints
from tasks.trainer.tuning.memory import Workload

DISK = "ephemeral-storage"
SPARE_GIB = 20
"""GiB of the node's disk in addition to a scratch volume: logs and other files of the container."""
CACHE_GB = 50.0
"""Size of the shard cache in GB if the place's `env` does not set SLUICE_CACHE_GB."""
FP32 = 4
"""Bytes of a weight in a checkpoint."""
_GIB = 2**30


def request_disk(spec: k8s.V1PodSpec, recipe: Recipe, place: KubernetesPlace, stage: str) -> None:
    """Requests the planned disk space of a stage if scratch is on the node and the template has no such request.

    Raises:
        RecipeError: the scratch volume of the template is too small for the plan.
    """
    resources, volume = spec.containers[0].resources, _scratch(spec)
    on_node = volume is None or (volume.empty_dir is not None and volume.empty_dir.medium != "Memory")
    if DISK in {**resources.requests, **resources.limits} or not on_node:
        return
    needed = math.ceil(planned_bytes(recipe, place, stage) / _GIB)
    # One GiB or less fits on every node, and needs no quota for disk in the queue.
    if needed <= 1:
        return
    size_gib = float(needed)
    if volume is not None and volume.empty_dir.size_limit:
        size_gib = quantity(volume.empty_dir.size_limit) / _GIB
        if needed > size_gib:
            raise RecipeError(
                f"{recipe.name}: {stage} needs {needed} GiB of scratch in each pod, but the volume {volume.name} "
                f"of [place.kubernetes] template {place.template} holds {size_gib:.0f} GiB",
                "raise its sizeLimit, use a template with a larger volume, or keep fewer checkpoints and milestones",
            )
    resources.requests[DISK] = f"{needed}Gi"
    resources.limits.setdefault(DISK, f"{math.ceil(size_gib) + SPARE_GIB}Gi")


def planned_bytes(recipe: Recipe, place: KubernetesPlace, stage: str) -> float:
    """Returns the maximum scratch space of a pod of a stage, in bytes; 0 if there is no plan for the stage.

    For a training it is the pod's part of the checkpoints that the run keeps, one more checkpoint (being written, or
    fetched whole after a loss), and the shards that it reads, up to the size of the cache. If a replica spans nodes,
    node 0 fetches a milestone from the others before it writes it whole, which takes another checkpoint. A canary is
    such a training on one node. An evaluation has the weights of every milestone in its cache, at least those of one.
    """
    cache = float(place.env.get("SLUICE_CACHE_GB") or CACHE_GB) * 1e9
    if stage == "train":
        nproc, layout = recipe.place.train.nproc, recipe.place.train.layout
        is_spread = layout is not None and layout.ranks // layout.replicate > nproc
        copies = 2 if is_spread else 1
        return _training_bytes(recipe, recipe.of(TrainConfig), place.nodes, cache, copies)
    if stage in ("canary", "confirm"):
        config = recipe.of(CanaryConfig)
        arms = [{"confirms": stage == "confirm"}]
        if config.widths and stage == "canary":
            arms.append(config.widths.arms({"arm": ""})[-1])  # the widest
        return max(_training_bytes(recipe, config.training(0, arm), 1, cache, 1) for arm in arms)
    if stage == "evaluate":
        train = recipe.of(TrainConfig)
        weights = float(FP32 * _shape(recipe, train).weights["total"])
        return min(len(train.milestone_steps) * weights, max(cache, weights))
    return 0.0


def _training_bytes(recipe: Recipe, run: TrainConfig, nodes: int, cache: float, copies: int) -> float:
    """Returns the scratch space of each of the nodes of a training, with space for `copies` more whole checkpoints."""
    shape, seq_len = _shape(recipe, run), recipe.of(PackConfig).seq_len
    size = checkpoint_bytes(Workload(run, shape, seq_len))
    read = run.samples(run.steps) * seq_len * (2 if shape.vocab_size <= 2**16 else 4) / nodes
    return (kept_checkpoints(run) + run.keep_checkpoints) * size / nodes + copies * size + min(read, cache)


def _shape(recipe: Recipe, run: TrainConfig) -> ModelShape:
    return ModelShape.of(run.model, recipe.of(TokenizerConfig).vocab_size)


def _scratch(spec: k8s.V1PodSpec) -> k8s.V1Volume | None:
    """Returns the volume at /tmp, which has scratch and cache, or None if /tmp is in the container's layer."""
    names = {mount.name for mount in spec.containers[0].volume_mounts or [] if mount.mount_path == "/tmp"}
    return next((volume for volume in spec.volumes or [] if volume.name in names), None)

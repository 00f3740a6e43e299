"""The TrainJob of a stage on several nodes: a gang that Kubeflow Trainer starts, as a JobSet of the same name.

A TrainJob refers to a TrainingRuntime, which an administrator applies once per recipe:
`python -m operators.jobsets.trainjob RECIPE | kubectl apply -f -`. The runtime is the JobSet of `manifest` for the
recipe's place, so restarts, volumes, secrets and security are those of a gang without Trainer. The TrainJob gives what
differs from run to run: nodes, ranks, image, command, variables, resources, labels. Trainer itself sets torchrun's
settings (`PET_*`).

Written for `trainer.kubeflow.org/v1alpha1` (2.3).
"""

import json
import sys

from kubernetes.client import models as k8s

from operators.jobsets.manifest import QUEUE, RANKS, jobset, same_zone
from operators.pods.failure import Object
from operators.pods.spec import manifest, place_of, stage_pod
from tasks.run.place import KubernetesPlace
from tasks.run.recipe import Recipe, find_recipe

API = "trainer.kubeflow.org/v1alpha1"

NODE = "node"
"""Name that Trainer requires of the container that it configures."""

STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
"""Label of the replicated job that runs `spec.trainer`."""

MANAGER = "sluice.dev/operator"


def training_runtime(recipe: Recipe) -> Object:
    """Returns the TrainingRuntime of a recipe: the JobSet of the stage `train`, without what a TrainJob gives.

    Raises:
        RecipeError: the place is incomplete.
    """
    place = place_of(recipe)
    spec = jobset(stage_pod(recipe, "train"), "runtime", place, recipe.place.train.nproc)["spec"]
    # The names of JobSet and subdomain are the TrainJob's; Kueue suspends the TrainJob.
    del spec["network"]["subdomain"]
    spec.pop("suspend", None)
    [group] = spec["replicatedJobs"]
    group["template"]["metadata"] = {"labels": STEP}
    job = group["template"]["spec"]
    job["podFailurePolicy"]["rules"][0]["onExitCodes"]["containerName"] = NODE
    pod = job["template"]["spec"]
    del pod["affinity"]  # the TrainJob's: it contains the name
    container = pod["containers"][0]
    container["name"] = NODE
    container["env"] = []
    return {
        "apiVersion": API,
        "kind": "TrainingRuntime",
        "metadata": {
            "name": place.training_runtime,
            "namespace": place.namespace,
            "labels": {"trainer.kubeflow.org/framework": "torch"},
        },
        "spec": {"mlPolicy": {"numNodes": place.nodes, "torch": {}}, "template": {"spec": spec}},
    }


def trainjob(pod: k8s.V1Pod, name: str, place: KubernetesPlace, nproc: int) -> Object:
    """Returns the manifest of the TrainJob `name`.

    Args:
        pod: the stage's pod, with its arguments.
        name: at most 40 characters: a host name adds 23.
        place: nodes, queue, runtime.
        nproc: ranks per node.
    """
    body = manifest(pod)
    labels = dict(body["metadata"].get("labels") or {})
    container = body["spec"]["containers"][0]
    given = {key: container[key] for key in ("image", "command", "args") if container.get(key)}
    trainer = {
        **given,
        "numNodes": place.nodes,
        "numProcPerNode": nproc,
        "env": [one for one in container.get("env") or [] if not one["name"].startswith("PET_")],
        "resourcesPerNode": container["resources"],
    }
    pod_labels = {key: value for key, value in labels.items() if key != QUEUE}
    affinity = body["spec"].get("affinity") or same_zone(name)
    patch = {"metadata": {"labels": pod_labels}, "spec": {"affinity": affinity}}
    job = {"name": RANKS, "template": {"spec": {"template": patch}}}
    return {
        "apiVersion": API,
        "kind": "TrainJob",
        "metadata": {"name": name, "namespace": place.namespace, "labels": labels},
        "spec": {
            **({"suspend": True} if place.queue else {}),
            "runtimeRef": {"kind": "TrainingRuntime", "name": place.training_runtime},
            "trainer": trainer,
            "runtimePatches": [
                {
                    "manager": MANAGER,
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}},
                }
            ],
        },
    }


def main() -> None:
    """Prints the TrainingRuntime of the recipe in the command line, as JSON."""
    print(json.dumps(training_runtime(find_recipe(sys.argv[1])), indent=2))


if __name__ == "__main__":
    main()

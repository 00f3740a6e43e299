"""Renders a Kustomize folder in Python: exactly the features that k8s/ uses; all others raise an error.

Reads kustomization.yaml and its references; returns the objects.

Supported: resources, namespace, labels (metadata only), images, and patches in two forms: a list of JSON 6902
    operations
with a target, and an object that is merged into the one of its name. A merged patch may have lists only if Kustomize
replaces them (custom resources): for built-in kinds it joins lists by keys, which is not supported.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]

KNOWN = {"apiVersion", "kind", "resources", "namespace", "labels", "images", "patches"}
CLUSTER_WIDE = {
    *("Namespace", "PriorityClass", "StorageClass", "ClusterRole", "ClusterRoleBinding"),
    *("ResourceFlavor", "ClusterQueue", "WorkloadPriorityClass", "Topology"),
}
POD_HOLDERS = {"Deployment", "StatefulSet", "DaemonSet", "Job"}


class NotKnown(Exception):
    """k8s/ uses a feature of Kustomize that this renderer does not support."""


def render(folder: Path) -> list[Object]:
    """Returns the objects of a Kustomize folder, in file order."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    _only(kustomization, KNOWN, folder / "kustomization.yaml")
    objects = [found for name in kustomization["resources"] for found in _resource(folder / name)]
    for patch in kustomization.get("patches", []):
        _patch(objects, patch, folder)
    for found in objects:
        if "namespace" in kustomization and found["kind"] not in CLUSTER_WIDE:
            found["metadata"]["namespace"] = kustomization["namespace"]
        for entry in kustomization.get("labels", []):
            _label(found, entry, folder)
        for image in kustomization.get("images", []):
            _image(found, image, folder)
    _unique(objects, folder)
    return objects


def containers(pod: Object) -> Iterator[Object]:
    """Yields all containers of a pod spec."""
    yield from pod.get("initContainers") or []
    yield from pod["containers"]


def pod_of(found: Object) -> Object | None:
    """Returns the pod spec inside an object, or None."""
    if found["kind"] == "Pod":
        return found["spec"]
    return found["spec"]["template"]["spec"] if found["kind"] in POD_HOLDERS else None


def _resource(path: Path) -> list[Object]:
    if path.is_dir():
        return render(path)
    return [found for found in yaml.safe_load_all(path.read_text()) if found]


def _patch(objects: list[Object], patch: Object, folder: Path) -> None:
    _only(patch, {"path", "patch", "target"}, folder)
    text = (folder / patch["path"]).read_text() if "path" in patch else patch["patch"]
    for change in (found for found in yaml.safe_load_all(text) if found):
        if isinstance(change, list):
            for found in _selected(objects, patch["target"], folder):
                for operation in change:
                    _operate(found, operation)
        elif "target" in patch:
            raise NotKnown(f"{folder}: a merged patch with a target")
        else:
            names = {"kind": change["kind"], "name": change["metadata"]["name"]}
            namespace = change["metadata"].get("namespace")
            [found] = _selected(objects, {**names, **({"namespace": namespace} if namespace else {})}, folder)
            _merge(found, change, lists="." in change["apiVersion"].split("/")[0], at=str(names))


def _selected(objects: list[Object], target: Object, folder: Path) -> list[Object]:
    _only(target, {"kind", "name", "namespace"}, folder)
    found = [
        one
        for one in objects
        if one["kind"] == target["kind"]
        and one["metadata"]["name"] == target["name"]
        and target.get("namespace") in (None, one["metadata"].get("namespace"))
    ]
    if not found:
        raise NotKnown(f"{folder}: a patch for {target}, of which there is none")
    return found


def _merge(into: Object, change: Object, *, lists: bool, at: str) -> None:
    for key, value in change.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value, lists=lists, at=f"{at}.{key}")
        elif isinstance(value, list) and not lists:
            raise NotKnown(f"{at}.{key}: a list in a merged patch of a built-in kind; write a JSON 6902 patch")
        else:
            into[key] = copy.deepcopy(value)


def _operate(found: Object, operation: Object) -> None:
    _only(operation, {"op", "path", "value"}, found["metadata"]["name"])
    *steps, last = [step.replace("~1", "/").replace("~0", "~") for step in operation["path"].lstrip("/").split("/")]
    holder: Any = found
    for step in steps:
        holder = holder[int(step) if isinstance(holder, list) else step]
    key: Any = int(last) if isinstance(holder, list) else last
    if operation["op"] not in ("replace", "add", "remove") or (isinstance(holder, list) and operation["op"] == "add"):
        raise NotKnown(f"JSON patch operation {operation['op']} at {operation['path']}")
    if operation["op"] != "add":
        del holder[key]
    if operation["op"] != "remove":
        value = copy.deepcopy(operation["value"])
        holder.insert(key, value) if isinstance(holder, list) else holder.update({key: value})


def _label(found: Object, entry: Object, folder: Path) -> None:
    if set(entry) != {"pairs", "includeSelectors"} or entry["includeSelectors"]:
        raise NotKnown(f"{folder}: labels beyond pairs with includeSelectors: false")
    found["metadata"].setdefault("labels", {}).update(entry["pairs"])


def _image(found: Object, image: Object, folder: Path) -> None:
    _only(image, {"name", "newName", "newTag", "digest"}, folder)
    for container in containers(pod_of(found) or {"containers": []}):
        name, _, tag = container["image"].rpartition(":")
        if name == image["name"]:
            version = f"@{image['digest']}" if "digest" in image else f":{image.get('newTag', tag)}"
            container["image"] = image.get("newName", name) + version


def _unique(objects: list[Object], folder: Path) -> None:
    names = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in objects]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise NotKnown(f"{folder}: the same object twice: {sorted(map(str, twice))}")


def _only(found: Object, known: set[str], where: Any) -> None:
    if unknown := set(found) - known:
        raise NotKnown(f"{where}: {', '.join(sorted(unknown))}")

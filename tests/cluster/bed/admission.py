"""Admission of objects before they are stored: names, namespaces, rights, quota, pod defaults."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.cluster.bed import quantity
from tests.cluster.bed.resources import (
    JOBS,
    LIMIT_RANGES,
    NAMESPACES,
    PODS,
    PRIORITY_CLASSES,
    QUOTAS,
    RUNTIME_CLASSES,
    SERVICE_ACCOUNTS,
    Object,
    Resource,
    forbidden,
    invalid,
    not_found,
)
from tests.k8s.admission import limited

if TYPE_CHECKING:
    from tests.cluster.bed.store import Store

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_RULE = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
_RULE += "and must start and end with an alphanumeric character"


def admit(store: Store, resource: Resource, obj: Object) -> None:
    """Checks a new object, and fills in the defaults of a pod.

    Raises:
        ApiError: 403, 404 or 422, worded as the API server does.
    """
    meta = obj["metadata"]
    namespace = meta.get("namespace", "")
    if resource.namespaced and store.find(NAMESPACES, "", namespace) is None:
        raise not_found(NAMESPACES, namespace)
    check_names(resource, meta)
    if resource == QUOTAS:
        obj["status"] = {"hard": (obj.get("spec") or {}).get("hard") or {}}
    if resource == PODS:
        _check_pod(obj)
        _references(store, obj)
        _defaults(obj)
        obj["spec"] = with_limits(store, namespace, obj["spec"])
        _canonical(obj["spec"])
        _quota(store, obj)
    if resource == JOBS:
        _canonical(obj["spec"]["template"]["spec"])


def with_limits(store: Store, namespace: str, spec: Object) -> Object:
    """Returns a pod spec with the defaults of its namespace's LimitRanges; Kueue also adds them to a gang's pods."""
    for one in store.select(LIMIT_RANGES, namespace):
        spec = limited(spec, one)
    return spec


def _canonical(spec: Object) -> None:
    """Canonicalizes the quantities of built-in kinds like the server; custom resources are unchanged."""
    for one in [*spec.get("containers", []), *(spec.get("initContainers") or [])]:
        for sizes in (one.get("resources") or {}).values():
            sizes |= {what: quantity.canonical(amount) for what, amount in sizes.items()}


def check_names(resource: Resource, meta: Object) -> None:
    """Refuses a name or a label value with characters that Kubernetes does not allow."""
    name = meta.get("name") or meta.get("generateName", "").rstrip("-.") or "x"
    if not _NAME.fullmatch(name) or len(name) > 253:
        raise invalid(resource, name, f'metadata.name: Invalid value: "{name}": {_RULE}')
    for key, value in (meta.get("labels") or {}).items():
        if not isinstance(value, str) or len(value) > 63:
            raise invalid(resource, name, f'metadata.labels: Invalid value: "{value}": must be no more than 63 bytes')
        if not _VALUE.fullmatch(value) or not key:
            rule = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.'"
            raise invalid(resource, name, f'metadata.labels: Invalid value: "{value}": {rule}')


def _check_pod(pod: Object) -> None:
    name, spec = pod["metadata"].get("name", "x"), pod.get("spec") or {}
    if not spec.get("containers"):
        raise invalid(PODS, name, "spec.containers: Required value")
    for at, one in enumerate(spec["containers"]):
        for wanted in ("name", "image"):
            if not one.get(wanted):
                raise invalid(PODS, name, f"spec.containers[{at}].{wanted}: Required value")
        sizes = one.get("resources") or {}
        for what, limit in (sizes.get("limits") or {}).items():
            asked = (sizes.get("requests") or {}).get(what, limit)
            if quantity.number(asked) > quantity.number(limit):
                where = f"spec.containers[{at}].resources.requests"
                raise invalid(
                    PODS, name, f'{where}: Invalid value: "{asked}": must be less than or equal to {what} limit'
                )


def _references(store: Store, pod: Object) -> None:
    name, spec, namespace = pod["metadata"].get("name", "x"), pod["spec"], pod["metadata"]["namespace"]
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account and account != "default" and store.find(SERVICE_ACCOUNTS, namespace, account) is None:
        why = f'error looking up service account {namespace}/{account}: serviceaccount "{account}" not found'
        raise forbidden(PODS, name, why)
    if (runtime := spec.get("runtimeClassName")) and store.find(RUNTIME_CLASSES, "", runtime) is None:
        raise forbidden(PODS, name, f'pod rejected: RuntimeClass "{runtime}" not found')
    if priority := spec.get("priorityClassName"):
        found = store.find(PRIORITY_CLASSES, "", priority)
        if found is None:
            raise forbidden(PODS, name, f"no PriorityClass with name {priority} was found")
        spec["priority"] = found.get("value", 0)


def _defaults(pod: Object) -> None:
    spec = pod["spec"]
    given = dict(spec)
    spec |= {"restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "serviceAccountName": "default"}
    spec |= {"schedulerName": "default-scheduler", "dnsPolicy": "ClusterFirst", "priority": 0, "securityContext": {}}
    spec |= {key: value for key, value in given.items() if value is not None}
    if spec.get("schedulingGates") is None:
        spec.pop("schedulingGates", None)
    spec["tolerations"] = list(spec.get("tolerations") or [])
    for what in ("not-ready", "unreachable"):
        key = f"node.kubernetes.io/{what}"
        if not any(one.get("key") == key for one in spec["tolerations"]):
            forgiven = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            spec["tolerations"].append(forgiven)
    for one in [*spec.get("containers", []), *(spec.get("initContainers") or [])]:
        one.setdefault("imagePullPolicy", "Always" if one["image"].endswith(":latest") else "IfNotPresent")
        one.setdefault("terminationMessagePath", "/dev/termination-log")
        one.setdefault("terminationMessagePolicy", "File")
        sizes = one.setdefault("resources", {})
        if sizes.get("limits"):
            sizes["requests"] = {**sizes["limits"], **(sizes.get("requests") or {})}
    pod["status"] = {"phase": "Pending", "qosClass": "Burstable"}


def _quota(store: Store, pod: Object) -> None:
    asked = quantity.requests(pod["spec"])
    for quota in store.select(QUOTAS, pod["metadata"]["namespace"]):
        used = quantity.total(
            [
                quantity.requests(one["spec"])
                for one in store.select(PODS, pod["metadata"]["namespace"])
                if (one.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
            ]
        )
        for what, limit in (quota["spec"].get("hard") or {}).items():
            plain = what.removeprefix("requests.")
            want = 1.0 if what in ("pods", "count/pods") else asked.get(plain, 0.0)
            have = float(used.get("pods" if want and plain in ("pods", "count/pods") else plain, 0.0))
            if want and have + want > quantity.number(limit):
                numbers = f"requested: {what}={want:g}, used: {what}={have:g}, limited: {what}={limit}"
                why = f"exceeded quota: {quota['metadata']['name']}, {numbers}"
                raise forbidden(PODS, pod["metadata"].get("name", "x"), why)

"""The kinds of the API, and its errors, in the words of a Kubernetes API server."""

from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True)
class Resource:
    """One kind of object with its API path."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`v1`, or `group/version`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """`pods`, or `jobsets.jobset.x-k8s.io`: its name in errors."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


PODS = Resource("", "v1", "pods", "Pod")
EVENTS = Resource("", "v1", "events", "Event")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
SECRETS = Resource("", "v1", "secrets", "Secret")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
SERVICES = Resource("", "v1", "services", "Service")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
LIMIT_RANGES = Resource("", "v1", "limitranges", "LimitRange")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
JOBS = Resource("batch", "v1", "jobs", "Job")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
RUNTIME_CLASSES = Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False)
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)

BUILT_IN = (
    PODS,
    EVENTS,
    NODES,
    NAMESPACES,
    SECRETS,
    CONFIG_MAPS,
    SERVICES,
    SERVICE_ACCOUNTS,
    QUOTAS,
    LIMIT_RANGES,
    CLAIMS,
    JOBS,
    DEPLOYMENTS,
    LEASES,
    BUDGETS,
    ROLES,
    ROLE_BINDINGS,
    RUNTIME_CLASSES,
    PRIORITY_CLASSES,
    CRDS,
)


class ApiError(Exception):
    """An error response; `body` is the Status object."""

    def __init__(self, code: int, reason: str, message: str, details: Object | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.headers: dict[str, str] = {}
        self.body: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        self.body |= {"message": message, "code": code}
        self.body |= {"reason": reason} if reason else {}
        self.body |= {"details": details} if details else {}


def not_found(resource: Resource, name: str) -> ApiError:
    """404 of one object."""
    details = {"name": name, "group": resource.group, "kind": resource.plural}
    return ApiError(404, "NotFound", f'{resource.qualified} "{name}" not found', details)


def already_exists(resource: Resource, name: str) -> ApiError:
    """409 for an existing name."""
    details = {"name": name, "group": resource.group, "kind": resource.plural}
    return ApiError(409, "AlreadyExists", f'{resource.qualified} "{name}" already exists', details)


def conflict(resource: Resource, name: str) -> ApiError:
    """409 for an update with an old resource version."""
    said = "the object has been modified; please apply your changes to the latest version and try again"
    return ApiError(409, "Conflict", f'Operation cannot be fulfilled on {resource.qualified} "{name}": {said}')


def forbidden(resource: Resource, name: str, why: str) -> ApiError:
    """403 from an admission plug-in."""
    details = {"name": name, "group": resource.group, "kind": resource.plural}
    return ApiError(403, "Forbidden", f'{resource.qualified} "{name}" is forbidden: {why}', details)


def invalid(resource: Resource, name: str, why: str) -> ApiError:
    """422 for an invalid object."""
    details = {"name": name, "group": resource.group, "kind": resource.kind}
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    return ApiError(422, "Invalid", f'{kind} "{name}" is invalid: {why}', details)


def expired(version: str, oldest: int) -> ApiError:
    """410 for a watch or list from an expired version."""
    return ApiError(410, "Expired", f"too old resource version: {version} ({oldest})")

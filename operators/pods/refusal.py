"""Failures for refusals of the API server: the server's message as cause, and a remedy.

A refusal is a response, not an outage, and the same call would be refused again: the failure is permanent.
"""

from operators.pods.api import Kind
from operators.pods.failure import PodFailure
from operators.pods.outage import Refused

_REMEDIES = (
    ("exceeded quota", "ask for less in [place.kubernetes], or have the quota of the namespace raised"),
    ("PriorityClass", "make the priority class, or correct [place.kubernetes] priority_class"),
    ("RuntimeClass", "make the runtime class, or correct [place.kubernetes] runtime_class"),
    ("serviceaccount", "make the service account, or correct [place.kubernetes] service_account"),
    ("namespaces ", "make the namespace, or correct [place.kubernetes] namespace"),
    ("could not find the requested resource", "install JobSet (k8s/ says which version), or write nodes = 1"),
    ("page not found", "install JobSet (k8s/ says which version), or write nodes = 1"),
)


def refused(error: Refused, kind: Kind, namespace: str) -> PodFailure:
    """Returns the failure of a task whose call about `kind` objects in `namespace` was refused."""
    message = " ".join(error.message.split())
    cause = f"Kubernetes refuses {kind.plural} in namespace {namespace} ({error.status}): {message}"
    return PodFailure("config", cause, True, _remedy(error.status, message, kind, namespace))


def no_cluster(conn_id: str, error: Exception) -> PodFailure:
    """Returns the failure of a task whose Airflow connection cannot be used."""
    cause = f"the connection {conn_id} does not lead to a Kubernetes cluster: {error}"
    return PodFailure("config", cause, True, "give it a kubeconfig that is there, or in_cluster")


def _remedy(status: int, message: str, kind: Kind, namespace: str) -> str:
    # A 403 that names no object ('pods is forbidden: User "x" cannot create resource ...') is one of rights.
    if "cannot " not in message:
        for words, remedy in _REMEDIES:
            if words in message and (status != 403 or words != "namespaces "):
                return remedy
    if status in (401, 403):
        return f"give Airflow's service account the rights on {kind.plural} in {namespace} that k8s/ lists"
    if status == 404 and kind.plural == "jobsets":
        return "install JobSet (k8s/ says which version), or write nodes = 1"
    return "correct [place.kubernetes] or its template"

"""Failures for error responses of the API server: the server's message as the cause, and a remedy.

The failures are permanent: unlike during an outage, the same call would be refused again.
"""

from operators.pods.api import Kind
from operators.pods.failure import PodFailure
from operators.pods.outage import Refused

_MISSING = {
    "jobsets": "install JobSet (for the version see k8s/), or write nodes = 1",
    "trainjobs": 'install Kubeflow Trainer, or write gang = "jobset" in [place.kubernetes]',
}

_REMEDIES = (
    ("exceeded quota", "request less in [place.kubernetes], or raise the quota of the namespace"),
    ("PriorityClass", "create the priority class, or correct [place.kubernetes] priority_class"),
    ("RuntimeClass", "create the runtime class, or correct [place.kubernetes] runtime_class"),
    ("serviceaccount", "create the service account, or correct [place.kubernetes] service_account"),
    ("namespaces ", "create the namespace, or correct [place.kubernetes] namespace"),
    ("TrainingRuntime", "write it: python -m operators.jobsets.trainjob RECIPE | kubectl apply -f -"),
)


def refusal_failure(error: Refused, kind: Kind, namespace: str) -> PodFailure:
    """Returns the failure of a task whose request for `kind` objects in `namespace` was refused."""
    message = " ".join(error.message.split())
    cause = f"Kubernetes refuses {kind.plural} in namespace {namespace} ({error.status}): {message}"
    return PodFailure("config", cause, True, _remedy(error.status, message, kind, namespace))


def connection_failure(conn_id: str, error: Exception) -> PodFailure:
    """Returns the failure of a task whose Airflow connection cannot be used."""
    cause = f"the connection {conn_id} does not configure a Kubernetes cluster: {error}"
    return PodFailure("config", cause, True, "give it an existing kubeconfig, or set in_cluster")


def _remedy(status: int, message: str, kind: Kind, namespace: str) -> str:
    # A 403 with "cannot" ('pods is forbidden: User "x" cannot create resource ...') means missing rights.
    if "cannot " not in message:
        for words, remedy in _REMEDIES:
            if words in message and (status != 403 or words != "namespaces "):
                return remedy
    if status in (401, 403):
        return f"give Airflow's service account the rights on {kind.plural} in {namespace} that k8s/ lists"
    if status == 404 and kind.plural in _MISSING:
        return _MISSING[kind.plural]
    return "correct [place.kubernetes] or its template"

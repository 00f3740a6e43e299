"""Classification of pod failures: kind, reason, and whether a retry can succeed.

Reads the pod as JSON and sends no requests, so that every class can be tested on recorded pods.

A permanent failure would occur again with the same pod: an invalid recipe, a missing image, a missing secret. All other
failures are retried, and the retry resumes from the newest checkpoint.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Object = dict[str, Any]
Cause = Literal["oom", "evicted", "preempted", "node_lost", "image", "config", "exit", "killed"]

PERMANENT_EXIT = 2
"""Exit code of `python -m tasks` for a permanent error."""

STOPPED_EXIT = 143
"""Exit code of a trainer that saved a checkpoint after SIGTERM."""

LAST_LINES = 20

_MISSING_IMAGE = ("not found", "manifest unknown", "denied", "unauthorized", "authentication required", "no such image",
               "not exist", "invalid reference")  # fmt: skip
_UNKNOWN_REGISTRY = ("no such host", "x509:", "server gave http response to https client")
_PULL_PREFIX = re.compile(
    r'^(?:Back-off pulling image "[^"]*": )?(?:\w*Err\w*: )?(?:[Ff]ailed to pull image "[^"]*": )*(?=.)'
)
_IMAGE_WAITS = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError")
_CONFIG_WAITS = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_CANNOT_START = ("ContainerCannotRun", "StartError")
_NODE_REASONS = ("NodeLost", "NodeShutdown", "Terminated", "Shutdown")
_EVICTIONS = ("EvictionByEvictionAPI", "DeletionByTaintManager", "DeletionByPodGC", "TerminationByKubelet")


@dataclass(frozen=True)
class PodFailure:
    """Failure of a pod.

    Args:
        kind: class of the failure.
        reason: description with the names of the objects.
        permanent: a retry cannot succeed.
        remedy: suggestion for the user; may be empty.
        exit_code: of the container, if it exited.
        last_lines: the last lines of its log.
    """

    kind: Cause
    reason: str
    permanent: bool = False
    remedy: str = ""
    exit_code: int | None = None
    last_lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        remedy = self.remedy and f" {self.remedy[0].upper()}{self.remedy[1:]}."
        return f"{self.reason.rstrip('.')}.{remedy}"

    def to_json(self) -> Object:
        """Returns the fields for a trigger event."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Object) -> "PodFailure":
        """Returns the failure from the fields of `to_json`."""
        return cls(**{**fields, "last_lines": tuple(fields.get("last_lines") or ())})


def has_ended(pod: Object) -> bool:
    """Returns whether the pod has ended for good."""
    return _status(pod).get("phase") in ("Succeeded", "Failed")


def has_succeeded(pod: Object, container: str) -> bool:
    """Returns whether the stage's container exited with 0; sidecars do not count."""
    ended = terminated(pod, container)
    return _status(pod).get("phase") == "Succeeded" or (ended is not None and ended.get("exitCode") == 0)


def terminated(pod: Object, container: str) -> Object | None:
    """Returns the termination state of a container (exitCode, reason, message), or None while it runs."""
    for status in _status(pod).get("containerStatuses") or []:
        if status["name"] == container:
            ended: Object | None = (status.get("state") or {}).get("terminated")
            return ended
    return None


def failure_of(pod: Object, container: str, tail: Sequence[str] = ()) -> PodFailure | None:
    """Returns the failure of a pod, or None if it runs or has succeeded.

    Args:
        pod: the pod as JSON.
        container: name of the stage's container.
        tail: the last lines of its log, for a pod without a termination message.

    A disruption takes precedence over the container's exit code: an evicted trainer exits with 143.
    """
    ended = terminated(pod, container)
    if has_succeeded(pod, container) or (ended is None and _status(pod).get("phase") != "Failed"):
        return None
    lines = _lines(ended) or tuple(tail)
    code = ended.get("exitCode") if ended else None
    if ended and ended.get("reason") == "OOMKilled":
        return _out_of_memory(pod, container, lines, code)
    if code == PERMANENT_EXIT:
        message = lines[-1].removeprefix("sluice: ") if lines else "the stage reports a permanent error"
        return PodFailure("config", message, True, exit_code=code, last_lines=lines)
    disruption = disruption_of(pod)
    if disruption:
        kind, reason = disruption
        return PodFailure(kind, reason, exit_code=code, last_lines=lines)
    return _init_failure(pod) or _exit_failure(pod, ended or {}, lines, code)


def disruption_of(pod: Object) -> tuple[Cause, str] | None:
    """Returns the disruption that ended the pod as (kind, reason), or None."""
    status, name = _status(pod), pod["metadata"]["name"]
    node = (pod.get("spec") or {}).get("nodeName", "")
    where = f"pod {name} on {node}" if node else f"pod {name}"
    reason, message = str(status.get("reason") or ""), _detail(status.get("message"))
    disrupted = condition_of(pod, "DisruptionTarget")
    by = str(disrupted.get("reason") or "") if disrupted else ""
    message = message or _detail(disrupted.get("message") if disrupted else "")
    if reason in _NODE_REASONS or by == "DeletionByTaintManager" or by == "DeletionByPodGC":
        return "node_lost", f"{where} was lost with its node{message}"
    if _preempted(pod, reason, by):
        return "preempted", f"{where} was preempted by work of higher priority{message}"
    if reason == "Evicted" or by in _EVICTIONS:
        return "evicted", f"{where} was evicted{message}"
    if status.get("phase") == "Unknown":
        return "node_lost", f"{where} has reported no status: its node does not respond{message}"
    return None


def deletion_failure(pod: Object) -> PodFailure:
    """Returns the failure of a pod that does not exist any more, from its last known state."""
    kind, reason = disruption_of(pod) or ("killed", f"pod {pod['metadata']['name']} was deleted while it ran")
    return PodFailure(kind, f"{reason}, and it left no artifact")


def start_failure(pod: Object, last_pull: str = "") -> PodFailure | None:
    """Returns the failure that prevents a container from starting (image, missing configuration), or None.

    Args:
        pod: the pod as JSON.
        last_pull: message of the last event of a failed pull. During the kubelet's back-off, the pod's status does not
            always include the reason.
    """
    status = _status(pod)
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason, message = str(waiting.get("reason") or ""), " ".join(str(waiting.get("message") or "").split())
        if reason in _IMAGE_WAITS:
            if reason == "ImagePullBackOff" and "Err" not in message and last_pull:
                message = last_pull
            return _image_failure(reason, message, str(container.get("image") or ""))
        if reason in _CONFIG_WAITS:
            return PodFailure(
                "config",
                f"the container cannot be created ({reason}): {message}",
                True,
                "create what is missing, such as the secrets of [place.kubernetes] secrets, in the pod's namespace",
            )
    return None


def registry_unreachable(failure: PodFailure) -> bool:
    """Returns whether the registry's name is unknown or its certificate is not trusted.

    The cause either disappears within minutes (a name server that restarts, a clock that is set), or never.
    """
    return failure.kind == "image" and any(word in failure.reason.lower() for word in _UNKNOWN_REGISTRY)


def _image_failure(reason: str, message: str, image: str) -> PodFailure:
    """Returns the failure of a pull: the same during the pull, the back-off and from events.

    The kubelet alternates between the two states; their difference is only a prefix.
    """
    cause = _PULL_PREFIX.sub("", message)
    if reason == "ImagePullBackOff" and cause != message:
        reason = "ErrImagePull"
    causes = _MISSING_IMAGE + _UNKNOWN_REGISTRY
    permanent = reason in ("InvalidImageName", "ErrImageNeverPull") or any(word in cause.lower() for word in causes)
    remedy = "check [place.kubernetes] image, and that the nodes may pull from its registry"
    return PodFailure("image", f"image {image} cannot be pulled ({reason}): {cause}", permanent, remedy)


def _init_failure(pod: Object) -> PodFailure | None:
    for status in _status(pod).get("initContainerStatuses") or []:
        ended = (status.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            code, lines = ended["exitCode"], _lines(ended)
            return PodFailure(
                "exit", f"init container {status['name']} ended with {code}", exit_code=code, last_lines=lines
            )
    return None


def _out_of_memory(pod: Object, container: str, lines: tuple[str, ...], code: int | None) -> PodFailure:
    limits = next(
        (
            (spec.get("resources") or {}).get("limits") or {}
            for spec in pod["spec"]["containers"]
            if spec["name"] == container
        ),
        {},
    )
    limit = limits.get("memory", "none")
    reason = f"pod {pod['metadata']['name']} ran out of memory (OOMKilled, limit {limit})"
    return PodFailure("oom", reason, False, "raise [place.kubernetes] memory or use a smaller microbatch", code, lines)


def _exit_failure(pod: Object, ended: Object, lines: tuple[str, ...], code: int | None) -> PodFailure:
    name = pod["metadata"]["name"]
    if ended.get("reason") in _CANNOT_START or code in (126, 127):
        reason = f"the command cannot be started in pod {name}: {_detail(ended.get('message')).removeprefix(': ')}"
        return PodFailure("config", reason, True, "check that the image holds python and this wheel", code, lines)
    if code == STOPPED_EXIT:
        return PodFailure(
            "killed", f"pod {name} received SIGTERM and saved a checkpoint", exit_code=code, last_lines=lines
        )
    if code is not None and code > 128:
        hint = " (SIGKILL: a child ran out of memory, or the grace period expired)" if code == 137 else ""
        reason = f"pod {name} was killed by signal {code - 128}{hint}"
        return PodFailure("killed", reason, exit_code=code, last_lines=lines)
    if code is None:
        reason = f"pod {name} failed before its container ran ({_status(pod).get('reason') or 'no reason given'})"
        return PodFailure("killed", reason + _detail(_status(pod).get("message")))
    detail = f": {lines[-1]}" if lines else ""
    return PodFailure("exit", f"pod {name} ended with exit code {code}{detail}", exit_code=code, last_lines=lines)


def _preempted(pod: Object, reason: str, by: str) -> bool:
    # Kueue sets a condition of its own before it deletes a pod.
    by_kueue = condition_of(pod, "TerminationTarget")
    return reason.startswith("Preempt") or by.startswith("Preempt") or by_kueue is not None


def condition_of(found: Object, kind: str, status: str = "True") -> Object | None:
    """Returns the condition of an object that has this type and status, or None."""
    conditions = _status(found).get("conditions") or []
    return next((one for one in conditions if one["type"] == kind and one["status"] == status), None)


def _status(pod: Object) -> Object:
    status: Object = pod.get("status") or {}
    return status


def _detail(message: Any) -> str:
    text = " ".join(str(message or "").split())
    return f": {text}" if text else ""


def termination_lines(pod: Object, container: str) -> tuple[str, ...]:
    """Returns the lines of a container's termination message: the end of its log if it failed."""
    return tuple(str((terminated(pod, container) or {}).get("message") or "").splitlines())


def _lines(ended: Object | None) -> tuple[str, ...]:
    text = str((ended or {}).get("message") or "").strip()
    return tuple(text.splitlines()[-LAST_LINES:])

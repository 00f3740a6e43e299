"""Classification of pod failures: kind, reason, and whether a retry can succeed.

Reads the pod as JSON (and the API server's response to a create); sends no requests, so every class is tested on pods
as Kubernetes writes them.

A permanent failure would occur again with the same pod: an invalid recipe, a missing image, a missing secret. Anything
else is retried, and the retry resumes from the newest checkpoint.
"""

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

_GONE_IMAGE = ("not found", "manifest unknown", "denied", "unauthorized", "authentication required", "no such image",
               "not exist", "invalid reference")  # fmt: skip
_UNKNOWN_REGISTRY = ("no such host", "x509:", "server gave http response to https client")
_IMAGE_WAITS = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError")
_CONFIG_WAITS = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_CANNOT_START = ("ContainerCannotRun", "StartError")
_NODE_REASONS = ("NodeLost", "NodeShutdown", "Terminated", "Shutdown")
_EVICTIONS = ("EvictionByEvictionAPI", "DeletionByTaintManager", "DeletionByPodGC", "TerminationByKubelet")


@dataclass(frozen=True)
class PodFailure:
    """What became of a pod.

    Args:
        kind: class of the failure.
        reason: what happened, in words, with names.
        permanent: a retry cannot succeed.
        remedy: what the user can do; may be empty.
        exit_code: of the container, where it has ended by itself.
        last_lines: the end of its log.
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
        """Returns it as a trigger event can carry it."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Object) -> "PodFailure":
        """Reads what `to_json` wrote."""
        return cls(**{**fields, "last_lines": tuple(fields.get("last_lines") or ())})


def has_ended(pod: Object) -> bool:
    """Returns whether the pod has ended for good."""
    return _status(pod).get("phase") in ("Succeeded", "Failed")


def has_succeeded(pod: Object, container: str) -> bool:
    """Returns whether the stage is done: its container ended with 0, whatever the state of sidecars."""
    ended = terminated(pod, container)
    return _status(pod).get("phase") == "Succeeded" or (ended is not None and ended.get("exitCode") == 0)


def terminated(pod: Object, container: str) -> Object | None:
    """Returns how the container ended (exitCode, reason, message), or None while it has not."""
    for one in _status(pod).get("containerStatuses") or []:
        if one["name"] == container:
            ended: Object | None = (one.get("state") or {}).get("terminated")
            return ended
    return None


def failure_of(pod: Object, container: str, tail: Sequence[str] = ()) -> PodFailure | None:
    """Returns why a pod has failed, or None as long as it has not (or has succeeded).

    Args:
        pod: as the API gives it.
        container: the stage's.
        tail: the end of its log, for a pod that does not keep it as its termination message.

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
        message = lines[-1].removeprefix("sluice: ") if lines else "the stage reports an error that no retry can mend"
        return PodFailure("config", message, True, exit_code=code, last_lines=lines)
    disturbed = disruption_of(pod)
    if disturbed:
        kind, reason = disturbed
        return PodFailure(kind, reason, exit_code=code, last_lines=lines)
    return _init_failure(pod) or _ended(pod, ended or {}, lines, code)


def disruption_of(pod: Object) -> tuple[Cause, str] | None:
    """Returns the disruption that ended the pod (kind, reason), or None."""
    status, name = _status(pod), pod["metadata"]["name"]
    node = (pod.get("spec") or {}).get("nodeName", "")
    where = f"pod {name} on {node}" if node else f"pod {name}"
    reason, message = str(status.get("reason") or ""), _sentence(status.get("message"))
    disrupted = _condition(pod, "DisruptionTarget", "True")
    by = str(disrupted.get("reason") or "") if disrupted else ""
    message = message or _sentence(disrupted.get("message") if disrupted else "")
    if reason in _NODE_REASONS or by == "DeletionByTaintManager" or by == "DeletionByPodGC":
        return "node_lost", f"{where} was lost with its node{message}"
    if _preempted(pod, reason, by):
        return "preempted", f"{where} had to make room for work of higher priority{message}"
    if reason == "Evicted" or by in _EVICTIONS:
        return "evicted", f"{where} was evicted{message}"
    if status.get("phase") == "Unknown":
        return "node_lost", f"{where} has not been heard of: its node is silent{message}"
    return None


def gone(pod: Object) -> PodFailure:
    """Returns the failure of a pod that does not exist any more, from its last known state."""
    kind, reason = disruption_of(pod) or ("killed", f"pod {pod['metadata']['name']} was deleted while it ran")
    return PodFailure(kind, f"{reason}, and it left no artifact")


def blocked(pod: Object, last_pull: str = "") -> PodFailure | None:
    """Returns what keeps a container from starting, or None: an image that cannot be had, a setting that is missing.

    Args:
        pod: as the API gives it.
        last_pull: the last event of a failed pull. During the kubelet's back-off the pod does not always state the
        reason.
    """
    status = _status(pod)
    for one in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        waiting = (one.get("state") or {}).get("waiting") or {}
        reason, message = str(waiting.get("reason") or ""), " ".join(str(waiting.get("message") or "").split())
        if reason in _IMAGE_WAITS:
            if reason == "ImagePullBackOff" and "Err" not in message and last_pull:
                message = last_pull
            return _no_image(reason, message, str(one.get("image") or ""))
        if reason in _CONFIG_WAITS:
            return PodFailure(
                "config",
                f"the container cannot be made ({reason}): {message}",
                True,
                "make what it names, such as the secrets of [place.kubernetes] secrets, in the pod's namespace",
            )
    return None


def heals_seldom(failure: PodFailure) -> bool:
    """Returns whether an image is out of reach for a cause that ends by itself within minutes, or not at all.

    The registry's name is unknown, or its certificate is not trusted: a name server that restarts, a clock that is set.
    """
    return failure.kind == "image" and any(word in failure.reason.lower() for word in _UNKNOWN_REGISTRY)


def _no_image(reason: str, message: str, image: str) -> PodFailure:
    lasting = _GONE_IMAGE + _UNKNOWN_REGISTRY
    wrong = reason in ("InvalidImageName", "ErrImageNeverPull") or any(word in message.lower() for word in lasting)
    remedy = "check [place.kubernetes] image, and that the nodes may pull from its registry"
    return PodFailure("image", f"image {image} cannot be had ({reason}): {message}", wrong, remedy)


def _init_failure(pod: Object) -> PodFailure | None:
    for one in _status(pod).get("initContainerStatuses") or []:
        ended = (one.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            code, lines = ended["exitCode"], _lines(ended)
            return PodFailure(
                "exit", f"init container {one['name']} ended with {code}", exit_code=code, last_lines=lines
            )
    return None


def _out_of_memory(pod: Object, container: str, lines: tuple[str, ...], code: int | None) -> PodFailure:
    limits = next(
        (
            (one.get("resources") or {}).get("limits") or {}
            for one in pod["spec"]["containers"]
            if one["name"] == container
        ),
        {},
    )
    limit = limits.get("memory", "none")
    reason = f"pod {pod['metadata']['name']} ran out of memory (OOMKilled, limit {limit})"
    return PodFailure("oom", reason, False, "raise [place.kubernetes] memory or take a smaller microbatch", code, lines)


def _ended(pod: Object, ended: Object, lines: tuple[str, ...], code: int | None) -> PodFailure:
    name = pod["metadata"]["name"]
    if ended.get("reason") in _CANNOT_START or code in (126, 127):
        reason = f"the command cannot be started in pod {name}: {_sentence(ended.get('message')).removeprefix(': ')}"
        return PodFailure("config", reason, True, "check that the image holds python and this wheel", code, lines)
    if code == STOPPED_EXIT:
        return PodFailure("killed", f"pod {name} was asked to stop and has saved", exit_code=code, last_lines=lines)
    if code is not None and code > 128:
        hint = " (SIGKILL: out of memory in a child, or the grace period was over)" if code == 137 else ""
        reason = f"pod {name} was killed by signal {code - 128}{hint}"
        return PodFailure("killed", reason, exit_code=code, last_lines=lines)
    if code is None:
        reason = f"pod {name} failed before its container ran ({_status(pod).get('reason') or 'no reason given'})"
        return PodFailure("killed", reason + _sentence(_status(pod).get("message")))
    detail = f": {lines[-1]}" if lines else ""
    return PodFailure("exit", f"pod {name} ended with exit code {code}{detail}", exit_code=code, last_lines=lines)


def _preempted(pod: Object, reason: str, by: str) -> bool:
    # Kueue sets a condition of its own before it deletes a pod.
    by_kueue = _condition(pod, "TerminationTarget", "True")
    return reason.startswith("Preempt") or by.startswith("Preempt") or by_kueue is not None


def _condition(pod: Object, kind: str, status: str) -> Object | None:
    found = (one for one in _status(pod).get("conditions") or [] if one["type"] == kind and one["status"] == status)
    return next(found, None)


def _status(pod: Object) -> Object:
    status: Object = pod.get("status") or {}
    return status


def _sentence(message: Any) -> str:
    text = " ".join(str(message or "").split())
    return f": {text}" if text else ""


def last_words(pod: Object, container: str) -> tuple[str, ...]:
    """Returns the lines of a container's termination message: the end of its log, where it has failed."""
    return tuple(str((terminated(pod, container) or {}).get("message") or "").splitlines())


def _lines(ended: Object | None) -> tuple[str, ...]:
    text = str((ended or {}).get("message") or "").strip()
    return tuple(text.splitlines()[-LAST_LINES:])

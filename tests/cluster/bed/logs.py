"""The log endpoint: the lines of a container for a request."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tests.cluster.bed.container import Container
from tests.cluster.bed.faults import Reset
from tests.cluster.bed.resources import ApiError, Object

if TYPE_CHECKING:
    from tests.cluster.bed.pod_run import PodRun
    from tests.cluster.bed.server import Bed


def log_lines(bed: Bed, pod: Object, query: dict[str, str]) -> Iterator[bytes | None]:
    """Yields the requested lines of a container's log; None from time to time while it waits.

    Raises:
        ApiError: 400, there is no log yet or no such container; 500, the kubelet of the node is dead.
        Reset: (while it yields) the kubelet dies.
    """
    name, spec = pod["metadata"]["name"], pod["spec"]
    wanted = query.get("container") or ""
    names = [one["name"] for one in (*(spec.get("initContainers") or []), *spec["containers"])]
    if not wanted and len(names) > 1:
        said = f"a container name must be specified for pod {name}, choose one of: [{' '.join(names)}]"
        raise ApiError(400, "BadRequest", said)
    wanted = wanted or names[0]
    if wanted not in names:
        raise ApiError(400, "BadRequest", f"container {wanted} is not valid for pod {name}")
    if not spec.get("nodeName"):
        raise ApiError(400, "BadRequest", f"pod {name} does not have a host assigned")
    node = spec["nodeName"]
    run = bed.kubelet.run_of(pod)
    if node in bed.kubelet.dead:
        where = f"https://{node}:10250/containerLogs/{pod['metadata']['namespace']}/{name}/{wanted}"
        raise ApiError(500, "", f'Get "{where}": dial tcp 127.0.0.1:10250: connect: connection refused')
    container = run.container(wanted) if run else None
    if run is None or container is None or not (container.started_at or container.exit_code is not None):
        why = container.waiting[0] if container else "ContainerCreating"
        why = "trying and failing to pull image" if why in ("ErrImagePull", "ImagePullBackOff") else why
        raise ApiError(400, "BadRequest", f'container "{wanted}" in pod "{name}" is waiting to start: {why}')
    return _lines(bed, run, container, query)


def _lines(bed: Bed, run: PodRun, container: Container, query: dict[str, str]) -> Iterator[bytes | None]:
    since, log = _since(query), container.log
    with log.changed:
        have = len(log.lines)
        first = next((at for at, (when, _) in enumerate(log.lines) if when >= since), have)
    if query.get("tailLines"):
        first = max(first, have - int(query["tailLines"]))
    stamps, follow = query.get("timestamps") in ("true", "True"), query.get("follow") in ("true", "True")
    if not follow:
        for when, line in log.lines[first:have]:
            yield f"{when} ".encode() + line if stamps else line
        return
    for one in log.follow(first, wait_s=0.2):
        if run.node in bed.kubelet.dead:
            raise Reset
        yield None if one is None else f"{one[0]} ".encode() + one[1] if stamps else one[1]


def _since(query: dict[str, str]) -> str:
    """The time before which lines are omitted, in whole seconds as in the API."""
    if query.get("sinceTime"):
        return query["sinceTime"].partition(".")[0].rstrip("Z")[:19]
    if query.get("sinceSeconds"):
        begin = datetime.now(UTC) - timedelta(seconds=int(query["sinceSeconds"]))
        return begin.strftime("%Y-%m-%dT%H:%M:%S")
    return ""

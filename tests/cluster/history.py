"""All pods of a test, including deleted ones, with their times, from a continuous watch."""

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes import client, config, watch
from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

_OVER = ("Succeeded", "Failed")


@dataclass
class Life:
    """One pod: its name, its last observed state, and when it ran (local clock; None: not yet)."""

    name: str
    labels: dict[str, str]
    last: Any
    raw: dict[str, Any]
    began: float | None = None
    ended: float | None = None
    gone: bool = False

    @property
    def exit_code(self) -> int | None:
        """The observed end of its container. The phase is reported later, possibly after the deletion of the pod."""
        for one in self.last.status.container_statuses or []:
            if one.state.terminated:
                return int(one.state.terminated.exit_code)
        return None


class History:
    """Watches the pods of a namespace in a separate thread."""

    def __init__(self, kube_config: Path, namespace: str) -> None:
        api = config.new_client_from_config(str(kube_config))
        api.user_agent = "observer"
        self._core, self._namespace = client.CoreV1Api(api), namespace
        self._lives: dict[str, Life] = {}
        self._version = ""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    def lives(self, label: str = "app.kubernetes.io/part-of", value: str = "sluice") -> list[Life]:
        """All our pods in order of creation, with their latest state."""
        self._catch_up()
        return [one for one in list(self._lives.values()) if one.labels.get(label) == value]

    def at_once(self) -> int:
        """The largest number of our pods with containers running at the same time."""
        lives = [one for one in self.lives() if one.began is not None]
        moments = [one.began for one in lives if one.began is not None]
        return max(
            (
                sum(
                    one.began is not None and one.began <= at and (one.ended is None or one.ended > at) for one in lives
                )
                for at in moments
            ),
            default=0,
        )

    def close(self) -> None:
        """Ends the watch."""
        self._closing = True
        self._thread.join(5)

    def _catch_up(self, limit_s: float = 5.0) -> None:
        """Waits until the watch, which lags a little, has the current pods."""
        there = {pod.metadata.uid for pod in self._core.list_namespaced_pod(self._namespace).items}
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            known = dict(self._lives)
            if there <= known.keys() and all(one.gone or uid in there for uid, one in known.items()):
                return
            time.sleep(0.02)

    def _run(self) -> None:
        while not self._closing:
            # Each watch continues where the previous one ended, so that no change is missed.
            since = {"resource_version": self._version} if self._version else {}
            try:
                stream = watch.Watch().stream(
                    self._core.list_namespaced_pod, self._namespace, timeout_seconds=2, **since
                )
                for event in stream:
                    self._note(event)
                    self._version = event["raw_object"]["metadata"]["resourceVersion"]
            except ApiException:  # the version has expired: start from a new list
                self._version = ""
                time.sleep(0.05)
            except (HTTPError, OSError):
                time.sleep(0.05)

    def _note(self, event: Any) -> None:
        pod = event["object"]
        uid, phase, now = pod.metadata.uid, pod.status.phase, time.monotonic()
        raw = event["raw_object"]
        life = self._lives.setdefault(uid, Life(pod.metadata.name, pod.metadata.labels or {}, pod, raw))
        life.last, life.raw = pod, raw
        life.gone = event["type"] == "DELETED"
        if phase == "Running" and life.began is None:
            life.began = now
        if life.ended is None and (phase in _OVER or event["type"] == "DELETED"):
            life.ended = now

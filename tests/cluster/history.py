"""Every pod that was ever there during a test, from a watch that does not end: how many there were, and when."""

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubernetes import client, config, watch
from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

_OVER = ("Succeeded", "Failed")


@dataclass
class Life:
    """One pod: its name, the last state that was seen, and when it ran (of this machine's clock; None: not yet)."""

    name: str
    labels: dict[str, str]
    last: Any
    raw: dict[str, Any]
    began: float | None = None
    ended: float | None = None
    phases: list[str] = field(default_factory=list)


class History:
    """Watches the pods of a namespace in a thread of its own."""

    def __init__(self, kube_config: Path, namespace: str) -> None:
        api = config.new_client_from_config(str(kube_config))
        api.user_agent = "observer"
        self._core, self._namespace = client.CoreV1Api(api), namespace
        self._lives: dict[str, Life] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    def lives(self, label: str = "app.kubernetes.io/part-of", value: str = "sluice") -> list[Life]:
        """All pods of ours that were ever there, in the order in which they came."""
        return [one for one in list(self._lives.values()) if one.labels.get(label) == value]

    def at_once(self) -> int:
        """The largest number of pods of ours whose containers ran at the same time."""
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

    def _run(self) -> None:
        while not self._closing:
            with suppress(ApiException, HTTPError, OSError):
                stream = watch.Watch().stream(self._core.list_namespaced_pod, self._namespace, timeout_seconds=2)
                for event in stream:
                    self._note(event)
            time.sleep(0.05)

    def _note(self, event: Any) -> None:
        pod = event["object"]
        uid, phase, now = pod.metadata.uid, pod.status.phase, time.monotonic()
        raw = event["raw_object"]
        life = self._lives.setdefault(uid, Life(pod.metadata.name, pod.metadata.labels or {}, pod, raw))
        life.last, life.raw = pod, raw
        if not life.phases or life.phases[-1] != phase:
            life.phases.append(phase)
        if phase == "Running" and life.began is None:
            life.began = now
        if life.ended is None and (phase in _OVER or event["type"] == "DELETED"):
            life.ended = now

"""A pod on a node: runs its containers sequentially or concurrently, and reports its status."""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING

from tests.cluster.bed.container import MARK, Container
from tests.cluster.bed.environment import ConfigError, environment, expanded
from tests.cluster.bed.resources import Object
from tests.cluster.bed.store import now

if TYPE_CHECKING:
    from tests.cluster.bed.kubelet import Kubelet

_IMAGE = re.compile(
    r"[a-z0-9]+([._-][a-z0-9]+)*(:\d+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*(:[\w][\w.-]*)?(@sha256:[0-9a-f]+)?"
)

PHASE_LAG_S = 0.2
"""How long a pod is Running after its containers have ended (a cluster: up to some seconds)."""


class PodRun:
    """The processes of one pod; they outlive a dead kubelet and the deletion of the pod object."""

    def __init__(self, kubelet: Kubelet, pod: Object) -> None:
        self.kubelet, self.pod = kubelet, pod
        self.meta, self.spec = pod["metadata"], pod["spec"]
        self.node: str = self.spec["nodeName"]
        self.folder = kubelet.bed.folder / self.meta["uid"]
        self.folder.mkdir(parents=True, exist_ok=True)
        self.init = [self._container(one) for one in self.spec.get("initContainers") or []]
        self.main = [self._container(one) for one in self.spec["containers"]]
        self.failure: tuple[str, str] | None = None
        self.stopping = threading.Event()
        self.ended = threading.Event()
        threading.Thread(target=self._run, name=f"pod-{self.meta['name']}", daemon=True).start()

    def stop(self, grace_s: float) -> None:
        """Sends SIGTERM, and SIGKILL after the grace period; a second call can only shorten it."""
        first = not self.stopping.is_set()
        self.stopping.set()
        for one in self.main:
            if first and one.exit_code is None:
                one.terminate()
        timer = threading.Timer(grace_s, self.kill)
        timer.daemon = True
        timer.start()

    def kill(self, reason: str = "") -> None:
        """Sends SIGKILL to every container."""
        self.stopping.set()
        for one in (*self.init, *self.main):
            one.kill(reason)

    def kill_container(self, reason: str) -> None:
        """Kills every container from outside the kubelet (out of memory), without a deletion."""
        for one in self.main:
            one.kill(reason)

    def phase(self) -> str:
        """The pod's phase."""
        if self.failure or any(one.exit_code for one in self.init):
            return "Failed"
        if not any(one.started_at for one in self.main):
            return "Failed" if self.stopping.is_set() and self.ended.is_set() else "Pending"
        if not self.ended.is_set():
            return "Running"
        return "Failed" if any(one.exit_code for one in self.main) else "Succeeded"

    def edit(self, pod: Object) -> None:
        """Writes the status of this run into the pod object."""
        status = pod.setdefault("status", {})
        running = [one.exit_code is None and bool(one.started_at) for one in self.main]
        ready = "True" if all(running) else "False"
        over = self.phase() in ("Succeeded", "Failed")
        why = {"reason": "PodCompleted"} if over else {} if all(running) else {"reason": "ContainersNotReady"}
        started = "True" if all(one.exit_code == 0 for one in self.init) else "False"
        for kind, value, more in (
            ("PodReadyToStartContainers", "True", {}),
            ("Initialized", started, {}),
            ("Ready", ready, why),
            ("ContainersReady", ready, why),
        ):
            set_condition(status, kind, value, **more)
        status |= {"phase": self.phase(), "hostIP": "127.0.0.1", "podIP": "127.0.0.1"}
        status.setdefault("startTime", now())
        status["containerStatuses"] = [self._status(one) for one in self.main]
        if self.init:
            status["initContainerStatuses"] = [self._status(one) for one in self.init]
        if self.failure:
            status["reason"], status["message"] = self.failure

    def container(self, name: str) -> Container | None:
        """A container by name."""
        return next((one for one in (*self.main, *self.init) if one.name == name), None)

    def _status(self, one: Container) -> Object:
        running = one.exit_code is None and bool(one.started_at)
        named = {"name": one.name, "image": one.spec["image"], "imageID": f"sha256:{one.spec['image']}"}
        counts = {"restartCount": one.restarts, "ready": running, "started": running, "lastState": {}}
        return {**named, **counts, "state": one.state()}

    def _container(self, spec: Object) -> Container:
        return Container(spec, self.folder, f"{self.meta['uid']}-{spec['name']}-{time.monotonic_ns()}")

    def _run(self) -> None:
        try:
            self.kubelet.sync(self)
            if all(self._one(one) == 0 for one in self.init):
                threads = [threading.Thread(target=self._one, args=(one,), daemon=True) for one in self.main]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
        finally:
            # A kubelet reports the end of the containers before the pod's phase.
            self.kubelet.sync(self)
            self.stopping.wait(PHASE_LAG_S)
            self.ended.set()
            self.kubelet.sync(self)

    def _one(self, one: Container) -> int | None:
        """Runs one container to its end, restarts it according to the pod's policy; returns its exit code."""
        pause = 1.0
        while self._prepared(one):
            self.kubelet.started(self, one)
            runner = threading.Thread(target=one.run, daemon=True)
            runner.start()
            while not one.started_at or (one.process is None and one.exit_code is None):
                time.sleep(0.005)
            if self.stopping.is_set():  # stopped between the check and the start
                one.terminate()
            self.kubelet.sync(self)
            runner.join()
            policy = self.spec["restartPolicy"]
            again = policy == "Always" or (policy == "OnFailure" and one.exit_code)
            if self.stopping.is_set() or not again or one in self.init:
                break
            one.waiting = ("CrashLoopBackOff", f"back-off {pause:.0f}s restarting failed container={one.name}")
            one.started_at, one.exit_code, one.process, one.reason = "", None, None, ""
            one.restarts += 1
            self.kubelet.sync(self)
            self.stopping.wait(pause)
            pause = min(2 * pause, 10)
        return one.exit_code

    def _prepared(self, one: Container) -> bool:
        """Waits until the container can be started; returns False if the pod is stopped before."""
        tries = 0
        while not self.stopping.is_set():
            problem = self._problem(one, tries)
            if problem is None:
                return True
            if one.waiting != problem:
                one.waiting = problem
                self.kubelet.event(self.pod, "Failed", f"{problem[1]}" if problem[1] else problem[0], "Warning")
                self.kubelet.sync(self)
            tries += 1
            self.stopping.wait(0.5)
        return False

    def _problem(self, one: Container, tries: int) -> tuple[str, str] | None:
        image, bed = one.spec["image"], self.kubelet.bed
        if not _IMAGE.fullmatch(image):
            return ("InvalidImageName", f'Failed to apply default image tag "{image}": couldn\'t parse image name')
        if bed.registry_down:
            said = f'failed to pull and unpack image "{image}": unexpected status from HEAD request: '
            return _pulling(image, f"rpc error: code = Unavailable desc = {said}503 Service Unavailable", tries)
        if ".invalid/" in image or image in bed.missing_images:
            if one.spec.get("imagePullPolicy") == "Never":
                said = f'Container image "{image}" is not present with pull policy of Never'
                return ("ErrImageNeverPull", said)
            said = f'failed to pull and unpack image "{image}": failed to resolve reference "{image}": '
            if image in bed.missing_images:
                return _pulling(image, f"rpc error: code = NotFound desc = {said}not found", tries)
            # As on a cluster: no name server knows a host of the domain "invalid" (RFC 6761).
            host = image.split("/")[0]
            said += f'failed to do request: Head "https://{host}/v2/": dial tcp: lookup {host}: no such host'
            return _pulling(image, f"rpc error: code = Unknown desc = {said}", tries)
        try:
            env = environment(bed.store, self.pod, one.spec, bed.image_env)
        except ConfigError as error:
            return ("CreateContainerConfigError", str(error))
        one.env = {**bed.overlay(self.pod, env), MARK: one.mark}
        command = [*(one.spec.get("command") or []), *(one.spec.get("args") or [])]
        one.command = [expanded(str(word), one.env) for word in command]
        return None


def _pulling(image: str, cause: str, tries: int) -> tuple[str, str]:
    """Why a pull waits: first its own error, then the kubelet's back-off."""
    backs_off = ("ImagePullBackOff", f'Back-off pulling image "{image}": ErrImagePull: {cause}')
    return backs_off if tries else ("ErrImagePull", cause)


def set_condition(status: Object, kind: str, value: str, **more: str) -> None:
    """Sets one condition; its transition time changes only with its value."""
    conditions = status.setdefault("conditions", [])
    old = next((one for one in conditions if one["type"] == kind), None)
    since = old["lastTransitionTime"] if old and old["status"] == value else now()
    new = {"type": kind, "status": value, "lastTransitionTime": since, **more}
    if old is None:
        conditions.append(new)
    else:
        old.clear()
        old.update(new)

"""A cluster of one node for tests: the pod part of the Kubernetes API on loopback, and a kubelet that really runs pods.

A pod is one local process: the command, arguments and environment of its container `base`. Phases, exit status,
termination message and log are those of the process, so an operator cannot tell it from a small cluster.
"""

import json
import os
import subprocess
import sys
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit


class Cluster:
    """Listens on a free port of 127.0.0.1; `pods` holds the pods by name as the API gives them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pods: dict[str, dict[str, Any]] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.created: list[str] = []
        self.deleted: list[str] = []
        handler = type("Handler", (_Handler,), {"cluster": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def kube_config(self) -> Path:
        """A kubeconfig file for this cluster."""
        host, port = self.server.server_address[:2]
        entry = {"name": "one", "cluster": {"server": f"http://{host}:{port}"}}
        context = {"name": "one", "context": {"cluster": "one", "user": "one", "namespace": "training"}}
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "one", "clusters": [entry]}
        path = self.folder / "kubeconfig"
        path.write_text(json.dumps({**config, "contexts": [context], "users": [{"name": "one", "user": {}}]}))
        return path

    def close(self) -> None:
        """Stops the API and every pod."""
        self.server.shutdown()
        self.server.server_close()
        for process in self.processes.values():
            process.kill()
            process.wait()

    def create(self, pod: dict[str, Any]) -> dict[str, Any]:
        """Accepts a pod and starts its process."""
        name = pod["metadata"]["name"]
        container = pod["spec"]["containers"][0]
        env = {**os.environ, **{one["name"]: one.get("value") or "" for one in container.get("env") or []}}
        command = [*container["command"], *container["args"]]
        command[0] = sys.executable if command[0] == "python" else command[0]
        with self.log(name).open("wb") as log:
            self.processes[name] = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
        pod["metadata"].setdefault("uid", name)
        self.pods[name] = pod
        self.created.append(name)
        return self.get(name)

    def get(self, name: str) -> dict[str, Any]:
        """Returns the pod with the status of its process now."""
        pod, code = self.pods[name], self.processes[name].poll()
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if code is None:
            phase, state = "Running", {"running": {"startedAt": now}}
        else:
            tail = self.log(name).read_text(errors="replace")[-2048:]
            done = {"exitCode": code if code >= 0 else 128 - code, "message": tail if code else None, "finishedAt": now}
            phase, state = ("Failed" if code else "Succeeded"), {"terminated": done}
        status = {
            "name": "base",
            "image": "x",
            "imageID": "x",
            "ready": code is None,
            "restartCount": 0,
            "state": state,
        }
        scheduled = {"type": "PodScheduled", "status": "True"}
        pod["status"] = {"phase": phase, "containerStatuses": [status], "conditions": [scheduled]}
        return pod

    def delete(self, name: str) -> dict[str, Any]:
        """Stops and forgets a pod."""
        pod = self.get(name)
        self.processes[name].terminate()
        self.deleted.append(name)
        del self.pods[name]
        return pod

    def log(self, name: str) -> Path:
        """The pod's log file."""
        return self.folder / f"{name}.log"

    def matching(self, selector: str) -> list[dict[str, Any]]:
        """Returns the pods that a label selector names (equality and inequality only)."""
        found = []
        for name in list(self.pods):
            labels = self.pods[name]["metadata"].get("labels") or {}
            if all(_holds(term.strip(), labels) for term in selector.split(",") if term.strip()):
                found.append(self.get(name))
        return found


def _holds(term: str, labels: dict[str, str]) -> bool:
    if "!=" in term:
        key, _, value = term.partition("!=")
        return labels.get(key.strip()) != value.strip()
    if "=" in term:
        key, _, value = term.replace("==", "=").partition("=")
        return labels.get(key.strip()) == value.strip()
    return term[1:] not in labels if term.startswith("!") else term in labels


class _Handler(BaseHTTPRequestHandler):
    cluster: Cluster

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, body: Any, status: int = 200) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if isinstance(body, str) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")

    def _route(self, method: str) -> None:
        url = urlsplit(self.path)
        path = url.path.strip("/").split("/")  # api/v1/namespaces/<ns>/pods[/<name>[/log]]
        kind, name, part = (*path[4:], "", "", "")[:3]
        body = self._body()
        if kind != "pods":
            self._answer({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": []})
        elif not name and method == "POST":
            self._answer(self.cluster.create(body), 201)
        elif not name:
            selector = parse_qs(url.query).get("labelSelector", [""])[0]
            listed = {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": self.cluster.matching(selector)}
            self._answer(listed)
        elif name not in self.cluster.pods:
            self._answer({"kind": "Status", "code": 404, "message": f"no pod {name}"}, 404)
        elif part == "log":
            self._answer(self.cluster.log(name).read_text(errors="replace"))
        elif method == "DELETE":
            self._answer(self.cluster.delete(name))
        else:
            if method == "PATCH":
                self.cluster.pods[name]["metadata"].setdefault("labels", {}).update(body["metadata"]["labels"])
            self._answer(self.cluster.get(name))

    def do_GET(self) -> None:
        self._route("GET")

    def do_POST(self) -> None:
        self._route("POST")

    def do_PATCH(self) -> None:
        self._route("PATCH")

    def do_DELETE(self) -> None:
        self._route("DELETE")

"""A real API server with its admission plug-ins for tests: etcd and kube-apiserver as processes, without nodes.

The binaries are from KUBEBUILDER_ASSETS (as in controller-runtime's envtest) or PATH. Everything listens on 127.0.0.1
and is in a temporary folder. No controller runs: tests create the objects of controllers (service accounts, the status
of a quota).
"""

import json
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

Object = dict[str, Any]
BINARIES = ("etcd", "kube-apiserver")
START_S = 90.0


def found_binaries() -> dict[str, str] | None:
    """Returns the path of each binary, or None if one is missing."""
    folder = os.environ.get("KUBEBUILDER_ASSETS", "")
    paths = {name: shutil.which(name, path=folder or None) or shutil.which(name) for name in BINARIES}
    return {name: path for name, path in paths.items() if path} if all(paths.values()) else None


class Answered(Exception):
    """The server answered with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code} {message}")
        self.code, self.message = code, message


class ApiServer:
    """etcd and kube-apiserver; the constructor starts them.

    Args:
        folder: for their files.
        binaries: `found_binaries`.

    Attributes:
        url: of the API.
    """

    def __init__(self, folder: Path, binaries: dict[str, str]) -> None:
        self.folder, self.binaries = folder, binaries
        self.admin, self.user = secrets.token_hex(16), secrets.token_hex(16)
        self._etcd_port, self._peer_port, self._port = _free_ports(3)
        self.url = f"https://127.0.0.1:{self._port}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._write_keys()
        self._start_etcd()
        self.start()

    def start(self) -> None:
        """Starts the API server and waits until it answers the administrator."""
        etcd = f"http://127.0.0.1:{self._etcd_port}"
        key = self.folder / "accounts.pem"
        arguments = [
            f"--etcd-servers={etcd}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self._port}",
            f"--cert-dir={self.folder / 'certificates'}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
        ]
        self._run("kube-apiserver", arguments)
        self._await(lambda: self.call("GET", "/readyz", raw=True))

    def stop(self) -> None:
        """Ends the API server; etcd keeps running."""
        self._end("kube-apiserver")

    def close(self) -> None:
        """Ends both."""
        for name in reversed(BINARIES):
            self._end(name)

    @property
    def version(self) -> tuple[int, int]:
        """Major and minor."""
        major, minor, *_ = self.call("GET", "/version")["gitVersion"].removeprefix("v").split(".")
        return int(major), int(minor)

    def kube_config(self, token: str) -> Path:
        """Writes a kubeconfig for the bearer of a token and returns its path."""
        cluster = {"server": self.url, "insecure-skip-tls-verify": True}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "clusters": [{"name": "it", "cluster": cluster}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "users": [{"name": "it", "user": {"token": token}}],
        }
        path = self.folder / f"kubeconfig-{token[:6]}"
        path.write_text(json.dumps(config))
        return path

    def serves(self, found: Object) -> bool:
        """Returns whether the server has the kind of an object."""
        return self._resource(found) is not None

    def apply(self, found: Object) -> Object:
        """Applies an object like `kubectl apply --server-side --validate=strict`; returns the stored object.

        Raises:
            Answered: it is refused.
        """
        resource = self._resource(found)
        assert resource, f"the server does not know {found['apiVersion']} {found['kind']}"
        path = f"{_base(found)}{_within(found, resource)}/{resource['name']}/{found['metadata']['name']}"
        query = "?fieldManager=test&force=true&fieldValidation=Strict"
        return self.call("PATCH", path + query, found, "application/apply-patch+yaml")

    def create(self, found: Object) -> Object:
        """Creates an object; raises Answered."""
        resource = self._resource(found)
        assert resource, f"the server does not know {found['apiVersion']} {found['kind']}"
        return self.call("POST", f"{_base(found)}{_within(found, resource)}/{resource['name']}", found)

    def call(
        self, method: str, path: str, body: Object | None = None, content: str = "application/json", raw: bool = False
    ) -> Any:
        """Returns the response to a request of the administrator; raises Answered, or OSError if nothing listens."""
        headers = {"Authorization": f"Bearer {self.admin}", "Content-Type": content}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30, context=ssl._create_unverified_context()) as answer:
                said = answer.read()
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            with suppress(ValueError, KeyError):
                text = json.loads(text)["message"]
            raise Answered(error.code, text) from None
        return said if raw else json.loads(said)

    def _resource(self, found: Object) -> Object | None:
        with suppress(Answered):
            for one in self.call("GET", _base(found))["resources"]:
                if one["kind"] == found["kind"] and "/" not in one["name"]:
                    return dict(one)
        return None

    def _write_keys(self) -> None:
        from cryptography.hazmat.primitives import serialization as how
        from cryptography.hazmat.primitives.asymmetric import rsa

        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = key.private_bytes(how.Encoding.PEM, how.PrivateFormat.TraditionalOpenSSL, how.NoEncryption())
        (self.folder / "accounts.pem").write_bytes(pem)
        tokens = f'{self.admin},admin,1,"system:masters"\n{self.user},airflow,2,"airflow"\n'
        (self.folder / "tokens.csv").write_text(tokens)

    def _start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, self._peer_port))
        arguments = [
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        ]
        self._run("etcd", arguments)
        self._await(lambda: urllib.request.urlopen(f"{client}/health", timeout=5).close())

    def _run(self, name: str, arguments: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen([self.binaries[name], *arguments], stdout=log, stderr=log)

    def _end(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            process.kill()
            process.wait()

    def _await(self, answers: Any) -> None:
        deadline = time.monotonic() + START_S
        while True:
            try:
                answers()
            except (OSError, Answered) as error:
                ended = [name for name, process in self._processes.items() if process.poll() is not None]
                if ended or time.monotonic() > deadline:
                    logs = "".join((self.folder / f"{name}.log").read_text()[-2000:] for name in self._processes)
                    raise AssertionError(f"{ended or 'no answer'}: {error}\n{logs}") from None
                time.sleep(0.1)
            else:
                return


def _base(found: Object) -> str:
    version = found["apiVersion"]
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def _within(found: Object, resource: Object) -> str:
    return f"/namespaces/{found['metadata']['namespace']}" if resource["namespaced"] else ""


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports

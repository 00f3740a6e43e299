"""A real MLflow server on loopback, and ports at which it can be reached for a while. Not a test module."""

import os
import socket
import socketserver
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mlflow import MlflowClient


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def mlflow_server(folder: Path, port: int) -> Iterator[str]:
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db",
               "--artifacts-destination", str(folder / "artifacts"), "--host", "127.0.0.1", "--port", str(port),
               "--workers", "1", "--app-name", "sluice"]  # fmt: skip
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    server = subprocess.Popen(command, cwd=folder, start_new_session=True, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, env=environment)  # fmt: skip
    try:
        uri = f"http://127.0.0.1:{port}"
        for _ in range(240):
            try:
                urllib.request.urlopen(f"{uri}/health", timeout=2)
                break
            except OSError:
                assert server.poll() is None, "the server has ended: is the package installed anew (make install)?"
                time.sleep(0.5)
        else:
            pytest.fail("the server does not answer")
        yield uri
    finally:
        os.killpg(server.pid, 9)
        server.wait()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An MLflow server, one for all tests; each uses experiments of its own."""
    with mlflow_server(tmp_path_factory.mktemp("mlflow"), free_port()) as uri:
        yield uri


@contextmanager
def relay(port: int, uri: str) -> Iterator[None]:
    """Within the block, connections to `port` reach the server at `uri`."""
    host, _, there = uri.removeprefix("http://").partition(":")

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(1 << 16):
                target.sendall(content)
            target.shutdown(socket.SHUT_WR)

    class Both(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection((host, int(there))) as server:
                answers = threading.Thread(target=pump, args=(server, self.request))
                answers.start()
                pump(self.request, server)
                answers.join()

    with Relay(("127.0.0.1", port), Both) as listener:
        threading.Thread(target=listener.serve_forever, args=(0.05,)).start()
        try:
            yield
        finally:
            listener.shutdown()


class Relay(socketserver.ThreadingTCPServer):
    """Ends without waiting for clients that keep their connections open."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True


def client(uri: str) -> "MlflowClient":
    """A client of the server; its modules take seconds to import."""
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)

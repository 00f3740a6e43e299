"""Metadata servers of AWS and GCP on loopback, according to their documentation."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TERMINATION = {"action": "terminate", "time": "2026-11-23T10:12:00Z"}


class MetadataServer(ThreadingHTTPServer):
    """Both interfaces at one address."""

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.preempted = False
        self.tokens: list[str] = []
        self.requests: list[tuple[str, str, int]] = []
        """Method, path and status of every answer."""
        self.body: bytes | None = None
        """Answered with 200 to any GET instead of what is documented."""

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def forget_tokens(self) -> None:
        """Lets all tokens expire."""
        self.tokens.clear()


class _Handler(BaseHTTPRequestHandler):
    server: MetadataServer

    def do_PUT(self) -> None:
        """IMDSv2's token."""
        ttl = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "0")
        if self.path != "/latest/api/token" or not 1 <= int(ttl) <= 21600 or "X-Forwarded-For" in self.headers:
            self._answer(400)
            return
        self.server.tokens.append(f"token-{len(self.server.requests)}")
        self._answer(200, self.server.tokens[-1].encode())

    def do_GET(self) -> None:
        """The notice of either provider."""
        if self.server.body is not None:
            self._answer(200, self.server.body)
        elif self.path == "/latest/meta-data/spot/instance-action":
            self._aws()
        elif self.path == "/computeMetadata/v1/instance/preempted":
            self._gcp()
        else:
            self._answer(404)

    def _aws(self) -> None:
        if self.headers.get("X-aws-ec2-metadata-token") not in self.server.tokens:
            self._answer(401)
        elif self.server.preempted:
            self._answer(200, json.dumps(TERMINATION).encode())
        else:
            self._answer(404)

    def _gcp(self) -> None:
        if self.headers.get("Metadata-Flavor") != "Google":
            self._answer(403)
        else:
            self._answer(200, b"TRUE" if self.server.preempted else b"FALSE", {"Metadata-Flavor": "Google"})

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.server.requests.append((self.command, self.path, status))
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Writes nothing."""


@contextmanager
def metadata_server(port: int = 0) -> Iterator[MetadataServer]:
    """Yields a server that answers; port 0: any."""
    server = MetadataServer(port)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

"""S3 server on loopback with fault injection: moto behind a WSGI layer that injects faults.

In a test: `with S3Server() as s3: ...`. As a separate process (for stacks of several processes):
`python -m tests.s3_server --port 9000 --bucket sluice --faults 0.3`; GET /__faults returns the injected faults.
"""

import argparse
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from werkzeug.serving import WSGIRequestHandler, make_server

from tests.waiting import until

KINDS = ("503", "slow", "reset", "lost reply", "cut")
"""Kinds of faults: refused, delayed, connection reset before or after the operation, truncated response."""

SECRET = "planted-secret-8c1f5f0e"


@dataclass
class Rule:
    """One scripted fault: `times` requests of `method` whose path matches `path`, after the first `after` of them."""

    kind: str
    method: str = ".*"
    path: str = ".*"
    times: int = 1
    delay_s: float = 0.5
    after: int = 0

    def fits(self, environ: dict[str, Any]) -> bool:
        return bool(
            self.times > 0
            and re.fullmatch(self.method, environ["REQUEST_METHOD"])
            and re.search(self.path, environ["PATH_INFO"])
        )


class Faults:
    """A WSGI application around `app` that corrupts some responses."""

    def __init__(self, app: Any, share: float = 0.0, seed: int = 0) -> None:
        self.app = app
        self.share = share
        self.refusals = dict(REFUSALS)
        self.rules: list[Rule] = []
        self.told: Counter[str] = Counter()
        self.requests = 0
        self._seed = seed
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def calm(self) -> None:
        """Removes all faults and their log, and resets the random sequence."""
        with self._lock:
            self.rules, self.share = [], 0.0
            self.told.clear()
            self._random.seed(self._seed)

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/__faults":
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps({"requests": self.requests, "faults": dict(self.told)}).encode()]
        kind, delay = self._pick(environ)
        return self._answer(kind, delay, environ, start)

    def _pick(self, environ: dict[str, Any]) -> tuple[str, float]:
        with self._lock:
            self.requests += 1
            fitting = [rule for rule in self.rules if rule.fits(environ)]
            rule = next((rule for rule in fitting if not rule.after), None)
            for waiting in fitting:
                waiting.after = max(0, waiting.after - 1)
            if rule:
                rule.times -= 1
                kind, delay = rule.kind, rule.delay_s
            elif self.share and self._random.random() < self.share:
                kind, delay = self._random.choice(KINDS), 0.3
            else:
                return "", 0.0
            self.told[kind] += 1
            return kind, delay

    def _answer(self, kind: str, delay: float, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        if kind in self.refusals:
            _drain(environ)
            status, code, headers = self.refusals[kind]
            start(status, [("Content-Type", "application/xml"), *headers])
            return [f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()]
        if kind == "reset":
            _hang_up(environ)
        if kind == "slow":
            time.sleep(delay)
        if kind == "ignore condition":
            environ["unconditional"] = True
            environ.pop("HTTP_IF_NONE_MATCH", None)
            environ["QUERY_STRING"] = environ["QUERY_STRING"].replace("ifGenerationMatch=0", "")
        if kind == "lost reply":
            b"".join(self.app(environ, lambda *_: None))
            _hang_up(environ)
        if kind == "slow reply":
            reply = list(self.app(environ, start))
            time.sleep(delay)
            return reply
        if kind == "cut":
            return _half(self.app(environ, start), environ)
        return self.app(environ, start)


Refusal = tuple[str, str, list[tuple[str, str]]]

REFUSALS: dict[str, Refusal] = {
    "503": ("503 Slow Down", "SlowDown", []),
    "500": ("500 Internal Server Error", "InternalError", []),
    "403": ("403 Forbidden", "AccessDenied", []),
    "unknown key": ("403 Forbidden", "InvalidAccessKeyId", []),
    "expired": ("400 Bad Request", "ExpiredToken", []),
    "full": ("507 Insufficient Storage", "XMinioStorageFull", []),
    "region": ("301 Moved Permanently", "PermanentRedirect", [("x-amz-bucket-region", "eu-west-1")]),
}


def _half(chunks: Iterable[bytes], environ: dict[str, Any]) -> Iterable[bytes]:
    body = b"".join(chunks)
    # At least one byte: the headers must be sent before the connection dies.
    yield body[: max(1, len(body) // 2)]
    _hang_up(environ)


def _drain(environ: dict[str, Any]) -> None:
    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))


def _hang_up(environ: dict[str, Any]) -> None:
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    raise ConnectionError("injected")


class _Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def make_environ(self) -> dict[str, Any]:
        """Adds the headers as sent: WSGI has no place for names with an underscore."""
        return {**super().make_environ(), "sent.headers": dict(self.headers.items())}

    def log(self, *_: Any, **__: Any) -> None:
        """Logs nothing: faults would flood the output."""


def environment(url: str) -> dict[str, str]:
    """Returns the AWS environment of a client of the server at `url`."""
    return {
        "AWS_ACCESS_KEY_ID": "sluice",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_S3": url,
        # Not the credential files and metadata service of the developer's machine.
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


class FaultyServer:
    """A WSGI application with faults, in a thread of this process.

    Attributes:
        url: of the server.
        faults: to be injected.
        environment: variables for its clients.
    """

    def __init__(self, app: Any, *, port: int = 0, share: float = 0.0, seed: int = 0) -> None:
        self.faults = Faults(app, share, seed)
        self._server = make_server("127.0.0.1", port, self.faults, threaded=True, request_handler=_Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.environment: dict[str, str] = {}

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Atomic:
    """Moto checks If-None-Match, then stores, without a lock; S3 does both at once."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        if "HTTP_IF_NONE_MATCH" not in environ:
            return self.app(environ, start)
        with self._lock:
            return list(self.app(environ, start))


class S3Server(FaultyServer):
    """The S3 server; `environment` has the variables for its clients."""

    def __init__(self, *, port: int = 0, share: float = 0.0, seed: int = 0, buckets: tuple[str, ...] = ("sluice",)):
        # Imported here: it takes half a second, and a separate server or another one needs it not in this process.
        from moto.server import DomainDispatcherApplication, create_backend_app

        super().__init__(_Atomic(DomainDispatcherApplication(create_backend_app)), port=port, share=share, seed=seed)
        self.buckets = buckets
        self.environment = environment(self.url)

    def __enter__(self) -> Self:
        super().__enter__()
        share, self.faults.share = self.faults.share, 0.0
        client = self.client()
        for bucket in self.buckets:
            client.create_bucket(Bucket=bucket)
        self.faults.share = share
        return self

    def client(self) -> Any:
        """Returns a boto3 client, which is subject to the faults."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id="sluice",
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )


@contextmanager
def separate_server() -> Iterator[dict[str, str]]:
    """Runs the server as a process; yields the environment of its clients.

    For clients that hold Python's lock while they wait for a response, such as deltalake: they would wait forever for
    a server in their own process.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "tests.s3_server", "--port", str(port)]
    server = subprocess.Popen(command, cwd=root, env=os.environ | {"PYTHONPATH": str(root)})
    try:
        until(lambda: _answers(port), 60)
        yield environment(f"http://127.0.0.1:{port}")
    finally:
        server.kill()
        server.wait()


def _answers(port: int) -> bool:
    """Returns whether the server answers, which it does once it has its bucket."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        client.request(
            "HEAD", "/sluice", headers={"Authorization": "AWS4-HMAC-SHA256 Credential=sluice/1/us-east-1/s3"}
        )
        return client.getresponse().status == 200
    except OSError:
        return False
    finally:
        client.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.s3_server")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--bucket", default="sluice")
    parser.add_argument("--faults", type=float, default=0.0, help="share of requests that go wrong")
    options = parser.parse_args()
    with S3Server(port=options.port, share=options.faults, buckets=(options.bucket,)):
        signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main()

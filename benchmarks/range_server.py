"""A read-only S3 server: GET, with or without a range, and HEAD of the files of one folder, as the bucket `bucket`.

    python -m benchmarks.range_server FOLDER [--pause-ms 10]

Prints its URL. Each response starts after a pause, about the latency of an object store.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from benchmarks.harness import ROOT, parser


class Handler(BaseHTTPRequestHandler):
    """Answers from `folder`, each time after `pause_s`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a small file would wait 40 ms for the acknowledgement of its headers
    folder: Path
    pause_s: float

    def do_GET(self) -> None:
        """Sends the file, or the requested range of it."""
        time.sleep(self.pause_s)
        path = self.folder / self.path.partition("?")[0].removeprefix("/bucket/")
        if not path.is_file():
            self._begin(404, 0)
            return
        size = path.stat().st_size
        named = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        first, end = (int(named[1]), min(int(named[2]) + 1, size)) if named else (0, size)
        self._begin(206 if named else 200, end - first, f"bytes {first}-{end - 1}/{size}")
        self.wfile.flush()
        if self.command == "GET":
            with path.open("rb") as file:
                while first < end:
                    first += os.sendfile(self.connection.fileno(), file.fileno(), first, end - first)

    do_HEAD = do_GET

    def _begin(self, status: int, length: int, content_range: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.send_header("ETag", '"0"')
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


class Server(ThreadingHTTPServer):
    """Accepts many connections at once: clients retry one that does not fit into the queue only after a second."""

    request_queue_size = 256


@contextmanager
def served(folder: Path, pause_ms: float = 10.0) -> Iterator[dict[str, str]]:
    """Serves a folder as `s3://bucket` from a separate process; yields the environment variables of a client."""
    command = [sys.executable, "-m", "benchmarks.range_server", str(folder), "--pause-ms", str(pause_ms)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        url = server.stdout.readline().strip()
        keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
        try:
            yield {"AWS_ENDPOINT_URL_S3": url, **keys}
        finally:
            server.kill()


def main() -> None:
    options = parser(__doc__)
    options.add_argument("folder", type=Path)
    options.add_argument("--pause-ms", type=float, default=10.0)
    given = options.parse_args()
    Handler.folder, Handler.pause_s = given.folder, given.pause_ms / 1000
    server = Server(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()

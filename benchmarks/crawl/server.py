"""nginx for the crawl benchmark: every virtual host of a corpus on one port of loopback, bodies as gzip from disk.

Reads the folder that `corpus` wrote. Needs no root; its configuration and its files live in a temporary folder.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

# Keep-alive as long as a crawl lasts; files stay open, so that the server costs the crawlers little.
_CONF = """
daemon off;
{user}
worker_processes 1;
pid {work}/nginx.pid;
error_log {work}/error.log;
events {{ worker_connections 1024; }}
http {{
    types {{ text/html html; text/plain txt; }}
    charset utf-8;
    {temporary}
    log_format asked '$host$request_uri $status';
    access_log {work}/access.log asked;
    sendfile on;
    tcp_nopush on;
    keepalive_timeout 600;
    keepalive_requests 1000000;
    open_file_cache max=20000;
    gzip_static always;
    server {{
        listen 127.0.0.1:{port} default_server;
        root {root}/$host;
        location = /robots.txt {{ gzip_static off; }}
        location / {{ rewrite ^(.*)/$ $1/index.html break; }}
    }}
}}
"""


class MissingServerError(Exception):
    """nginx is not installed."""


class Server:
    """A running nginx.

    Attributes:
        port: where it listens on 127.0.0.1.
    """

    def __init__(self, port: int, log: Path) -> None:
        self.port = port
        self._log = log
        self._read = 0

    def asked(self) -> list[str]:
        """Returns "host/path status" of every request since the last call."""
        with self._log.open() as file:
            file.seek(self._read)
            lines = file.read()
        self._read += len(lines)
        return lines.splitlines()


@contextlib.contextmanager
def serve(root: Path) -> Iterator[Server]:
    """Serves the hosts below `root` until the end of the context.

    Raises:
        MissingServerError: nginx is not installed.
    """
    program = shutil.which("nginx", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))
    if program is None:
        raise MissingServerError("the crawl benchmark needs nginx; install it: apt-get install nginx-light")
    with tempfile.TemporaryDirectory(prefix="sluice-crawl-") as work:
        port = _free_port()
        conf = Path(work) / "nginx.conf"
        conf.write_text(_configuration(root, work, port))
        command = [program, "-e", f"{work}/error.log", "-p", work, "-c", str(conf)]
        process = subprocess.Popen(command)
        try:
            _wait(process, port, Path(work) / "error.log")
            yield Server(port, Path(work) / "access.log")
        finally:
            process.terminate()
            process.wait()


def _configuration(root: Path, work: str, port: int) -> str:
    temporary = "".join(
        f"{name}_temp_path {work}/{name}; " for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    # Started by root, the worker would become "nobody", who may not read a developer's folders.
    user = "user root;" if os.geteuid() == 0 else ""
    return _CONF.format(user=user, work=work, temporary=temporary, port=port, root=root)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], port: int, errors: Path) -> None:
    for _ in range(100):
        if process.poll() is not None:
            raise RuntimeError(f"nginx does not start: {errors.read_text() if errors.exists() else 'no message'}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise RuntimeError(f"nginx does not listen on 127.0.0.1:{port}")

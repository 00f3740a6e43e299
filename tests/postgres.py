"""A temporary Postgres server on loopback, from local binaries; skips if there are none.

In a test: `with PostgresServer() as server: server.url(...)`. As root it runs as `nobody`.
"""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

PASSWORD = "planted-password-5d2e"
ADMIN_PASSWORD = "planted-admin-91b7"


def binaries() -> Path | None:
    """Returns the folder of `initdb` and `postgres`, or None."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "postgres").exists()), None)


class PostgresServer:
    """A server with the users `admin` (all rights) and `sluice` (may log in and create databases)."""

    def __init__(self) -> None:
        folder = binaries()
        if folder is None:
            pytest.skip("no Postgres here: apt-get install postgresql")
        self.bin = folder
        self.data = Path(tempfile.mkdtemp(prefix="sluice-postgres-"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._user = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid} if os.getuid() == 0 else {}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        secret = self.data / "secret"
        secret.write_text(ADMIN_PASSWORD)
        if self._user:
            for path in (self.data, secret):
                shutil.chown(path, "nobody")
        how = ["--username=admin", f"--pwfile={secret}", "--auth=scram-sha-256", "--no-sync", "--encoding=UTF8"]
        made = self._run([self.bin / "initdb", f"--pgdata={self.data / 'data'}", "--locale=C", *how])
        assert made.wait(60) == 0, (self.data / "log").read_text()
        self.start()
        self.query("postgres", f"CREATE ROLE sluice LOGIN CREATEDB PASSWORD '{PASSWORD}'")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()
        shutil.rmtree(self.data, ignore_errors=True)

    def start(self) -> None:
        """Starts the server and waits until it answers."""
        where = ["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-k", self.data, "-p", str(self.port)]
        self._process = self._run([self.bin / "postgres", "-D", self.data / "data", *where])
        deadline = time.monotonic() + 30
        while True:
            try:
                self.query("postgres", "SELECT 1")
                return
            except Exception:
                assert time.monotonic() < deadline, (self.data / "log").read_text()
                time.sleep(0.1)

    def stop(self) -> None:
        """Stops the server, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def url(self, user: str = "sluice", password: str = PASSWORD) -> str:
        """Returns SLUICE_DATABASE for this server."""
        return f"postgresql+psycopg2://{user}:{password}@127.0.0.1:{self.port}"

    def query(self, database: str, text: str) -> list[tuple[Any, ...]]:
        """Runs one statement as the administrator."""
        import psycopg2

        connection = psycopg2.connect(
            host="127.0.0.1", port=self.port, user="admin", password=ADMIN_PASSWORD, dbname=database
        )
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(text)
                return list(cursor.fetchall()) if cursor.description else []
        finally:
            connection.close()

    def _run(self, command: list[Any]) -> subprocess.Popen[bytes]:
        with (self.data / "log").open("ab") as log:
            return subprocess.Popen(
                [str(word) for word in command],
                cwd=self.data,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **self._user,
            )

"""Emulators of Azure's and Google's stores and of HDFS on loopback, behind the faults of `tests.s3_server`.

Azurite comes from npm, gcp-storage-emulator from PyPI; `make oracles` installs both. That of HDFS is here.
"""

import hashlib
import http.client
import importlib.util
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, quote, urlencode

from tests.s3_server import FaultyServer

AZURITE = Path(
    os.environ.get("SLUICE_AZURITE", Path(__file__).parents[2] / ".venv/azurite"),
    "node_modules/azurite/dist/src/blob/main.js",
)
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's well-known account, which is no secret."""

AZURE_CODES = {"403": "AuthorizationPermissionMismatch", "unknown key": "AuthenticationFailed"}
"""What Azure calls refusals, in a header."""
GOOGLE_STATUS = {"unknown key": "403 Forbidden", "expired": "401 Unauthorized"}
"""How Google answers what S3 answers with another status."""

_OF_ONE_HOP = {"connection", "keep-alive", "transfer-encoding"}


class Proxy:
    """A WSGI application that forwards requests to a server on loopback."""

    def __init__(self, port: int) -> None:
        self.port = port

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        lost = _OF_ONE_HOP if "HTTP_IF_NONE_MATCH" in environ else _OF_ONE_HOP | {"if-none-match"}
        headers = {name: value for name, value in environ["sent.headers"].items() if name.lower() not in lost}
        status, reason, replied, content = self.ask(environ["REQUEST_METHOD"], environ["REQUEST_URI"], body, headers)
        start(f"{status} {reason}", [(name, value) for name, value in replied if name.lower() not in _OF_ONE_HOP])
        return [content]

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, str, list[tuple[str, str]], bytes]:
        """Returns status, reason, headers and content of the server's response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body or None, headers or {})
            response = connection.getresponse()
            return response.status, response.reason, response.getheaders(), response.read()
        finally:
            connection.close()


class Conditional:
    """Honors `ifGenerationMatch=0` of uploads in one request, as Google does; the emulator from PyPI ignores it."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        query = parse_qs(environ["QUERY_STRING"])
        if query.get("ifGenerationMatch") != ["0"]:
            return self.proxy(environ, start)
        assert query["uploadType"] == ["multipart"]
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        name = json.loads(body.split(b"\n\n", 2)[1].split(b"\n")[0])["name"]
        bucket = re.findall("/b/([^/]+)/o", environ["PATH_INFO"])[0]
        with self._lock:
            if self.proxy.ask("GET", f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}")[0] == 200:
                start("412 Precondition Failed", [("Content-Type", "application/json")])
                return [b'{"error": {"code": 412, "message": "conditionNotMet"}}']
            return self.proxy({**environ, "wsgi.input": _Body(body)}, start)


class _Body:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, size: int = -1) -> bytes:
        return self.data


class Emulator(FaultyServer):
    """An emulator in a process of its own, behind faults.

    Args:
        command: starts it on the port that replaces PORT.
        layer: a WSGI application around the proxy.
    """

    def __init__(self, command: list[str], layer: Any = None) -> None:
        self.port = free_port()
        self._command = [part.replace("PORT", str(self.port)) for part in command]
        self.proxy = Proxy(self.port)
        self.layer = layer(self.proxy) if layer else self.proxy
        super().__init__(self.layer)

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while not _listens(self.port):
            assert self._process.poll() is None, self._command
            assert time.monotonic() < deadline, self._command
            time.sleep(0.05)
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._process.kill()
        self._process.wait()


class Azure(Emulator):
    """Azurite with the container `sluice`."""

    def __init__(self) -> None:
        options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--silent", "--disableTelemetry"]
        super().__init__(["node", str(AZURITE), "--blobHost", "127.0.0.1", "--blobPort", "PORT", *options])
        blob = importlib.import_module("azure.storage.blob")
        rights = {"permission": blob.AccountSasPermissions.from_string("rwdlac"), "expiry": "2100-01-01"}
        types = blob.ResourceTypes(service=True, container=True, object=True)
        # A signature of requests would not allow a fault to remove a header.
        token = blob.generate_account_sas(ACCOUNT, KEY, types, **rights)
        endpoint = f"BlobEndpoint={self.url}/{ACCOUNT};SharedAccessSignature={token}"
        self.environment = {"AZURE_STORAGE_CONNECTION_STRING": endpoint}
        for kind, code in AZURE_CODES.items():
            self.faults.refusals[kind] = ("403 Forbidden", code, [("x-ms-error-code", code)])
        expired = "InvalidAuthenticationInfo"
        self.faults.refusals["expired"] = ("401 Unauthorized", expired, [("x-ms-error-code", expired)])

    def __enter__(self) -> Self:
        super().__enter__()
        service = importlib.import_module("azure.storage.blob").BlobServiceClient
        with service.from_connection_string(self.environment["AZURE_STORAGE_CONNECTION_STRING"]) as client:
            client.create_container("sluice")
        return self


class Google(Emulator):
    """gcp-storage-emulator with the bucket `sluice`, and with the conditions that it ignores."""

    layer: Conditional

    def __init__(self) -> None:
        options = ["start", "--host", "127.0.0.1", "--port", "PORT", "--in-memory", "--default-bucket", "sluice"]
        super().__init__([sys.executable, "-m", "gcp_storage_emulator", *options], Conditional)
        self.environment = {
            "STORAGE_EMULATOR_HOST": self.url,
            "NO_GCE_CHECK": "true",
            # It would ask Google, by gRPC, what kind of bucket this is.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }
        for kind, status in GOOGLE_STATUS.items():
            self.faults.refusals[kind] = (status, *self.faults.refusals[kind][1:])


class Hadoop(FaultyServer):
    """HDFS behind WebHDFS, in memory: name node and data node, which are told apart by the path.

    Attributes:
        users: names that requests had.
    """

    def __init__(self) -> None:
        super().__init__(self.answer)
        self.users: set[str] = set()
        self.faults.refusals["expired"] = ("401 Unauthorized", "AuthenticationException", [])
        self._files: dict[str, tuple[int, bytes]] = {}
        self._folders = {"/"}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def answer(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        """Answers a request of WebHDFS, as Hadoop 3 does."""
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        query = {name: values[0] for name, values in parse_qs(environ["QUERY_STRING"]).items()}
        self.users.add(query.get("user.name", ""))
        node, _, path = environ["PATH_INFO"].removeprefix("/").partition("/v1")
        query["unconditional"] = environ.get("unconditional", False)
        with self._lock:
            status, content = getattr(self, f"_{node}_{query['op'].lower()}")(path, query, body)
        headers = [("Content-Type", "application/json")]
        if status.startswith("307"):
            headers = [("Location", f"{self.url}/data/v1{quote(path)}?{urlencode(query)}")]
        start(status, headers)
        return [content if isinstance(content, bytes) else json.dumps(content).encode()]

    def _webhdfs_create(self, path: str, *_: Any) -> tuple[str, Any]:
        return "307 Temporary Redirect", b""

    def _data_create(self, path: str, query: dict[str, str], body: bytes) -> tuple[str, Any]:
        self._webhdfs_mkdirs(path.rpartition("/")[0])
        self._files[path] = (next(self._numbers), body)
        return "201 Created", b""

    def _webhdfs_open(self, path: str, query: dict[str, str], _: bytes) -> tuple[str, Any]:
        if path not in self._files:
            return _remote("404 Not Found", "FileNotFoundException", f"File does not exist: {path}")
        offset, length = int(query.get("offset", 0)), len(self._files[path][1])
        if offset >= length > 0:
            said = f"Offset={offset} out of the range [0, {length}); OPEN, path={path}"
            return _remote("403 Forbidden", "IOException", said)
        return "307 Temporary Redirect", b""

    def _data_open(self, path: str, query: dict[str, str], _: bytes) -> tuple[str, Any]:
        data, offset = self._files[path][1], int(query.get("offset", 0))
        return "200 OK", data[offset : offset + int(query.get("length", len(data)))]

    def _webhdfs_getfilestatus(self, path: str, *_: Any) -> tuple[str, Any]:
        if not self._exists(path):
            return _remote("404 Not Found", "FileNotFoundException", f"File does not exist: {path}")
        return "200 OK", {"FileStatus": self._status(path, "")}

    def _webhdfs_liststatus(self, path: str, *_: Any) -> tuple[str, Any]:
        if not self._exists(path):
            return _remote("404 Not Found", "FileNotFoundException", f"File {path} does not exist.")
        below = (one for one in {*self._files, *self._folders} if one.rpartition("/")[0] == path.rstrip("/"))
        names = [""] if path in self._files else [one.rpartition("/")[2] for one in below if one != "/"]
        listed = [self._status(f"{path}/{name}".rstrip("/"), name) for name in names]
        return "200 OK", {"FileStatuses": {"FileStatus": listed}}

    def _webhdfs_getfilechecksum(self, path: str, *_: Any) -> tuple[str, Any]:
        if path not in self._files:
            return _remote("404 Not Found", "FileNotFoundException", f"File does not exist: {path}")
        return "307 Temporary Redirect", b""

    def _data_getfilechecksum(self, path: str, *_: Any) -> tuple[str, Any]:
        return "200 OK", {"FileChecksum": {"algorithm": "MD5", "bytes": hashlib.md5(self._files[path][1]).hexdigest()}}

    def _webhdfs_mkdirs(self, path: str, *_: Any) -> tuple[str, Any]:
        while path:
            self._folders.add(path)
            path = path.rpartition("/")[0]
        return "200 OK", {"boolean": True}

    def _webhdfs_rename(self, path: str, query: dict[str, str], _: bytes) -> tuple[str, Any]:
        target = query["destination"]
        free = query["unconditional"] or not self._exists(target)
        done = path in self._files and free and target.rpartition("/")[0] in self._folders
        if done:
            self._files[target] = self._files.pop(path)
        return "200 OK", {"boolean": done}

    def _webhdfs_delete(self, path: str, *_: Any) -> tuple[str, Any]:
        gone = [one for one in {*self._files, *self._folders} if f"{one}/".startswith(f"{path}/")]
        for one in gone:
            self._files.pop(one, None)
            self._folders.discard(one)
        return "200 OK", {"boolean": bool(gone)}

    def _exists(self, path: str) -> bool:
        return path in self._files or (path.rstrip("/") or "/") in self._folders

    def _status(self, path: str, name: str) -> dict[str, Any]:
        number, data = self._files.get(path, (0, b""))
        kind = "FILE" if number else "DIRECTORY"
        return {"pathSuffix": name, "type": kind, "length": len(data), "fileId": number, "modificationTime": number}


def _remote(status: str, exception: str, message: str) -> tuple[str, Any]:
    return status, {"RemoteException": {"exception": exception, "message": message}}


def why_no_azure() -> str:
    """Returns why Azurite cannot run here; "" if it can."""
    if not shutil.which("node") or not AZURITE.is_file():
        return "azurite is not installed: `make oracles` does that if npm is here"
    return ""


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True

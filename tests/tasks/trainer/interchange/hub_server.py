"""A server on loopback with the endpoints of the Hugging Face hub that `huggingface_hub` calls. Not a test module.

It serves one model, at /api/models/<name>/revision/<revision> and /<name>/resolve/<revision>/<file>, with the headers
of the hub (X-Repo-Commit, ETag, X-Linked-Etag, X-Linked-Size) and ranges; and the same files below /files/, like a
plain web server.
"""

import hashlib
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

NAME, COMMIT = "ink/pot", "0123456789abcdef0123456789abcdef01234567"
REVISIONS = ("main", "v1")


class Request(NamedTuple):
    """A request that the server has answered."""

    method: str
    path: str
    range: str
    authorization: str


class HubServer(ThreadingHTTPServer):
    """Serves the files of a folder as a model of the hub; `with HubServer(folder) as hub: ...`.

    Attributes:
        requests: all requests, in order.
        cut: called with method, path and range; whether the response ends after half of its body.
        ranges: whether requests for a part of a file are answered with this part.
        commit: of the branch `main` and the tag `v1`.
        refused: status of all responses of the hub; 0: it answers. 403 is sent as for a gated model.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.requests = folder, list[Request]()
        self.cut: Callable[[Request], bool] = lambda request: False
        self.refused = 0
        self.commit = COMMIT
        self.ranges = True
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def __exit__(self, *args: Any) -> None:
        self.shutdown()
        super().__exit__(*args)

    def fetched(self, name: str) -> list[Request]:
        """Returns the downloads of a file."""
        return [one for one in self.requests if one.method == "GET" and one.path.endswith(f"/{name}")]


class _Handler(BaseHTTPRequestHandler):
    server: HubServer

    def log_message(self, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = urlsplit(self.path).path
        headers = (self.headers.get("Range") or "", self.headers.get("Authorization") or "")
        request = Request(self.command, path, *headers)
        self.server.requests.append(request)
        parts = path.strip("/").split("/")
        if parts[0] == "files":
            self._send_file(request, self.server.folder / "/".join(parts[1:]), {})
        elif self.server.refused:
            gated = {"X-Error-Code": "GatedRepo", "X-Error-Message": "accept the terms"}
            self._send(self.server.refused, b"", gated if self.server.refused == 403 else {})
        elif "/".join(parts[:2]) != NAME and "/".join(parts[2:4]) != NAME:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif parts[0] == "api":
            known = len(parts) == 4 or "/".join(parts[5:]) in (*REVISIONS, self.server.commit)
            content = json.dumps(self._info()).encode()
            self._send(*((200, content, {}) if known else (404, b"", {"X-Error-Code": "RevisionNotFound"})))
        else:
            self._send_file(request, self.server.folder / parts[-1], {"X-Repo-Commit": self.server.commit})

    def _info(self) -> dict[str, Any]:
        siblings = []
        for path in sorted(self.server.folder.iterdir()):
            data = path.read_bytes()
            entry = {"rfilename": path.name, "size": len(data), "blobId": _git_hash(data)}
            if path.suffix == ".safetensors":
                entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            siblings.append(entry)
        return {"_id": "0", "id": NAME, "sha": self.server.commit, "siblings": siblings, "tags": [], "private": False}

    def _send_file(self, request: Request, path: Path, headers: dict[str, str]) -> None:
        if not path.is_file():
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", **headers})
            return
        data = path.read_bytes()
        headers = {"ETag": f'"{_git_hash(data)}"', "Accept-Ranges": "bytes", **headers}
        if path.suffix == ".safetensors" and "X-Repo-Commit" in headers:
            linked = {"X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Linked-Size": str(len(data))}
            headers |= linked
        status = 200
        if request.range and self.server.ranges:
            first, _, last = request.range.removeprefix("bytes=").partition("-")
            end = min(int(last) + 1, len(data)) if last else len(data)
            headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(data)}"
            status, data = 206, data[int(first) : end]
        self._send(status, data, headers, cut=self.server.cut(request))

    def _send(self, status: int, data: bytes, headers: dict[str, str], cut: bool = False) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data)), "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[: len(data) // 2] if cut else data)
        self.close_connection = True


def _git_hash(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

"""A server on loopback with the endpoints of the Hugging Face hub that `huggingface_hub` calls. Not a test module.

It serves one model, at /api/models/<name>/revision/<revision> and /<name>/resolve/<revision>/<file>, with the headers
of the hub (X-Repo-Commit, ETag, X-Linked-Etag, X-Linked-Size) and ranges; and the same files below /files/, like a
plain web server. The same folder is a dataset, at /api/datasets/<name>/revision/<revision>, its listing in pages of two
files at /api/datasets/<name>/tree/<revision>/<folder>, and /datasets/<name>/resolve/<revision>/<file>, which redirects
large files to another host name.
"""

import hashlib
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

NAME, COMMIT = "ink/pot", "0123456789abcdef0123456789abcdef01234567"
REVISIONS = ("main", "v1")
LARGE = (".safetensors", ".parquet", ".bin")
"""Suffixes of files that are not in git itself."""
_PAGE = 2
"""Files of a page of a listing."""


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
        license: that the card of the dataset states.
        faults: status and headers of the next responses of the hub, first to last.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.requests = folder, list[Request]()
        self.cut: Callable[[Request], bool] = lambda request: False
        self.refused, self.license = 0, "cc-by-4.0"
        self.faults = list[tuple[int, dict[str, str]]]()
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
        path = unquote(urlsplit(self.path).path)
        headers = (self.headers.get("Range") or "", self.headers.get("Authorization") or "")
        request = Request(self.command, path, *headers)
        self.server.requests.append(request)
        parts = path.strip("/").split("/")
        if parts[0] == "files":
            self._send_file(request, self.server.folder / "/".join(parts[1:]), {})
        elif self.server.faults:
            self._send(self.server.faults[0][0], b"", self.server.faults.pop(0)[1])
        elif self.server.refused:
            gated = {"X-Error-Code": "GatedRepo", "X-Error-Message": "accept the terms"}
            self._send(self.server.refused, b"", gated if self.server.refused == 403 else {})
        elif "datasets" in parts[:2]:
            self._answer_dataset(request, parts[parts.index("datasets") + 1 :], is_api=parts[0] == "api")
        elif "/".join(parts[:2]) != NAME and "/".join(parts[2:4]) != NAME:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif parts[0] == "api":
            known = len(parts) == 4 or "/".join(parts[5:]) in (*REVISIONS, self.server.commit)
            content = json.dumps(self._info()).encode()
            self._send(*((200, content, {}) if known else (404, b"", {"X-Error-Code": "RevisionNotFound"})))
        else:
            path = self.server.folder / "/".join(parts[4:])
            self._send_file(request, path, {"X-Repo-Commit": self.server.commit})

    def _answer_dataset(self, request: Request, parts: list[str], *, is_api: bool) -> None:
        known = len(parts) == 2 or parts[3] in (*REVISIONS, COMMIT, self.server.commit)
        if "/".join(parts[:2]) != NAME:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif not known:
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif not is_api:
            self._send_large_file(request, "/".join(parts[4:]))
        elif parts[2:3] == ["tree"]:
            self._send_tree("/".join(parts[4:]))
        else:
            revision = parts[3] if len(parts) > 2 else ""
            commit = COMMIT if revision == COMMIT else self.server.commit
            info = {"_id": "0", "id": NAME, "sha": commit, "cardData": {"license": self.server.license}}
            self._send(200, json.dumps(info).encode(), {})

    def _send_large_file(self, request: Request, name: str) -> None:
        path = self.server.folder / name
        if path.suffix not in LARGE:
            self._send_file(request, path, {"X-Repo-Commit": self.server.commit})
            return
        location = f"http://localhost:{self.server.server_port}/files/{quote(name)}?X-Amz-Signature=planted"
        self._send(302, b"", {"Location": location, "X-Repo-Commit": self.server.commit})

    def _send_tree(self, folder: str) -> None:
        root = self.server.folder
        if not (root / folder).is_dir():
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        paths = sorted(path for path in (root / folder).rglob("*") if path.is_file())
        first = int(parse_qs(urlsplit(self.path).query).get("cursor", ["0"])[0])
        page = [_tree_entry(path, str(path.relative_to(root))) for path in paths[first : first + _PAGE]]
        link = f'<{self.server.url}{urlsplit(self.path).path}?recursive=True&cursor={first + _PAGE}>; rel="next"'
        more = {"Link": link} if first + _PAGE < len(paths) else {}
        self._send(200, json.dumps(page).encode(), {"Content-Type": "application/json", **more})

    def _info(self) -> dict[str, Any]:
        siblings, root = [], self.server.folder
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            data = path.read_bytes()
            entry = {"rfilename": str(path.relative_to(root)), "size": len(data), "blobId": _git_hash(data)}
            if path.suffix in LARGE:
                entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            siblings.append(entry)
        return {"_id": "0", "id": NAME, "sha": self.server.commit, "siblings": siblings, "tags": [], "private": False}

    def _send_file(self, request: Request, path: Path, headers: dict[str, str]) -> None:
        if not path.is_file():
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", **headers})
            return
        data = path.read_bytes()
        headers = {"ETag": f'"{_git_hash(data)}"', "Accept-Ranges": "bytes", **headers}
        if path.suffix in LARGE and "X-Repo-Commit" in headers:
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


def _tree_entry(path: Path, name: str) -> dict[str, Any]:
    data = path.read_bytes()
    entry = {"type": "file", "path": name, "size": len(data), "oid": _git_hash(data)}
    if path.suffix in LARGE:
        entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    return entry


def _git_hash(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

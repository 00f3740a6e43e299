"""The API over HTTP: routes, verbs, watches and logs as streams."""

from __future__ import annotations

import json
import socket
import struct
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from tests.cluster.bed import actions
from tests.cluster.bed.faults import Reset
from tests.cluster.bed.logs import log_lines
from tests.cluster.bed.resources import PODS, ApiError, Object, Resource, expired
from tests.cluster.bed.routes import Route, discovery, route
from tests.cluster.bed.selectors import fields_match, labels_match

if TYPE_CHECKING:
    from tests.cluster.bed.server import Bed

BOOKMARK_S = 1.0
"""How long a quiet watch waits before it sends a bookmark (a cluster: a minute)."""


class Handler(BaseHTTPRequestHandler):
    """One connection; `bed` is set by the server."""

    bed: Bed
    protocol_version = "HTTP/1.1"
    wbufsize = 0

    def log_message(self, *_: Any) -> None:
        """Logs nothing, to keep the output of the tests clean."""

    def do_GET(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def do_PUT(self) -> None:
        self._handle()

    def do_PATCH(self) -> None:
        self._handle()

    def do_DELETE(self) -> None:
        self._handle()

    def _handle(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        try:
            body = json.loads(raw) if raw else None
            self._serve(url.path, query, body)
        except ApiError as error:
            self._answer(error.body, error.code, error.headers)
        except Reset:
            self._reset()
        except json.JSONDecodeError as error:
            self._answer(ApiError(400, "BadRequest", f"error decoding the body: {error}").body, 400)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _serve(self, path: str, query: dict[str, str], body: Any) -> None:
        found = discovery(self.bed.kinds, path)
        if found is not None:
            self._answer(found)
            return
        wanted = route(self.bed.kinds, self.command, path, query)
        if wanted is None:
            self._plain("404 page not found\n", 404)
            return
        disturbed = not (self.headers.get("User-Agent") or "").startswith("observer")
        self._authorize(wanted, disturbed)
        self._start = self.bed.starts if disturbed else None
        if disturbed:
            self.bed.faults.check(wanted.verb, path)
        if wanted.verb == "watch":
            self._watch(wanted, query)
        elif wanted.verb == "log":
            self._log(wanted, query, path)
        else:
            answer, code = actions.act(self.bed, wanted, query, body, self.headers.get("Content-Type") or "")
            if disturbed:
                self.bed.faults.check(wanted.verb, path, late=True)
            self._answer(answer, code)

    def _authorize(self, wanted: Route, disturbed: bool) -> None:
        user = self.bed.tokens.get((self.headers.get("Authorization") or "").removeprefix("Bearer "))
        if user is None and disturbed and time.monotonic() < self.bed.unsynced_until:
            user = "system:serviceaccount:sluice:airflow"
        if user is None:
            return
        one = wanted.resource
        what = f"{one.plural}/{wanted.part}" if wanted.part else one.plural
        named = f'{one.qualified} "{wanted.name}" is forbidden' if wanted.name else f"{one.qualified} is forbidden"
        said = f'{named}: User "{user}" cannot {wanted.verb} resource "{what}" in API group "{one.group}"'
        said += f' in the namespace "{wanted.namespace}"' if one.namespaced else " at the cluster scope"
        raise ApiError(403, "Forbidden", said, {"name": wanted.name, "group": one.group, "kind": one.plural})

    def _watch(self, wanted: Route, query: dict[str, str]) -> None:
        ends = time.monotonic() + float(query.get("timeoutSeconds") or 1800)
        asked = query.get("resourceVersion") or "0"
        store = self.bed.store
        with store.changed:
            current = store.version
            first = store.select(wanted.resource, wanted.namespace) if asked == "0" else []
        version = current if asked == "0" else int(asked)
        if version < store.oldest:
            raise expired(asked, store.oldest)
        self._begin("application/json")
        for obj in first:
            self._event("ADDED", obj, wanted, query, None)
        quiet = time.monotonic()
        while (left := ends - time.monotonic()) > 0 and not self._stopped():
            try:
                changes = store.after(version, min(left, 0.25))
            except ApiError as error:
                self._chunk(json.dumps({"type": "ERROR", "object": error.body}).encode() + b"\n")
                break
            for one in changes:
                version = one.version
                if (one.resource.group, one.resource.plural) == (wanted.resource.group, wanted.resource.plural):
                    self._event(one.type, one.object, wanted, query, one.before)
                    quiet = time.monotonic()
            if query.get("allowWatchBookmarks") == "true" and time.monotonic() - quiet > BOOKMARK_S:
                self._bookmark(wanted.resource, version)
                quiet = time.monotonic()
        self._chunk(b"")

    def _event(self, kind: str, obj: Object, wanted: Route, query: dict[str, str], before: Object | None) -> None:
        """Sends a change as seen by the watcher: an object that starts to match is ADDED, one that stops is DELETED."""
        fits, fitted = (one is not None and _fits(one, wanted, query) for one in (obj, before))
        if kind == "MODIFIED" and fits != fitted:
            kind = "ADDED" if fits else "DELETED"
        elif not fits and not (kind == "DELETED" and fitted):
            return
        self._chunk(json.dumps({"type": kind, "object": obj}).encode() + b"\n")

    def _bookmark(self, resource: Resource, version: int) -> None:
        meta = {"resourceVersion": str(version), "creationTimestamp": None}
        mark = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}
        self._chunk(json.dumps({"type": "BOOKMARK", "object": mark}).encode() + b"\n")

    def _log(self, wanted: Route, query: dict[str, str], path: str) -> None:
        pod = self.bed.store.get(PODS, wanted.namespace, wanted.name)
        lines = log_lines(self.bed, pod, query)
        cut = self.bed.faults.cuts(path)
        self._begin("text/plain")
        sent = 0
        for line in lines:
            if line is None:
                if self._stopped():
                    break
                continue
            if cut and sent == 1:
                self._chunk(line[: max(1, len(line) // 2)])
                raise Reset
            self._chunk(line)
            sent += 1
            if sent == self.bed.faults.cut_log_after:
                raise Reset
        self._chunk(b"")

    def _stopped(self) -> bool:
        """Whether the bed is closing.

        Raises:
            Reset: the server was restarted meanwhile.
        """
        if self._start is not None and self._start != self.bed.starts:
            raise Reset
        return self.bed.closing.is_set()

    def _begin(self, content_type: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _chunk(self, data: bytes) -> None:
        """One chunk; an empty one ends the stream."""
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _answer(self, body: Any, code: int = 200, headers: dict[str, str] | None = None) -> None:
        self._send(json.dumps(body).encode(), "application/json", code, headers or {})

    def _plain(self, text: str, code: int) -> None:
        self._send(text.encode(), "text/plain; charset=utf-8", code, {})

    def _send(self, data: bytes, content_type: str, code: int, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in {"Content-Type": content_type, "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _reset(self) -> None:
        """Ends the connection with a TCP reset."""
        with suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.shutdown(socket.SHUT_RD)
        self.close_connection = True


def _fits(obj: Object, wanted: Route, query: dict[str, str]) -> bool:
    meta = obj["metadata"]
    if wanted.namespace and meta.get("namespace") != wanted.namespace:
        return False
    if wanted.name and meta["name"] != wanted.name:
        return False
    labels = labels_match(query.get("labelSelector", ""), meta.get("labels") or {})
    return labels and fields_match(query.get("fieldSelector", ""), obj)

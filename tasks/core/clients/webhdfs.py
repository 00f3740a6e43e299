"""HDFS over HTTP (WebHDFS, HttpFS), as a store needs it: fsspec's client with whole files, retries and a strict rename.

fsspec writes by CREATE and APPEND, of which the second may not be repeated, ignores the name node's answer to RENAME,
and returns the body of an error as data. Here a file is written beside its place by one CREATE, which may be repeated,
and renamed; the name node answers "false" if the target exists. There is no TLS, Kerberos or delegation token: the user
is that of the URL, webhdfs://user@host:9870/folder, or $HADOOP_USER_NAME.
"""

import contextlib
import os
import secrets
import tempfile
import time
from typing import Any, BinaryIO

import requests
from fsspec.implementations.webhdfs import WebHDFS
from fsspec.spec import AbstractBufferedFile
from requests.adapters import HTTPAdapter

from tasks.core.errors import StoreError

_RETRIED = {429, 500, 502, 503, 504}
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 8.0
_CONNECTIONS = 64
"""Connections to one node that are kept. Of the ten that are the default, the threads of a reader would open more."""


class WebHdfs(WebHDFS):  # type: ignore[misc]
    """A name node and its data nodes.

    Args:
        host: of the name node.
        port: of its HTTP server.
        user: name of the user; $HADOOP_USER_NAME by default.
        tries: attempts per request; pauses between them begin at half a second and double.
    """

    def __init__(self, host: str, port: int = 9870, user: str = "", tries: int = 6, **kwargs: Any) -> None:
        self._tries = tries
        super().__init__(host, port, user=user or os.environ.get("HADOOP_USER_NAME"), **kwargs)

    def _connect(self) -> None:
        self.session = _Patient(self._tries)

    def _call(self, op: str, method: str = "get", path: str | None = None, **kwargs: Any) -> Any:
        try:
            return super()._call(op, method, path, **kwargs)
        except RuntimeError as error:
            # The class of the server's exception is lost; that it is a quota is in the text.
            if "quota" in str(error).lower():
                raise StoreError(
                    f"the store is full while writing {path} ({error})", "free space and run again"
                ) from None
            raise

    def ls(self, path: str, detail: bool = False, **kwargs: Any) -> list[Any]:
        """Returns the entries of a folder, or the one of a file."""
        path = self._strip_protocol(path).rstrip("/")
        entries = self._call("LISTSTATUS", path=path).json()["FileStatuses"]["FileStatus"]
        for entry in entries:
            entry["name"] = f"{path}/{entry['pathSuffix']}" if entry["pathSuffix"] else path
            self._process_info(entry)
        entries.sort(key=lambda entry: entry["name"])
        return entries if detail else [entry["name"] for entry in entries]

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Returns a file, or a range of it; the client checks that the response has its whole length."""
        span: dict[str, Any] = {"offset": start or 0}
        if end is not None:
            span["length"] = end - (start or 0)
        try:
            return bytes(self._call("OPEN", path=path, **span).content)
        except RuntimeError as error:
            if "out of the range" in str(error):
                return b""
            raise

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **kwargs: Any) -> "_File":
        if mode != "rb":
            raise NotImplementedError(f"files are written whole, and not opened as {mode}")
        return _File(self, path, mode, block_size or self.blocksize)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        """Writes a file in one request; a writer that is killed may leave a part of it."""
        self._create(path, value)

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        """Replaces a file by a local one; there is none for a moment, and never a part of one.

        A file with the same content is kept: a late duplicate of a committed part may be killed at any time.
        """
        aside = f"{rpath}.{secrets.token_hex(6)}.tmp"
        with open(lpath, "rb") as file:
            self._create(aside, file)
        try:
            self.mv(aside, rpath)
        except FileExistsError:
            content = self.ukey(aside)
            with contextlib.suppress(FileNotFoundError):  # another writer replaces it at this moment
                if self.ukey(rpath) == content:
                    self.rm_file(aside)
                    return
            self.rm_file(rpath)
            self.mv(aside, rpath)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copies a file by way of this machine: HDFS has no copy on the server."""
        with tempfile.NamedTemporaryFile(prefix="sluice-") as spool:
            self.get_file(path1, spool.name)
            self.put_file(spool.name, path2)

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        """Renames a file.

        Raises:
            FileExistsError: the target is another file.
        """
        number = self.info(path1)["fileId"]
        if self._call("RENAME", "put", path1, destination=self._strip_protocol(path2)).json()["boolean"]:
            return
        # If the response to a successful attempt is lost, the next one is refused: a renamed file keeps its number.
        if self.info(path2)["fileId"] != number:
            raise FileExistsError(path2)

    def _create(self, path: str, data: bytes | BinaryIO) -> None:
        response = self._call("CREATE", "put", path, redirect=False, overwrite="true")
        location = self._apply_proxy(response.headers["Location"])
        headers = {"content-type": "application/octet-stream"}
        self.session.put(location, data=data, headers=headers).raise_for_status()


class _File(AbstractBufferedFile):  # type: ignore[misc]
    def _fetch_range(self, start: int, end: int) -> bytes:
        return bytes(self.fs.cat_file(self.path, start, end))


class _Patient(requests.Session):
    """A session that repeats requests that the server did not answer, or not completely."""

    def __init__(self, tries: int) -> None:
        super().__init__()
        self._tries = tries
        self.mount("http://", HTTPAdapter(pool_maxsize=_CONNECTIONS))

    def request(self, method: str, url: str, **kwargs: Any) -> requests.Response:  # type: ignore[override]
        """Sends a request up to `tries` times; raises what the last attempt raised."""
        pause, data = _FIRST_PAUSE_S, kwargs.get("data")
        for left in range(self._tries - 1, -1, -1):
            if data is not None and hasattr(data, "seek"):
                data.seek(0)
            try:
                response = super().request(method, url, timeout=(5, 30), **kwargs)
                if response.status_code not in _RETRIED or not left:
                    return response
            except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError):
                if not left:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        raise AssertionError("there is at least one try")

"""Web site of the demo: the rendered documentation as three loopback hosts with different, static content.

`library.localhost`, `packages.localhost` and `topics.localhost` (names below `.localhost` are loopback by RFC 6761) on
three ports in a row. Each has an index that links to all its pages, a robots.txt, ETag and Last-Modified with 304, and
404 for what it does not have. About 515 pages and 8 MB of text with CPython 3.11. Rendering takes some 8 CPU-seconds
once and is kept in a folder named by interpreter and renderer; a kept site starts in under a second.
"""

import html
import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass
from email.utils import formatdate, parsedate_to_datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from tasks.core.digest import sha256_of
from tasks.core.errors import InputError

HOSTS = ("library", "packages", "topics")
SITE_PORT = 18701
"""Default port of the first host; the recipe `demo` names it in its seeds."""
RENDERER = Path(__file__).with_name("pages.py")

# The two forms of pydoc's own server: the first duplicates pages, the second is computed for every request.
ROBOTS = b"""User-agent: *
Disallow: /get?key=
Disallow: /search
"""


@dataclass(frozen=True)
class Page:
    """One rendered page: its title, body, validators."""

    title: str
    body: bytes
    etag: str
    modified: int


def rendered(cache: Path) -> Path:
    """Returns the folder with the pages of this interpreter's base installation; renders them where they are missing.

    Raises:
        InputError: the interpreter's standard library could not be rendered; the message has its last line.
    """
    base = getattr(sys, "_base_executable", sys.executable)
    key = sha256_of(f"{base}\n{sys.version}\n{RENDERER.read_text()}".encode())[:16]
    folder = cache / key
    if (folder / "pages.json").exists():
        return folder
    work = cache / f"{key}.part"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    # A bare interpreter with an empty environment: pages show os.environ, and antigravity would open a browser.
    bare = {"PATH": os.defpath, "LANG": "C.UTF-8", "BROWSER": "true", "PYTHONHASHSEED": "0"}
    command = [base, "-s", "-S", "-P", "-B", "-X", "utf8", str(RENDERER), "."]
    done = subprocess.run(
        command, cwd=work, env=bare, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise InputError(f"the documentation of {base} could not be rendered: {' '.join(last)}", "try another Python")
    shutil.rmtree(folder, ignore_errors=True)
    work.rename(folder)
    return folder


def load(folder: Path, ports: dict[str, int]) -> dict[str, dict[str, Page]]:
    """Reads rendered pages and gives links between hosts their ports; returns {host: {path: page}}."""
    hosts: dict[str, dict[str, Page]] = {host: {} for host in HOSTS}
    for line in json.loads((folder / "pages.json").read_text()):
        body = (folder / line["file"]).read_bytes()
        for name, port in ports.items():
            body = body.replace(f'href="http://{name}.localhost/'.encode(), f'href="{address(name, port)}'.encode())
        etag = sha256_of(body)[:32]
        hosts[line["host"]][line["path"]] = Page(line["title"], body, f'"{etag}"', line["modified"])
    return hosts


def address(host: str, port: int) -> str:
    """Returns the URL of a host's index.

    >>> address("library", 18701)
    'http://library.localhost:18701/'
    """
    return f"http://{host}.localhost:{port}/"


class Handler(BaseHTTPRequestHandler):
    """HTTP handler for GET and HEAD of one host."""

    protocol_version = "HTTP/1.1"
    server_version = "pydoc"
    disable_nagle_algorithm = True  # headers and body are two writes: Nagle would delay the second by 40 ms
    server: "Host"

    def do_GET(self) -> None:
        """Serves a page, robots.txt, the two forms, or 404."""
        url = urlsplit(self.path)
        key = parse_qs(url.query).get("key", [""])[0]
        page = self.server.pages.get(unquote(url.path))
        if url.path == "/robots.txt":
            self._answer(HTTPStatus.OK, ROBOTS, "text/plain; charset=utf-8")
        elif url.path == "/get":
            self._answer(HTTPStatus.FOUND, b"", extra={"Location": f"/{key}.html" if key else "/"})
        elif url.path == "/search":
            self._answer(HTTPStatus.OK, self._found(key))
        elif page is None:
            self._answer(HTTPStatus.NOT_FOUND, b"<!DOCTYPE html><title>404</title><p>No such page.</p>\n")
        else:
            self._page(page)

    do_HEAD = do_GET

    def _page(self, page: Page) -> None:
        validators = {"ETag": page.etag, "Last-Modified": formatdate(page.modified, usegmt=True)}
        if self._unchanged(page):
            self._answer(HTTPStatus.NOT_MODIFIED, b"", extra=validators)
        else:
            self._answer(HTTPStatus.OK, page.body, extra=validators)

    def _unchanged(self, page: Page) -> bool:
        # RFC 9110, 13.1.3: If-Modified-Since counts only without If-None-Match.
        if tags := self.headers.get("If-None-Match"):
            return tags.strip() == "*" or page.etag in [tag.strip().removeprefix("W/") for tag in tags.split(",")]
        try:
            since = parsedate_to_datetime(self.headers.get("If-Modified-Since", ""))
        except ValueError:
            return False
        return page.modified <= since.timestamp()

    def _found(self, key: str) -> bytes:
        hits = [(path, page.title) for path, page in sorted(self.server.pages.items()) if key and key in page.title]
        items = "".join(f'<li><a href="{path}">{html.escape(title)}</a></li>\n' for path, title in hits)
        return f"<!DOCTYPE html><title>Search</title><h1>{len(hits)} pages</h1><ul>\n{items}</ul>\n".encode()

    def _answer(
        self,
        status: HTTPStatus,
        body: bytes,
        kind: str = "text/html; charset=utf-8",
        extra: dict[str, str] | None = None,
    ) -> None:
        self.send_response(status)
        if status != HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        for name, value in (extra or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Writes no log: the crawl has its own."""


class Host(ThreadingHTTPServer):
    """One host of the site, on its own port of 127.0.0.1."""

    daemon_threads = True

    def __init__(self, port: int, pages: dict[str, Page]) -> None:
        self.pages = pages
        super().__init__(("127.0.0.1", port), Handler)


def serve(port: int, cache: Path) -> None:
    """Serves all hosts on `port` and the ports after it until the process is stopped; prints the seeds."""
    ports = {host: port + offset for offset, host in enumerate(HOSTS)}
    pages = load(rendered(cache), ports)
    for host, own in ports.items():
        server = Host(own, pages[host])
        threading.Thread(target=server.serve_forever, name=host, daemon=True).start()
        print(f"{address(host, own)}  {len(pages[host])} pages", flush=True)
    threading.Event().wait()

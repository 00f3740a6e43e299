"""Web site of the demo: Python's documentation on three loopback hosts with different, static content.

The hosts are `library.localhost`, `packages.localhost` and `topics.localhost` (names below `.localhost` are loopback by
RFC 6761) on three consecutive ports. Each has an index with links to all its pages and a robots.txt, and supports ETag
and Last-Modified. There are about 515 pages and 8 MB of text with CPython 3.11. Rendering takes about 8 CPU-seconds
once; the pages are cached in a folder named by interpreter and renderer, from which the site starts in under a second.
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
"""Default port of the first host; the seeds of the recipe `demo` contain it."""
RENDERER = Path(__file__).with_name("pages.py")

# The two query paths of pydoc's server: the first duplicates pages, the second is computed for every request.
ROBOTS = b"""User-agent: *
Disallow: /get?key=
Disallow: /search
"""


@dataclass(frozen=True)
class SitePage:
    """A rendered page: its title, body, and cache validators."""

    title: str
    body: bytes
    etag: str
    modified: int


def render_site(cache: Path) -> Path:
    """Returns the folder with the pages of this interpreter's base installation; renders them if they are missing.

    Raises:
        InputError: the standard library could not be rendered; the message has the last line of the error.
    """
    base = getattr(sys, "_base_executable", sys.executable)
    key = sha256_of(f"{base}\n{sys.version}\n{RENDERER.read_text()}".encode())[:16]
    folder = cache / key
    if (folder / "pages.json").exists():
        return folder
    work = cache / f"{key}.part"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    # A minimal environment: pages contain os.environ, and a module could open a browser.
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


def load(folder: Path, ports: dict[str, int]) -> dict[str, dict[str, SitePage]]:
    """Reads rendered pages and adds the ports to links between hosts; returns {host: {path: page}}."""
    hosts: dict[str, dict[str, SitePage]] = {host: {} for host in HOSTS}
    for line in json.loads((folder / "pages.json").read_text()):
        body = (folder / line["file"]).read_bytes()
        for name, port in ports.items():
            body = body.replace(f'href="http://{name}.localhost/'.encode(), f'href="{address(name, port)}'.encode())
        etag = sha256_of(body)[:32]
        hosts[line["host"]][line["path"]] = SitePage(line["title"], body, f'"{etag}"', line["modified"])
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
    disable_nagle_algorithm = True  # headers and body are two writes; Nagle's algorithm would delay the second by 40 ms
    server: "SiteHost"

    def do_GET(self) -> None:
        """Serves a page, robots.txt, a redirect, search results, or 404."""
        url = urlsplit(self.path)
        key = parse_qs(url.query).get("key", [""])[0]
        page = self.server.pages.get(unquote(url.path))
        if url.path == "/robots.txt":
            self._respond(HTTPStatus.OK, ROBOTS, "text/plain; charset=utf-8")
        elif url.path == "/get":
            self._respond(HTTPStatus.FOUND, b"", extra={"Location": f"/{key}.html" if key else "/"})
        elif url.path == "/search":
            self._respond(HTTPStatus.OK, self._search_results(key))
        elif page is None:
            self._respond(HTTPStatus.NOT_FOUND, b"<!DOCTYPE html><title>404</title><p>No such page.</p>\n")
        else:
            self._serve_page(page)

    do_HEAD = do_GET

    def _serve_page(self, page: SitePage) -> None:
        validators = {"ETag": page.etag, "Last-Modified": formatdate(page.modified, usegmt=True)}
        if self._not_modified(page):
            self._respond(HTTPStatus.NOT_MODIFIED, b"", extra=validators)
        else:
            self._respond(HTTPStatus.OK, page.body, extra=validators)

    def _not_modified(self, page: SitePage) -> bool:
        # RFC 9110, 13.1.3: If-Modified-Since is ignored if there is an If-None-Match.
        if tags := self.headers.get("If-None-Match"):
            return tags.strip() == "*" or page.etag in [tag.strip().removeprefix("W/") for tag in tags.split(",")]
        try:
            since = parsedate_to_datetime(self.headers.get("If-Modified-Since", ""))
        except ValueError:
            return False
        return page.modified <= since.timestamp()

    def _search_results(self, key: str) -> bytes:
        hits = [(path, page.title) for path, page in sorted(self.server.pages.items()) if key and key in page.title]
        items = "".join(f'<li><a href="{path}">{html.escape(title)}</a></li>\n' for path, title in hits)
        return f"<!DOCTYPE html><title>Search</title><h1>{len(hits)} pages</h1><ul>\n{items}</ul>\n".encode()

    def _respond(
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
        """Does not log requests: the crawl logs them."""


class SiteHost(ThreadingHTTPServer):
    """One host of the site, on its own port of 127.0.0.1."""

    daemon_threads = True

    def __init__(self, port: int, pages: dict[str, SitePage]) -> None:
        self.pages = pages
        super().__init__(("127.0.0.1", port), Handler)


def serve(port: int, cache: Path) -> None:
    """Serves all hosts on `port` and the ports after it until the process is stopped; prints the seeds."""
    ports = {host: port + offset for offset, host in enumerate(HOSTS)}
    pages = load(render_site(cache), ports)
    for host, own in ports.items():
        server = SiteHost(own, pages[host])
        threading.Thread(target=server.serve_forever, name=host, daemon=True).start()
        print(f"{address(host, own)}  {len(pages[host])} pages", flush=True)
    threading.Event().wait()

"""A synthetic web for the crawl benchmark, equal on every machine with the same Python, and nginx to serve it.

Writes `<folder>/<host>/<path>.html.gz`, each host's robots.txt and `corpus.json` (what a complete crawl must fetch).
Modeled on 13,061 pages of Debian's documentation (mean 26.9 KB, median 14.7 KB, 90 % below 47.8 KB, mean 5.6 KB with
gzip, 74 links per page): sizes are log-normal; every page has the menu of its site, its neighbors, links and
fragments in the text, links to other hosts and a footer. Menus are relative on half of the hosts and start with "/"
on the other half. The words are those of the language reference in `pydoc_data.topics`.

nginx serves every virtual host on one loopback port, bodies as gzip from disk. It needs no root; its configuration
and files are in a temporary folder.
"""

import contextlib
import gzip
import itertools
import json
import math
import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from html import escape
from pathlib import Path
from pydoc_data.topics import topics
from statistics import mean, quantiles

from benchmarks.harness import STATE

DOMAIN = "localhost"
VERSION = 3
_MEDIAN_BYTES, _SIGMA = 14_700, 1.0
_SECTIONS = ("guide", "reference", "howto", "blog/2025", "blog/2026", "api/v2")
_ROBOTS = "User-agent: *\nDisallow: /private/\nDisallow: /search\nAllow: /\n\nUser-agent: greedybot\nDisallow: /\n"
# One time for all files: Last-Modified and ETag are the same on every machine, too.
_MODIFIED = 1_700_000_000
# Keep-alive lasts for the whole crawl and files stay open, so that the server takes little CPU from the crawlers.
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
    log_format requests '$host$request_uri $status';
    access_log {work}/access.log requests;
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


@dataclass(frozen=True)
class Shape:
    """Size of the synthetic web."""

    hosts: int
    pages_per_host: int


@dataclass(frozen=True)
class Corpus:
    """The generated web: hosts, pages as "host/path" (sorted), the largest of them; sizes are in bytes of HTML."""

    hosts: list[str]
    pages: list[str]
    largest: str
    mean: int
    median: int
    p90: int
    gzip_mean: int
    links_mean: float


def folder_of(shape: Shape) -> Path:
    """Returns the folder that caches a web of that shape between runs."""
    return STATE / "crawl" / f"web-{VERSION}-{shape.hosts}x{shape.pages_per_host}"


def make(folder: Path, shape: Shape) -> Corpus:
    """Creates the corpus in `folder` unless it exists."""
    done = folder / "corpus.json"
    if not done.exists():
        made = _written(folder, shape)
        done.write_text(json.dumps(asdict(made)))
    return Corpus(**json.loads(done.read_text()))


def _written(folder: Path, shape: Shape) -> Corpus:
    hosts = [f"site{number:03d}.{DOMAIN}" for number in range(shape.hosts)]
    pages, sizes, packed, links = [], [], [], []
    for number, host in enumerate(hosts):
        _put(folder / host / "robots.txt", _ROBOTS.encode())
        for path, html in _site(number, shape.pages_per_host):
            data = gzip.compress(html, 6, mtime=0)
            _put(folder / host / f"{path}.gz", data)
            pages.append(f"{host}/{_address(path)}")
            sizes.append(len(html))
            packed.append(len(data))
            links.append(html.count(b"<a "))
    deciles = quantiles(sizes, n=10)
    return Corpus(
        hosts=hosts,
        pages=sorted(pages),
        largest=pages[sizes.index(max(sizes))],
        mean=round(mean(sizes)),
        median=round(deciles[4]),
        p90=round(deciles[8]),
        gzip_mean=round(mean(packed)),
        links_mean=round(mean(links), 1),
    )


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (_MODIFIED, _MODIFIED))


def _site(number: int, pages: int) -> Iterator[tuple[str, bytes]]:
    """Yields path and HTML of every page of one host."""
    chance = random.Random(number)
    paths = ["index.html", *(f"{section}/index.html" for section in _SECTIONS)]
    for section in itertools.islice(itertools.cycle(_SECTIONS), max(0, pages - len(paths))):
        paths.append(f"{section}/{len(paths):03d}-{'-'.join(chance.sample(_words(), 3))}.html")
    for path in paths:
        yield path, _Page(chance, paths, path, rooted=number % 2 == 0).html().encode()


def _address(path: str) -> str:
    """Returns the path as written in links: a folder for its index."""
    folder, slash, name = path.rpartition("/")
    return folder + slash if name == "index.html" else path


class _Page:
    """One page under construction."""

    def __init__(self, chance: random.Random, paths: list[str], path: str, *, rooted: bool) -> None:
        self._chance = chance
        self._paths = paths
        self._path = path
        self._rooted = rooted
        self._folder = path.rpartition("/")[0]
        self._siblings = [one for one in paths if one.rpartition("/")[0] == self._folder]

    def html(self) -> str:
        size = _MEDIAN_BYTES * math.exp(self._chance.gauss(0.0, _SIGMA))
        frame = self._head() + self._menu() + self._neighbours()
        body: list[str] = []
        held = len(frame)
        while held < size - 1200:
            body.append(self._paragraph(len(body)))
            held += len(body[-1])
        return f"{frame}<main>{''.join(body)}</main>{self._footer()}"

    def _to(self, path: str) -> str:
        """Returns the link from this page to another one of its site."""
        short = _address(path)
        if self._rooted:
            return f"/{short}"
        return os.path.relpath(f"/{short}", f"/{self._folder}") + ("/" if short.endswith("/") or not short else "")

    def _link(self, href: str, text: str, attributes: str = "") -> str:
        return f'<a {attributes}href="{escape(href)}">{escape(text)}</a>'

    def _head(self) -> str:
        title = " ".join(self._chance.sample(_words(), 5)).title()
        scripts = "".join(f'<script src="/static/{name}.js" defer></script>' for name in ("base", "search", "theme"))
        return (
            f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<meta name="description" content="{title}"><meta property="og:title" content="{title}">'
            '<link rel="stylesheet" href="/static/base.css"><link rel="icon" href="/static/icon.png">'
            f"{scripts}</head>\n<body><h1>{title}</h1>\n"
        )

    def _menu(self) -> str:
        """Returns the navigation bar of every page of the site: sections and popular pages."""
        shown = [f"{section}/index.html" for section in _SECTIONS] + self._paths[7:17]
        entries = "".join(
            f'<li class="nav-item">{self._link(self._to(path), path.rpartition("/")[2], "class=nav ")}</li>\n'
            for path in ["index.html", *shown]
        )
        return f'<nav role="navigation"><ul class="menu">\n{entries}</ul></nav>\n'

    def _neighbours(self) -> str:
        """Returns links to parent, previous and next page; an index lists its whole folder."""
        at = self._siblings.index(self._path)
        whole = self._path.rpartition("/")[2] == "index.html"
        listed = self._siblings if whole else self._siblings[max(0, at - 5) : at + 6]
        entries = "".join(f"<li>{self._link(self._to(path), path)}</li>\n" for path in listed)
        return f'<div class="sidebar"><h3>In this section</h3><ul>\n{entries}</ul></div>\n'

    def _paragraph(self, number: int) -> str:
        words = self._prose(self._chance.randint(40, 110))
        for _ in range(self._chance.choice((0, 1, 1, 2, 3))):
            place = self._chance.randrange(len(words))
            words[place] = self._link(self._target(number), words[place])
        if self._chance.random() < 0.3:
            words[0] = f"<code>{words[0]}</code>"
        head = f'<h2 id="s{number}">{self._chance.choice(_words())}</h2>\n' if number % 4 == 0 else ""
        return f'{head}<p class="text">{" ".join(words)}</p>\n'

    def _target(self, number: int) -> str:
        """Returns the target of a link in the text."""
        kind = self._chance.random()
        if kind < 0.25:
            return f"#s{self._chance.randint(0, number)}"
        if kind < 0.40:
            return f"https://www.example{self._chance.randrange(40)}.org/{self._chance.choice(_words())}"
        if kind < 0.45:
            return "mailto:someone@example.org"
        if kind < 0.47:
            return f"/private/{self._chance.randrange(9)}.html"
        path = self._to(self._chance.choice(self._paths))
        return f"{path}#s{self._chance.randrange(12)}" if kind < 0.7 else path

    def _footer(self) -> str:
        fixed = "".join(
            self._link(href, text) + " | "
            for href, text in (
                ("#top", "Back to top"),
                ("/search?q=", "Search"),
                (self._to("index.html"), "Home"),
                ("https://www.example.com/licence", "Licence"),
                ("https://code.example.com/sources", "Sources"),
                (f"https://www.example{self._chance.randrange(40)}.org/", "Friends"),
                ("javascript:void(0)", "Theme"),
            )
        )
        return f"<footer>{fixed}<p>Last updated in 2026.</p></footer>\n</body></html>\n"

    def _prose(self, count: int) -> list[str]:
        text = _text()
        begin = self._chance.randrange(len(text) - count)
        return [escape(word) for word in text[begin : begin + count]]


@lru_cache(maxsize=1)
def _text() -> list[str]:
    return [word for name in sorted(topics) for word in topics[name].split()]


@lru_cache(maxsize=1)
def _words() -> list[str]:
    return sorted({word for word in _text() if word.isascii() and word.isalpha() and word.islower() and len(word) > 3})


class MissingServerError(Exception):
    """nginx is not installed."""


class Nginx:
    """A running nginx.

    Attributes:
        port: TCP port on 127.0.0.1.
    """

    def __init__(self, port: int, log: Path) -> None:
        self.port = port
        self._log = log
        self._read = 0

    def requests(self) -> list[str]:
        """Returns "host/path status" of every request since the last call."""
        with self._log.open() as file:
            file.seek(self._read)
            lines = file.read()
        self._read += len(lines)
        return lines.splitlines()


@contextlib.contextmanager
def serve(root: Path) -> Iterator[Nginx]:
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
            yield Nginx(port, Path(work) / "access.log")
        finally:
            process.terminate()
            process.wait()


def _configuration(root: Path, work: str, port: int) -> str:
    temporary = "".join(
        f"{name}_temp_path {work}/{name}; " for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    # If root starts nginx, its worker would run as "nobody", who cannot read a developer's folders.
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

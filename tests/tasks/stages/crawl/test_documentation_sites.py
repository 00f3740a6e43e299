"""Foreign sites: the HTML of Debian's documentation packages, served on loopback, crawled by the stages.

Each package is a separate host. apt-get downloads them into a scratch folder; if that is not possible, the
test is skipped. SLUICE_DEBIAN_DOCS can name a folder that caches them between runs.
"""

import mimetypes
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import pytest
from aiohttp import web

from tasks.stages.crawl.config import CrawlConfig
from tests.tasks.stages.crawl.site import Site

pytestmark = pytest.mark.soak

# By package: seed pages, and the minimum number of reachable pages.
PACKAGES = {
    "rust-doc": ("usr/share/doc/rust-doc/html/index.html", 4000),
    "postgresql-doc-15": ("usr/share/doc/postgresql-doc-15/html/index.html", 1100),
    "python3.11-doc": ("usr/share/doc/python3.11/html/index.html", 450),
    "nodejs-doc": ("usr/share/doc/nodejs/api/index.html", 55),
    "r-base-html": ("usr/lib/R/library/*/html/00Index.html", 14),
    "git-doc": ("usr/share/doc/git/html/git.html", 180),
    "openjdk-17-doc": ("usr/share/doc/openjdk-17-jre-headless/api/index.html", 1500),
}
MOST = 5000


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with every unpacked package in a subfolder of its name."""
    for program in ("apt-get", "dpkg"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} here: the documentation packages cannot be fetched")
    kept = os.environ.get("SLUICE_DEBIAN_DOCS")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("packages")
    for name in PACKAGES:
        if (folder / name).is_dir():
            continue
        done = subprocess.run(["apt-get", "download", name], cwd=folder, capture_output=True, text=True, check=False)
        files = list(folder.glob(f"{name}_*.deb"))
        if done.returncode or not files:
            pytest.skip(f"the package {name} cannot be fetched: {done.stderr.strip()[-200:]}")
        subprocess.run(["dpkg", "-x", str(files[0]), str(folder / name)], check=True)
    return folder


class Files(Site):
    """Serves each package as the host <package>.localhost, like a plain web server."""

    def __init__(self, folder: Path) -> None:
        super().__init__({})
        self._folder = folder

    async def _respond(self, request: web.Request) -> web.Response:
        root = (self._folder / request.host.partition(".localhost")[0]).resolve()
        file = Path(os.path.normpath(root / unquote(request.raw_path.partition("?")[0]).lstrip("/")))
        if file.is_dir() and (file / "index.html").is_file():
            file /= "index.html"
        if not file.is_relative_to(root) or not file.is_file():
            return web.Response(status=404, text="not here")
        kind, coding = mimetypes.guess_type(file.name)
        headers = {"Content-Type": kind or "application/octet-stream"}
        if coding and kind == "text/html":
            headers["Content-Encoding"] = coding
        return web.Response(body=file.read_bytes(), headers=headers)


def test_foreign_documentation_sites_are_crawled_without_errors(crawl, packages, caplog) -> None:
    with Files(packages) as files:
        hosts = {f"{name}.localhost:{files.port}": name for name in PACKAGES}
        config = CrawlConfig(
            seeds=tuple(
                f"http://{host}/{page.relative_to(packages / name)}"
                for host, name in hosts.items()
                for page in sorted((packages / name).glob(PACKAGES[name][0]))
            ),
            allow_loopback=True,
            delay_s=0.0,
            latency_factor=0.0,
            partitions=1,
            max_pages=MOST * len(PACKAGES),
            max_pages_per_host=MOST,
            max_pages_per_domain=MOST * len(PACKAGES),
            max_depth=100,
            warc_pages_per_file=20_000,
        )
        rows = crawl(config).log().values()
    reasons = Counter(row["reason"] for row in rows)
    captured = Counter(hosts[row["host"]] for row in rows if row["reason"] == "")
    assert "poison" not in reasons
    assert set(reasons) <= {"", "http_404", "mime", "redirect", "soft_404", "duplicate", "trap_queries", "noindex"}
    assert {name: captured[name] >= least for name, (_, least) in PACKAGES.items()} == dict.fromkeys(PACKAGES, True)
    lines = [record.getMessage() for record in caplog.records if "is kept without its links" in record.getMessage()]
    assert lines == []

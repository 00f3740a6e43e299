"""Real pages in WARC files: the HTML of documentation that Debian packages."""

import hashlib
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from tasks.crawl.http.client import Answer
from tasks.crawl.storage.warc import WarcWriter

PACKAGES = ("python3.11-doc", "debian-handbook", "postgresql-doc-15", "git-doc")
_FILES = 4
_SMALLEST = 2_000


def unpacked(folder: Path) -> Path:
    """Fetches the packages with `apt-get download` and unpacks them, unless they are there; returns where."""
    held = folder / "packages"
    for name in PACKAGES:
        if list((held / name).glob("usr/share/doc/*")):
            continue
        (held / name).mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", "-q", name], cwd=held, check=True, stdout=subprocess.DEVNULL)
        (package,) = held.glob(f"{name}_*.deb")
        subprocess.run(["dpkg-deb", "-x", str(package), str(held / name)], check=True)
    return held


def chosen(folder: Path, count: int) -> list[Path]:
    """Returns a sample of the pages by a hash of their path below `folder`, the same one everywhere."""
    pages = [path for path in folder.rglob("*.html") if path.is_file() and path.stat().st_size >= _SMALLEST]
    return sorted(pages, key=lambda path: hashlib.blake2b(str(path.relative_to(folder)).encode()).digest())[:count]


def write(pages: list[Path], folder: Path) -> int:
    """Writes the pages as captures of a web into WARC files; returns their size as HTML in bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    size = 0
    files = min(_FILES, len(pages))
    for number in range(files):
        name = f"pages-{number}.warc.gz"
        with (folder / name).open("wb") as file:
            writer = WarcWriter(file, name, "sluice-benchmark/1", "sluice-benchmark/1", "gzip")
            for page in pages[number::files]:
                html = page.read_bytes()
                size += len(html)
                _capture(writer, page, html)
            writer.finish()
    return size


def _capture(writer: WarcWriter, page: Path, html: bytes) -> None:
    digest = hashlib.blake2b(str(page).encode(), digest_size=8).hexdigest()
    headers = (("Content-Type", "text/html"), ("Content-Length", str(len(html))))
    answer = Answer(200, "OK", headers, html, truncated=False, address="", request=b"GET / HTTP/1.1\r\n\r\n", seconds=0)
    writer.capture(f"https://{page.parent.name}.example/{digest}.html", datetime(2026, 1, 1, tzinfo=UTC), answer, {})

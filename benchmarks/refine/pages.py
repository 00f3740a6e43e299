"""Real pages in WARC files: the HTML of documentation that Debian packages, or archived pages in a folder."""

import gzip
import hashlib
import io
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from fastwarc import WarcRecord, WarcRecordType

from benchmarks.published import published

# All that Debian 12 has under these names: manuals of programs, a handbook and a guide in twenty languages, essays.
PACKAGES = (
    *("anarchism", "debian-handbook", "gimp-help-en", "git-doc", "installation-guide-amd64", "libreoffice-help-en-us"),
    *("lilypond-doc-html", "postgresql-doc-15", "python-django-doc", "python3.11-doc", "selinux-policy-doc"),
    "sqlite3-doc",
)
CRAWL = "crawl"
"""Name of the folder that is a store with nothing but a finished crawl, of the recipe `demo`."""

_FILES = 4
_SMALLEST = 2_000


def unpacked(folder: Path) -> Path:
    """Fetches the packages with `apt-get download` and unpacks them, unless they are there; returns where."""
    held = folder / "packages"
    for name in PACKAGES:
        if list((held / name).glob("usr/share/doc*/*")):
            continue
        (held / name).mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", "-q", name], cwd=held, check=True, stdout=subprocess.DEVNULL)
        (package,) = held.glob(f"{name}_*.deb")
        subprocess.run(["dpkg-deb", "-x", str(package), str(held / name)], check=True)
    return held


def chosen(folder: Path, count: int) -> list[Path]:
    """Returns a sample of the pages, about as many of each package, by a hash of their path: the same everywhere."""
    turns = []
    for name in PACKAGES:
        pages = [path for path in (folder / name).rglob("*.html") if path.is_file() and not path.is_symlink()]
        pages = [path for path in pages if path.stat().st_size >= _SMALLEST]
        turns += [(turn, path) for turn, path in enumerate(sorted(pages, key=lambda path: _place(folder, path)))]
    several = sorted(turns, key=lambda one: (one[0], _place(folder, one[1])))
    return [path for _, path in several[:count]]


def archived(folders: Sequence[Path], state: Path, count: int) -> list[Path]:
    """Unpacks a sample of the `*.html.gz` in folders, by a hash of their bytes; returns where."""
    held = state / "archived"
    shutil.rmtree(held, ignore_errors=True)
    held.mkdir(parents=True)
    packed = {path.read_bytes() for folder in folders for path in folder.glob("*.html.gz")}
    written = []
    for name, data in sorted((hashlib.blake2b(data, digest_size=8).hexdigest(), data) for data in packed)[:count]:
        written.append(held / f"{name}.html")
        written[-1].write_bytes(gzip.decompress(data))
    return written


def _place(folder: Path, page: Path) -> bytes:
    return hashlib.blake2b(str(page.relative_to(folder)).encode()).digest()


def write(pages: list[Path], folder: Path) -> int:
    """Writes the pages twice, and returns their HTML's bytes.

    Once as captures into WARC files as Common Crawl's are, and once in `CRAWL` as a crawl of Sluice leaves them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _, _, size = published(str(folder / CRAWL), "demo", ((_url(page), page.read_bytes()) for page in pages))
    files = min(_FILES, len(pages))
    for number in range(files):
        with (folder / f"pages-{number}.warc.gz").open("wb") as file:
            for page in pages[number::files]:
                # A gzip member for each record; FastWARC's own writer makes one of all.
                file.write(gzip.compress(_capture(page, page.read_bytes())))
    return size


def _url(page: Path) -> str:
    digest = hashlib.blake2b(str(page).encode(), digest_size=8).hexdigest()
    return f"https://{page.parent.name}.example/{digest}.html"


def _capture(page: Path, html: bytes) -> bytes:
    record = WarcRecord()
    record.init_headers(record_type=WarcRecordType.response)
    record.headers["WARC-Target-URI"] = _url(page)
    record.headers["WARC-Date"] = "2026-01-01T00:00:00Z"
    # What Common Crawl's records say; without it datatrove asks libmagic, which takes XHTML for XML: no page.
    record.headers["WARC-Identified-Payload-Type"] = "text/html"
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(html)}\r\n\r\n"
    record.is_http = True
    record.set_bytes_content(head.encode() + html)
    written = io.BytesIO()
    record.write(written, checksum_data=True, payload_digest=hashlib.sha1(html, usedforsecurity=False).digest())
    return written.getvalue()

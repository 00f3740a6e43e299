"""What a capture costs to write, as gzip and as zstd: CPU microseconds and bytes of response, request and metadata.

    python -m benchmarks.warc_writer [--rounds 5]

Pages of the crawl benchmark's made-up web (`benchmarks.crawl_web`), once as the server compressed them and once
plain. Both compressions in turn within a round, so that a busy machine is busy for both; the ratio is taken within a
round, the result is the median. Writes `warc_writer.json`. Half a minute.
"""

import gzip
import io
import time
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from statistics import median
from typing import Any, get_args

from benchmarks.crawl_web import Shape, folder_of, make
from benchmarks.harness import in_turn, keep, parser
from tasks.stages.crawl.http.client import Answer
from tasks.stages.crawl.storage.warc import Compression, WarcWriter, suffix

_SHAPE = Shape(hosts=10, pages_per_host=50)
_WHEN = datetime(2026, 1, 1, tzinfo=UTC)
_HEADERS = (
    ("Server", "nginx/1.22.1"),
    ("Date", "Thu, 01 Jan 2026 00:00:00 GMT"),
    ("Content-Type", "text/html; charset=utf-8"),
    ("Last-Modified", "Tue, 14 Nov 2023 22:13:20 GMT"),
    ("ETag", '"6553f100-176f"'),
)
_NOTES = {"fetchTimeMs": "12", "hopsFromSeed": "3", "via": "http://site001.localhost:8080/guide/"}


def answers() -> dict[str, list[tuple[str, Answer]]]:
    """Returns the pages with their URLs, by how their bodies came."""
    folder = folder_of(_SHAPE)
    made = make(folder, _SHAPE)
    found: dict[str, list[tuple[str, Answer]]] = {"came as gzip": [], "came plain": []}
    for page in made.pages:
        host, _, path = page.partition("/")
        body = (
            folder / host / f"{path}index.html.gz" if page.endswith("/") else folder / host / f"{path}.gz"
        ).read_bytes()
        request = f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: sluice/0.1\r\nAccept: */*\r\n\r\n".encode()
        for kind, headers, data in (
            ("came as gzip", (*_HEADERS, ("Content-Encoding", "gzip")), body),
            ("came plain", _HEADERS, gzip.decompress(body)),
        ):
            found[kind].append((f"http://{page}", Answer(200, "OK", headers, data, "", "127.0.0.1", request, 0.012)))
    return found


def cost(pages: list[tuple[str, Answer]], compression: Compression) -> tuple[float, float]:
    """Writes captures of all pages to memory; returns CPU microseconds and bytes for each."""
    writer = WarcWriter(io.BytesIO(), f"warc/x{suffix(compression)}", "sluice", "sluice", compression)
    begin = time.process_time()
    for url, answer in pages:
        writer.capture(url, _WHEN, answer, _NOTES)
    return (time.process_time() - begin) / len(pages) * 1e6, writer.bytes / len(pages)


def measured(pages: list[tuple[str, Answer]], rounds: int) -> dict[str, Any]:
    """Returns the medians of both compressions, and of their ratio."""
    each = in_turn({one: partial(cost, pages, one) for one in get_args(Compression)}, rounds)
    pairs = zip(each["zstd"], each["gzip"], strict=True)
    return {
        "microseconds": {name: round(median(taken for taken, _ in costs), 1) for name, costs in each.items()},
        "bytes": {name: round(costs[0][1]) for name, costs in each.items()},
        "zstd/gzip": round(median(zstd[0] / gzip[0] for zstd, gzip in pairs), 2),
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=5)
    rounds = options.parse_args().rounds
    result = {kind: measured(pages, rounds) for kind, pages in answers().items()}
    keep("warc_writer", {"versions": {name: version(name) for name in ("pyarrow", "isal")}, **result})


if __name__ == "__main__":
    main()

"""How much other hosts hold good ones up: seconds that good hosts take, alone and beside slow and silent ones.

A server on loopback answers for all hosts, told apart by name: good ones at once, slow ones after four seconds, silent
ones never. The stage fetch crawls the good hosts alone, then beside each kind of others; the server's clock says how
long it was from the first request to a good host to the last. Seconds on the wall, for waiting is what is measured.
Each crawl is stopped when the good hosts are through.
"""

import asyncio
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.crawl.contenders import CONCURRENCY, ROOT, command

GOOD, PAGES, DELAY_S, SLOW_S = 4, 100, 0.05, 4.0
OTHERS = {
    "one host that answers in 4 s": ["slow0"],
    "20 hosts that answer in 4 s": [f"slow{number}" for number in range(20)],
    "100 silent hosts": [f"silent{number}" for number in range(100)],
    "1,000 silent hosts": [f"silent{number}" for number in range(1000)],
}
_GOOD = [f"good{number}" for number in range(GOOD)]
_LIMIT_S = 300.0


class Server:
    """Serves pages 0 to PAGES - 1 of every host, each with links to the next ones, in a thread.

    Attributes:
        port: where it listens on 127.0.0.1.
        times: when a page of a good host was asked for, on the monotonic clock.
    """

    def __init__(self) -> None:
        self.times: list[float] = []
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()
        self._ready.wait()

    def _run(self) -> None:
        self._loop.run_until_complete(self._begin())
        self._loop.run_forever()

    async def _begin(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=4096)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ", 2)[1].decode()
                host = head.partition(b"Host: ")[2].partition(b".")[0].decode()
                writer.write(await self._answer(host, path))
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    async def _answer(self, host: str, path: str) -> bytes:
        if host.startswith("silent"):
            await asyncio.sleep(_LIMIT_S)
        if host.startswith("slow"):
            await asyncio.sleep(SLOW_S)
        if not path[1:].isdigit():
            return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
        if host.startswith("good"):
            self.times.append(time.monotonic())
        links = [
            f'<a href="/{one}">{one}</a>' for one in range(3 * int(path[1:]) + 1, 3 * int(path[1:]) + 4) if one < PAGES
        ]
        body = f"<html><title>{host}{path}</title><p>Page {path} of {host}. {' '.join(links)}</html>".encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body


def measured(folder: Path) -> dict[str, Any]:
    """Returns seconds of the good hosts by what stood beside them, and their share of the pace that they have alone."""
    server = Server()
    alone = _seconds(server, folder, [])
    beside = {name: _seconds(server, folder, others) for name, others in OTHERS.items()}
    return {
        "good_hosts": GOOD,
        "pages_each": PAGES,
        "alone_s": round(alone, 2),
        "beside_s": {name: round(seconds, 2) for name, seconds in beside.items()},
        "pace_kept": {name: round(alone / seconds, 3) for name, seconds in beside.items()},
    }


def _seconds(server: Server, folder: Path, others: list[str]) -> float:
    """Crawls the good hosts beside others; returns the seconds from the first page of a good host to the last."""
    store = folder / "store"
    shutil.rmtree(store, ignore_errors=True)
    hosts = [f"{name}.localhost:{server.port}" for name in [*_GOOD, *others]]
    crawl = {
        "seeds": [f"http://{host}/0" for host in hosts],
        "allow_loopback": True,
        "partitions": 1,
        "max_pages": 10 * PAGES * len(hosts),
        "delay_s": DELAY_S,
        "concurrency": CONCURRENCY,
    }
    for stage in ("inject", "rank", "generate"):
        subprocess.run(command(stage, crawl, store), cwd=ROOT, check=True, capture_output=True)
    server.times.clear()
    process = subprocess.Popen(command("fetch", crawl, store), cwd=ROOT, stderr=subprocess.DEVNULL)
    begin = time.monotonic()
    while len(server.times) < GOOD * PAGES:
        if process.poll() is not None or time.monotonic() - begin > _LIMIT_S:
            raise RuntimeError(f"{len(server.times)} of {GOOD * PAGES} pages of good hosts after {_LIMIT_S} s")
        time.sleep(0.05)
    process.terminate()
    process.wait()
    shutil.rmtree(store)
    return server.times[-1] - server.times[0]

"""The limit of open files: a fetch adapts to it, or refuses to start if it is too low."""

import asyncio
import re
import resource
import subprocess
import sys
from contextlib import contextmanager

import pytest
import uvloop

from tasks.core.errors import InputError
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.http import connection
from tests.soak import soak_but
from tests.tasks.stages.crawl.cycle import ROOT, cycle, logged, segment_in, start

pytestmark = pytest.mark.real_time

HOSTS, LIMIT = 1100, 1024
"""Hosts of the largest crawl here, and the number of files that it may open."""
SLOW_S = 2.0


async def _serve():
    """Answers robots.txt at once and pages late, so that many requests wait while many other connections are idle."""

    async def talk(reader, writer):
        try:
            while request := await reader.readuntil(b"\r\n\r\n"):
                status, body = "404 Not Found", b"not here"
                if request.startswith(b"GET / "):
                    await asyncio.sleep(SLOW_S)
                    status, body = "200 OK", b"<p>A page of " + re.search(rb"Host: (\S+)", request)[1]
                head = f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0, backlog=2000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def _server():
    with subprocess.Popen([sys.executable, "-m", __name__], cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


_HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]


@pytest.mark.skipif(0 < _HARD < 2 * HOSTS, reason="the server may open too few files")
@pytest.mark.parametrize(("hosts", "limit"), soak_but({0}, [(HOSTS // 2, LIMIT // 2), (HOSTS, LIMIT)]))
def test_more_concurrent_hosts_than_open_files_fit_into_the_limit(tmp_path, hosts, limit):
    with _server() as port:
        config = CrawlConfig(
            seeds=[f"http://h{number}.localhost:{port}/" for number in range(hosts)],
            allow_loopback=True,
            partitions=1,
            max_pages=10_000,
            max_hosts_per_domain=hosts,
            delay_s=0.0,
            latency_factor=0.0,
            concurrency=hosts,
            timeout_s=120.0,
            ai_optouts=[],
        )
        cycle(tmp_path, config)
        process = start(tmp_path, config)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (limit, limit))
        stderr = process.communicate(timeout=300)[1].decode()
    assert process.returncode == 0, stderr
    assert "Too many open files" not in stderr
    assert f"this process may have {limit} files open" in stderr
    assert {row[0] for row in logged(segment_in(tmp_path)).values()} == {"fetch_success"}
    assert len(logged(segment_in(tmp_path))) == hosts


@pytest.fixture
def limits(monkeypatch):
    """Replaces this process's limits of open files, soft and hard."""

    def put(soft, hard):
        now = [soft, hard]
        monkeypatch.setattr(connection.resource, "getrlimit", lambda kind: tuple(now))
        monkeypatch.setattr(connection.resource, "setrlimit", lambda kind, new: now.__setitem__(slice(None), new))
        return now

    return put


def test_the_soft_limit_is_raised_to_the_hard_one_and_not_more_than_needed_is_used(limits):
    now = limits(1024, 1 << 20)
    budget = connection.socket_budget(1088)
    assert budget.visits == 1088
    assert budget.sockets == 1088 + connection.MAX_IDLE
    assert now == [1 << 20, 1 << 20]
    now = limits(resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert connection.socket_budget(1088) == budget
    assert now == [resource.RLIM_INFINITY] * 2


def test_all_sockets_of_a_crawl_and_its_other_files_are_within_the_limit(limits):
    now = limits(256, 1024)
    budget = connection.socket_budget(2024)
    assert now == [1024, 1024]
    assert budget.visits == budget.sockets == 1024 - 256 - budget.second_attempts
    limits(256, 300)
    with pytest.raises(InputError, match=r"may have 300 files open, and a fetch needs 384\. Raise the hard limit"):
        connection.socket_budget(2024)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * HOSTS, _HARD))
    uvloop.run(_serve())

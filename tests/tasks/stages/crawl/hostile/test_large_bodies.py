"""Many hosts that send maximal bodies at the same time, with a delayed end."""

import asyncio

import pytest

from tests.tasks.stages.crawl.hostile.conftest import MAX_MEMORY_MB, crawl_in

pytestmark = pytest.mark.real_time

BODY = 8 << 20
HOSTS = 60


def stalling(path):
    """Sends a large file with its end delayed by two seconds."""

    async def answer():
        yield b"HTTP/1.1 200 OK\r\nContent-Type: application/pdf\r\nContent-Length: %d\r\n\r\n" % BODY
        for _ in range(15):
            yield bytes(BODY >> 4)
        await asyncio.sleep(2)
        yield bytes(BODY >> 4)

    return answer()


@pytest.mark.soak
def test_many_concurrent_large_bodies_take_bounded_memory_and_are_all_fetched(web, tmp_path):
    hosts = [web.host(stalling) for _ in range(HOSTS)]
    config = {"seeds": [host.url() for host in hosts], "allow_loopback": True, "delay_s": 0.0, "partitions": 1}
    result = crawl_in(tmp_path / "store", {**config, "timeout_s": 60, "concurrency": 200, "ai_optouts": []})
    assert result.memory["fetch"] < MAX_MEMORY_MB
    assert len(result.captures) == HOSTS

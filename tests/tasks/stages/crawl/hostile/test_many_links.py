"""Pages and sitemaps with excessive links: memory is bounded, and real pages are followed."""

import pytest

from tests.tasks.stages.crawl.hostile.conftest import MAX_MEMORY_MB, crawl_in
from tests.tasks.stages.crawl.hostile.web import page

pytestmark = pytest.mark.real_time

PAGES = 20


def linked(count, length):
    """Answers every path with a page of `count` links of `length` characters, all of them new."""

    def answer(path):
        number = int(path.strip("/").partition("-")[0] or 0)
        tail = "x" * (length - 10)
        links = "".join(f'<a href="/{number * count + one + 1}-{tail}">x</a>' for one in range(count))
        return page(f"<title>{path[:20]}</title><p>This is page {number}. {links}".encode())

    return answer


@pytest.mark.soak
def test_countless_links_take_bounded_memory(web, tmp_path):
    host = web.host(linked(5000, 800))
    config = {"seeds": [host.url()], "allow_loopback": True, "delay_s": 0.0, "latency_factor": 0.0, "partitions": 1}
    result = crawl_in(tmp_path / "store", {**config, "max_pages_per_host": PAGES})
    assert len(result.captures) == PAGES
    assert result.memory["fetch"] < MAX_MEMORY_MB
    # More than one part: a single one would have the links of all pages.
    assert len(list((result.folder / result.path / "links").iterdir())) > 1
